"""Files that hold many images each: where they lie, their splits, and their classes."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.records.manifest import TRAIN
from data_prep.sources import folders
from data_prep.sources.image_list import Entry, ImageList, Source
from resnet.base.errors import UserError
from resnet.base.names import normalized
from resnet.base.text import first_of

_FOLDER = "data"  # That of the files in data sets of Hugging Face.

Label = int | str


class LabelledImage(NamedTuple):
    """An image as `read` takes it."""

    path: str  # Of the file that holds the image.
    filename: str
    label: Label
    offset: int
    num_bytes: int


def find(
    root: pathlib.Path, validation_split: str | None, extensions: tuple[str, ...]
) -> list[pathlib.Path]:
    """Returns the files in `root`, and in its `data` folder and those of splits."""
    names = {_FOLDER, validation_split}
    below = folders.folders_in(root)
    places = [p for p in below if p.name in names or folders.split_of(p.name)]
    paths = [path for place in (root, *places) for path in sorted(place.iterdir())]
    return [
        path
        for path in paths
        if path.name.lower().endswith(extensions)
        and path.name[0] != "."
        and path.is_file()
    ]


def read(
    root: pathlib.Path,
    paths: Iterable[pathlib.Path],
    validation_split: str | None,
    images_of: Callable[[pathlib.Path], Iterable[LabelledImage]],
    known: Sequence[str] = (),
    names: Mapping[int, str] | None = None,
) -> Source:
    """Returns the images of files, in their order, which are read once.

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

    files, warnings = _by_split(root, paths, validation_split)
    splits = {
        split: ImageList.of((), (entry(image) for p in own for image in images_of(p)))
        for split, own in files.items()
    }
    for split, images in splits.items():
        if not len(images):
            raise UserError(f"{root} must hold {split} images; its files hold none")
    class_of = _class_of(first, known, names or {})
    class_names = tuple(known or class_of.values())
    if TRAIN in splits:
        of_training = set(np.unique(splits[TRAIN].class_indices).tolist())
        lacking = [
            name for n, name in class_of.items() if numbers[n] not in of_training
        ]
        if lacking and not known:
            raise UserError(
                f"each class in {root} must have images for training; {len(lacking)}"
                f" have none: {first_of(map(repr, lacking))}"
            )
        if len({*class_names}) < max(len(class_names), 2):
            raise UserError(
                f"{root} must have at least two classes, each with a name of its own;"
                f" they are {first_of(map(repr, class_names), 20)}"
            )
    index_of = {name: index for index, name in enumerate(class_names)}
    indices = np.array([index_of[class_of[label]] for label in numbers], np.int32)
    for split, images in splits.items():
        images.rows["class_index"] = indices[images.class_indices]
        splits[split] = dataclasses.replace(images, class_names=class_names)
    return Source(
        class_names=class_names,
        splits=splits,
        description={"raw_data_dir": str(root)},
        warnings=warnings,
    )


def _by_split(
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
        words = re.split(r"[\W\d_]+", str(path.relative_to(root)).lower())
        is_split = [word for word in words if folders.split_of(word) or word == choice]
        of_name.setdefault((*is_split, own)[0], []).append(path)
    chosen = folders.choose_splits(sorted(of_name), choice, str(root))
    others = sorted(p.name for n in {*of_name} - {*chosen.values()} for p in of_name[n])
    warnings = (f"files of other splits, left out: {first_of(others)}",)
    return {s: of_name[name] for s, name in chosen.items()}, warnings * bool(others)


def _class_of(
    first: Mapping[Label, str], known: Sequence[str], names: Mapping[int, str]
) -> dict[Label, str]:
    """Returns the class of each label, in the order of classes."""
    class_of: dict[Label, str] = {}
    are_numbers = all(isinstance(label, int) for label in first)
    for label in sorted(first, key=None if are_numbers else str):
        is_known = not isinstance(label, int) or 0 <= label < (len(known) or label + 1)
        if is_known and isinstance(label, int):
            class_of[label] = known[label] if known else names.get(label, str(label))
        elif is_known:
            class_of[label] = normalized(str(label))
            is_known = not known or class_of[label] in known
        if not is_known:
            expected = (
                f"one of {len(known):,}, {first_of(known)}" if known else "0 or more"
            )
            raise UserError(
                f"each label must be {expected}; that of {first[label]} is {label!r}."
                " Leave out files whose images aren't labelled."
            )
    return class_of
