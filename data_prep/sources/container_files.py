"""Files that hold many images each: where they lie, their splits, and their classes."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.records.class_names import normalized
from data_prep.records.manifest import TRAIN
from data_prep.sources import folders
from data_prep.sources.image_list import Entry, ImageList
from resnet.base.errors import UserError
from resnet.base.text import first_of

_FOLDER = "data"  # That of the files in data sets of Hugging Face.

Label = int | str


class LabelledImage(NamedTuple):
    """An image as `list_splits` takes it."""

    path: str  # Of the file that holds the image.
    filename: str
    label: Label
    offset: int
    num_bytes: int


def find(root: pathlib.Path, extensions: tuple[str, ...]) -> list[pathlib.Path]:
    """Returns the files in `root`, and in its `data` folder and those of splits."""
    places = [root]
    for folder in folders.folders_in(root):
        if folder.name == _FOLDER or folders.split_of(folder.name):
            places.append(folder)
    return [
        path
        for place in places
        for path in sorted(place.iterdir())
        if path.name.lower().endswith(extensions)
        and path.name[0] != "."
        and path.is_file()
    ]


def by_split(
    root: pathlib.Path, paths: Iterable[pathlib.Path], validation_split: str | None
) -> tuple[dict[str, list[pathlib.Path]], tuple[str, ...]]:
    """Returns the files of each split, and warnings of those of others.

    A split is a word of the name, or of the folder; without one, a file is of `root`'s
    split, if that has such a name and others lie beside it, or else for training.
    """
    choice = validation_split and validation_split.lower()
    own = folders.own_split(root)[0] or TRAIN
    of_name: dict[str, list[pathlib.Path]] = {}
    for path in paths:
        words = re.split(r"[\W\d_]+", str(path.relative_to(root).with_suffix("")))
        is_split = [w for w in words if folders.split_of(w) or w.lower() == choice]
        of_name.setdefault((is_split or [own])[0].lower(), []).append(path)
    chosen = folders.choose_splits(sorted(of_name), choice, str(root))
    others = [
        path.name for n in of_name.keys() - {*chosen.values()} for path in of_name[n]
    ]
    warnings = (f"files of other splits, left out: {first_of(sorted(others))}",)
    return {s: of_name[name] for s, name in chosen.items()}, warnings * bool(others)


def list_splits(
    root: pathlib.Path,
    images: Mapping[str, Iterable[LabelledImage]],
    known: Sequence[str] = (),
    names: Mapping[int, str] | None = None,
) -> dict[str, ImageList]:
    """Returns the images of each split, in their order, which are read once.

    The classes are the `known` ones, in which labels are indices or names, or else
    those of the labels: sorted by their numbers, which may have `names` when all images
    are read, or by their names. Raises UserError if a label isn't of a known class, of
    one without images for training, or there is only one class.
    """
    first: dict[Label, str] = {}  # The image with which each label appears.
    numbers: dict[Label, int] = {}

    def entry(image: LabelledImage) -> Entry:
        path, filename, label, offset, num_bytes = image
        number = numbers.setdefault(label, len(numbers))
        if number == len(first):
            first[label] = f"{path}: {filename}"
        return Entry(path, filename, number, offset, num_bytes)

    splits = {split: ImageList.of((), map(entry, images[split])) for split in images}
    for split, listed in splits.items():
        if not len(listed):
            raise UserError(f"{root} must hold {split} images; its files hold none")
    name_of = _name_of(first, known, names or {})
    if not known and TRAIN in splits:
        of_training = set(np.unique(splits[TRAIN].class_indices).tolist())
        if only := [name_of[n] for n in numbers if numbers[n] not in of_training]:
            raise UserError(
                f"each class in {root} must have images for training; {len(only)} have"
                f" none: {first_of(map(repr, only))}"
            )
    class_names = tuple(known or name_of.values())
    if twice := sorted({n for n in class_names if class_names.count(n) > 1}):
        raise UserError(
            f"each class of {root} must have a name of its own; several have"
            f" {first_of(map(repr, twice))}. Rename one of them."
        )
    if TRAIN in splits and len(class_names) < 2:
        raise UserError(
            f"{root} must have images of at least two classes; all are of"
            f" {class_names[0]!r}, as {next(iter(first.values()))}"
        )
    index_of = {name: index for index, name in enumerate(class_names)}
    indices = np.array([index_of[name_of[label]] for label in numbers], np.int32)
    for split, listed in splits.items():
        rows = listed.rows
        rows["class_index"] = indices[rows["class_index"]]
        splits[split] = dataclasses.replace(listed, class_names=class_names, rows=rows)
    return splits


def _name_of(
    first: Mapping[Label, str], known: Sequence[str], names: Mapping[int, str]
) -> dict[Label, str]:
    """Returns the class of each label, in the order of classes."""
    name_of: dict[Label, str] = {}
    are_numbers = all(isinstance(label, int) for label in first)
    for label in sorted(first, key=None if are_numbers else str):
        if isinstance(label, int) and (are_numbers or known):
            if not 0 <= label < (len(known) or label + 1):
                expected = f"at most {len(known) - 1:,}" if known else "a number"
                raise UserError(
                    f"a label must be 0 or more and {expected}; that of {first[label]}"
                    f" is {label}. Name files whose images are labelled."
                )
            name_of[label] = known[label] if known else names.get(label, str(label))
        elif known and normalized(str(label)) not in known:
            raise UserError(
                f"a label must be one of {first_of(known)}; that of {first[label]} is"
                f" {label!r}"
            )
        else:
            name_of[label] = normalized(str(label))
    return name_of
