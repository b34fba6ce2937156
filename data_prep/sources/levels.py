"""What the folders of images are named, and at which level they are."""

import contextlib
import itertools
import os
import pathlib
import shlex
from collections.abc import Iterable

from data_prep.records.manifest import TRAIN, VALIDATION
from resnet.base.errors import UserError
from resnet.base.text import first_of

EXTENSIONS = (  # In any case; the first four are JPEG's.
    *(".jpeg", ".jpg", ".jpe", ".jfif"),
    *(".png", ".webp", ".bmp", ".gif"),
)
SPLIT_NAMES = {  # In any case; --validation_split chooses among several, or another.
    TRAIN: ("train", "training"),
    VALIDATION: ("validation", "val", "valid", "dev", "test", "testing"),
}
_MOST_FOLDERS = 1_000  # That are looked into for class folders.


def split_of(name: str) -> str | None:
    """Returns the split that a folder of this name holds, if it is a known name."""
    lower = name.lower()
    return next((split for split, known in SPLIT_NAMES.items() if lower in known), None)


def choose_splits(
    names: Iterable[str], validation_split: str | None, where: str
) -> dict[str, str]:
    """Returns which of some names are those of the splits, by the split.

    Raises UserError if several are, or none is the one that --validation_split names.
    """
    names, chosen = list(names), {}
    for split, known in SPLIT_NAMES.items():
        fitting = [name for one in known for name in names if name.lower() == one]
        advice = "Rename one of them."
        if split == VALIDATION and validation_split:
            fitting = [name for name in names if name == validation_split]
            if not fitting or split_of(validation_split) == TRAIN:
                raise UserError(
                    f"--validation_split={validation_split} must name a split of"
                    f" {where} other than train; there are {', '.join(names) or 'none'}"
                )
        elif split == VALIDATION and fitting:
            advice = f"Choose one, as --validation_split={fitting[0]}."
        if len(fitting) > 1:
            raise UserError(
                f"expected one {split} split in {where}; there are"
                f" {' and '.join(fitting)}. {advice}"
            )
        if fitting:
            chosen[split] = fitting[0]
    return chosen


def class_folders(folder: pathlib.Path) -> list[str]:
    """Returns the names of the folders in a folder with images directly in them."""
    return [path.name for path in folders_in(folder) if _has_images(path)]


def advice(folder: pathlib.Path) -> str:
    """Returns a sentence on where class folders are, if not in a folder; or empty."""
    below = folders_in(folder)[:_MOST_FOLDERS]
    inner = itertools.chain.from_iterable(map(folders_in, below))
    below += itertools.islice(inner, _MOST_FOLDERS)
    above = [folder.parent] if _has_images(folder) else []  # It may be of a class.
    if above and split_of(folder.parent.name):
        above = [folder.parent.parent, folder.parent]
    for place in (*above, *below):
        names = [path.name for path in folders_in(place) if split_of(path.name)]
        splits = [name for name in names if class_folders(place / name)]
        names = splits or class_folders(place)
        if splits or len(names) > 1:
            listed = f"{'folders' if splits else 'class folders'} {first_of(names)}"
            otherwise = (
                ", or name the classes in --labels=FILE" if place in above else ""
            )
            path = shlex.quote(str(place))
            return f" Found {listed} in {place}: pass --raw_data_dir={path}{otherwise}."
    for place in filter(_has_images, (folder, *below)):
        return (
            f" Found images in {place}, not in folders of several classes: move them"
            " into such folders, or name their classes in a table (--labels=FILE)."
        )
    return ""


def folders_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders in a folder, sorted; none of one that can't be read."""
    with contextlib.suppress(OSError):
        return sorted(p for p in folder.iterdir() if p.name[0] != "." and p.is_dir())
    return []


def _has_images(folder: pathlib.Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(
            entry.name.lower().endswith(EXTENSIONS)
            and entry.name[0] != "."
            and entry.is_file()
            for entry in entries
        )
    return False
