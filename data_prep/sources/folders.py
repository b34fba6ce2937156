"""Lists the labelled images in class folders.

raw_data_dir/train/<class>/*.JPEG, or raw_data_dir/<class>/*.JPEG
raw_data_dir/validation/<class>/*.JPEG, or validation/*.JPEG with ImageNet's names
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from data_prep.images import other_formats
from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import Entry, ImageList, Source
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.base.text import first_of

EXTENSIONS = (  # In any case; the first four are JPEG's.
    *(".jpeg", ".jpg", ".jpe", ".jfif"),
    *(".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
)
SPLIT_NAMES = {  # In any case; --validation_split chooses among several, or another.
    TRAIN: ("train", "training"),
    VALIDATION: ("validation", "val", "valid", "dev", "test", "testing"),
}
_MOST_FOLDERS = 1_000  # That are looked into for class folders.
_MOST_FILES = 10  # Of each, whose first bytes are read for a format that isn't read.
_OUTSIDE = "image outside of the class folders"
_FOLDER = "folder in a class folder"
_IN_FOLDER = "image in a folder in a class folder"
NO_EXTENSION = "file without an extension"


def split_of(name: str) -> str | None:
    """Returns the split that a folder of this name holds, if it is a known name."""
    lower = name.lower()
    return next((split for split, known in SPLIT_NAMES.items() if lower in known), None)


def own_split(root: pathlib.Path) -> tuple[str | None, list[str]]:
    """Returns the split of a folder beside those of others, and their names."""
    own, others = split_of(root.name), folders_in(root.parent)
    names = [p.name for p in others if split_of(p.name) not in (own, None)]
    return (own, names) if names else (None, [])


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


def hold_images(root: pathlib.Path, validation_split: str | None) -> bool:
    """Returns whether folders of splits, or of several classes, in `root` hold images.

    So `find` returns them, or says what is wrong with them.
    """
    return len(class_folders(root)) > 1 or any(
        any(map(_has_images, (folder, *folders_in(folder))))
        for folder in folders_in(root)
        if split_of(folder.name) or folder.name == validation_split
    )


def advice(folder: pathlib.Path) -> str:
    """Returns a sentence on where class folders are, or files not read; or empty."""
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
    starts = (sorted(place.glob("[!.]*"))[:_MOST_FILES] for place in (folder, *below))
    for file in itertools.chain.from_iterable(starts):
        with contextlib.suppress(OSError), open(file, "rb") as opened:
            if kind := other_formats.kind_of(opened.read(other_formats.START_BYTES)):
                return f" Found {file}, which is {kind}. {other_formats.ADVICE}"
    return ""


def folders_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders in a folder, sorted; none of one that can't be read."""
    with contextlib.suppress(OSError):
        return sorted(p for p in folder.iterdir() if p.name[0] != "." and p.is_dir())
    return []


def find(
    root: pathlib.Path, validation_split: str | None = None, with_classes: bool = True
) -> list[pathlib.Path]:
    """Returns the folders of the splits in `root`, the training folder first.

    Without these, if `with_classes`, they are the class folders, two at least.
    """
    if splits := _splits(root, validation_split):
        return list(splits.values())
    names = class_folders(root) if with_classes else []
    return [root / name for name in names] if len(names) > 1 else []


def _splits(
    root: pathlib.Path, validation_split: str | None
) -> dict[str, pathlib.Path]:
    """Returns the folder of each split in `root`; raises UserError if several are.

    One named train with images and no folders is that of a class, beside "plane".
    """
    if not root.is_dir():
        return {}
    with os.scandir(root) as entries:
        names = {entry.name for entry in entries if entry.is_dir()}
    trains = [root / name for name in names if split_of(name) == TRAIN]
    names -= {p.name for p in trains if _has_images(p) and not folders_in(p)}
    chosen = choose_splits(sorted(names), validation_split, str(root))
    return {split: root / name for split, name in chosen.items()}


def read(root: pathlib.Path, validation_split: str | None = None) -> Source:
    """Returns the images of the folders that `find` finds, by class and file name.

    If `root` is itself the folder of a split beside others, it is read as that. The
    classes are the folders in `train` or, without `train`, the classes of the
    validation images. Raises UserError if the content isn't as described above.
    """
    warnings: tuple[str, ...] = ()
    if not (found := _splits(root, validation_split)):
        own, names = own_split(root)
        found = {own or TRAIN: root}
        if own:
            warnings += (
                f"{' and '.join(names)} beside {root}"
                f" {'are' if len(names) > 1 else 'is'} not read; name the folder of"
                f" all instead: --raw_data_dir={shlex.quote(str(root.parent))}",
            )
    train, folder = found.get(TRAIN), found.get(VALIDATION)
    splits: dict[str, ImageList] = {}
    ignored: Counter[str] = Counter()
    class_names: tuple[str, ...] = ()
    if train is not None:
        splits[TRAIN] = _list_train(train, ignored, is_root=train == root)
        class_names = splits[TRAIN].class_names
    if folder is not None:
        subfolders, filenames = _scan(folder, ignored)
        if subfolders and filenames:
            raise UserError(
                f"{folder} must contain either class folders or images; it contains"
                f" both, for example {subfolders[0]!r} and {filenames[0]!r}. Move the"
                " images into the folders of their classes, or away."
            )
        if filenames:
            class_names = class_names or imagenet_labels.synsets()
            entries = _published(folder, filenames)
        else:
            by_class = _by_class(folder, subfolders)
            entries = _in_class_folders(folder, by_class, ignored)
        images = list_images(folder, entries, class_names)
        if not len(images):
            raise UserError(
                f"{folder} must contain images; it contains none.{advice(folder)}"
            )
        splits[VALIDATION] = images
        class_names = images.class_names
    return Source(
        class_names=class_names,
        splits=splits,
        num_ignored_files=ignored.total(),
        ignored_kinds=dict(sorted(ignored.items())),
        description={"raw_data_dir": str(root)},
        warnings=warnings,
    )


def _list_train(
    folder: pathlib.Path, ignored: Counter[str], is_root: bool
) -> ImageList:
    """Returns the images in class folders, beside which a root may have others."""
    names, outside = _scan(folder, Counter() if is_root else ignored)
    if is_root:
        names = class_folders(folder)
    if not names:
        raise UserError(
            f"{folder} must contain one folder per class; it contains no folders."
            f"{advice(folder)}"
        )
    if outside:
        ignored[_OUTSIDE] += len(outside)
    by_class = _by_class(folder, names)
    class_names = tuple(by_class)
    entries = _in_class_folders(folder, by_class, ignored)
    images = list_images(folder, entries, class_names)
    filled = set(images.class_indices.tolist())
    empty = [name for index, name in enumerate(class_names) if index not in filled]
    if empty:
        inner = folder if empty == [*class_names] else folder / by_class[empty[0]]
        raise UserError(
            f"each class folder in {folder} must contain images"
            f" ({' '.join(EXTENSIONS)}); {len(empty)} contain none:"
            f" {first_of(map(repr, empty))}.{advice(inner)}"
        )
    return images


def _by_class(folder: pathlib.Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the names of class folders by those of the classes, which are sorted."""
    by_class: dict[str, str] = {}
    for name in names:
        if (other := by_class.setdefault(normalized(name), name)) != name:
            raise UserError(
                f"each class must have one folder in {folder}; {other!a} and {name!a}"
                " are the same name. Move the images into one of them."
            )
    return dict(sorted(by_class.items()))


def _published(
    folder: pathlib.Path, filenames: Iterable[str]
) -> Iterator[tuple[str, pathlib.Path, str]]:
    """Yields class, folder and name of each of ImageNet's validation images."""
    labels = {name: imagenet_labels.validation_synset(name) for name in filenames}
    if unknown := [name for name, label in labels.items() if label is None]:
        raise UserError(
            f"{folder} must contain class folders, or images with the names of"
            f" ImageNet's; {len(unknown):,} have others, such as {unknown[0]!r}. Move"
            " them into class folders, or name their classes in a table"
            " (--labels=FILE)."
        )
    for name, label in sorted(labels.items(), key=lambda pair: (pair[1], pair[0])):
        yield str(label), folder, name


def _in_class_folders(
    folder: pathlib.Path, by_class: Mapping[str, str], ignored: Counter[str]
) -> Iterator[tuple[str, pathlib.Path, str]]:
    """Yields class, folder and name of each image file in class folders.

    It scans one folder at a time: all file names of ImageNet would take 100 MB.
    """
    for class_name, name in by_class.items():
        folders, filenames = _scan(folder / name, ignored)
        if folders:
            ignored[_FOLDER] += len(folders)
        for subfolder in folders:
            for _, _, files in os.walk(folder / name / subfolder):
                images = [file for file in files if file.lower().endswith(EXTENSIONS)]
                if images:
                    ignored[_IN_FOLDER] += len(images)
        for filename in filenames:
            yield class_name, folder / name, filename


def list_images(
    source: pathlib.Path,
    entries: Iterable[tuple[str, pathlib.Path, str]],
    known: tuple[str, ...],
) -> ImageList:
    """Returns images by class, folder and name; no known classes stand for theirs."""
    indices = {name: index for index, name in enumerate(known)}
    images = ImageList.of(
        known,
        (
            Entry(str(path), filename, indices.setdefault(name, len(indices)))
            for name, path, filename in entries
        ),
    )
    if unknown := tuple(indices)[len(known) :] if known else ():
        raise UserError(
            f"each class in {source} must have images for training;"
            f" {len(unknown)} have none: {first_of(map(repr, unknown))}. Those for"
            f" training are {first_of(known, 10)}, which must be spelled alike."
        )
    return dataclasses.replace(images, class_names=tuple(indices))


def _scan(
    folder: str | os.PathLike[str], ignored: Counter[str]
) -> tuple[list[str], list[str]]:
    """Returns sorted folders and images, and adds to the numbers of ignored files."""
    folders = []
    images = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            is_image = entry.name.lower().endswith(EXTENSIONS)
            if entry.is_dir():
                folders.append(entry.name)
            elif is_image and entry.is_file():
                images.append(entry.name)
            elif is_image and entry.is_symlink():
                raise UserError(
                    f"{entry.path} is a broken link to an image; restore the image or"
                    " remove the link"
                )
            else:
                extension = os.path.splitext(entry.name)[1]
                ignored[extension.lower() or NO_EXTENSION] += 1
    return sorted(folders), sorted(images)


def _has_images(folder: pathlib.Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(
            entry.name.lower().endswith(EXTENSIONS)
            and entry.name[0] != "."
            and entry.is_file()
            for entry in entries
        )
    return False
