"""The pictures of a raw data folder: which there are, of which class, in which order.

raw_data_dir/train/<class>/*.JPEG
raw_data_dir/validation/<class>/*.JPEG, or validation/*.JPEG + synset_labels.txt
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable

from data_prep import tfrecord_format
from data_prep.errors import UserError

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif")  # In any case.
LABELS_FILE = "synset_labels.txt"
VALIDATION_FOLDERS = ("validation", "val", "test")  # Under one of these names.


@dataclasses.dataclass(frozen=True, slots=True)
class SourceImage:
    """One picture file.

    Attributes:
        path: Of the file.
        class_name: Synset, or whatever the class folder is called.
    """

    path: str
    class_name: str

    @property
    def filename(self) -> str:
        """The file's name without its folder."""
        return os.path.basename(self.path)


@dataclasses.dataclass(frozen=True)
class RawFolder:
    """What a raw data folder holds.

    Attributes:
        class_names: Sorted; a class's index here is its label, counted from 0.
        splits: The pictures of `train` and `validation`, of whichever there are,
            sorted by class and file name.
        num_ignored_files: Files that are no pictures, going by their extension, and
            whatever else lies where pictures should.
    """

    class_names: tuple[str, ...]
    splits: dict[str, tuple[SourceImage, ...]]
    num_ignored_files: int


@dataclasses.dataclass(frozen=True)
class _Listing:
    """One folder's content without hidden files, each list sorted by name."""

    folders: list[pathlib.Path]
    pictures: list[pathlib.Path]
    num_others: int


def list_raw_folder(raw_data_dir: str | os.PathLike[str]) -> RawFolder:
    """Returns the pictures of a raw data folder, without opening them.

    The classes are the folders of `train`, or those of the validation pictures where
    there is no `train`.

    Raises:
        UserError: If the folder is not laid out as above; the message says where.
    """
    root = pathlib.Path(raw_data_dir)
    if not root.is_dir():
        raise UserError(
            f"raw_data_dir must be a folder of pictures, and {root} is none"
        )
    train = root / "train"
    validation_folders = [root / n for n in VALIDATION_FOLDERS if (root / n).is_dir()]
    if len(validation_folders) > 1:
        raise UserError(
            "the validation pictures must be in one folder, and there are"
            f" {' and '.join(map(str, validation_folders))}; take one away"
        )
    if not train.is_dir() and not validation_folders:
        raise UserError(
            f"expected a folder named train or {', '.join(VALIDATION_FOLDERS)} in"
            f" {root}; there is none"
        )

    splits = {}
    num_ignored_files = 0
    class_names: list[str] = []
    if train.is_dir():
        class_names, images, num_ignored = _list_train(train)
        splits[tfrecord_format.TRAIN] = images
        num_ignored_files += num_ignored
    for folder in validation_folders:
        images, num_ignored = _list_validation(folder, root / LABELS_FILE)
        splits[tfrecord_format.VALIDATION] = images
        num_ignored_files += num_ignored
        names = {image.class_name for image in images}
        if not train.is_dir():
            class_names = sorted(names)
        unknown = sorted(names.difference(class_names))
        if unknown:
            raise UserError(
                f"each class of {folder} must have a folder in {train};"
                f" {len(unknown)} have none: {_some(unknown)}"
            )
    return RawFolder(tuple(class_names), splits, num_ignored_files)


def shuffled(images: Iterable[SourceImage], seed: int, split: str) -> list[SourceImage]:
    """Returns the pictures in an order that looks random and never changes.

    They are sorted by the SHA-256 of "seed/split/class/file name". So the order does
    not depend on how the file system lists them, on where the raw folder lies, nor on
    the version of any library, and a picture that is added or taken away does not
    change the order of the others.

    Args:
        images: In any order.
        seed: Another seed gives another order.
        split: `train` or `validation`.
    """

    def key(image: SourceImage) -> bytes:
        text = f"{seed}/{split}/{image.class_name}/{image.filename}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()

    return sorted(images, key=key)


def _list_train(
    folder: pathlib.Path,
) -> tuple[list[str], tuple[SourceImage, ...], int]:
    listing = _list_folder(folder)
    if not listing.folders:
        raise UserError(f"{folder} must hold one folder for each class; it holds none")
    images, num_ignored = _list_class_folders(listing)
    class_names = [class_folder.name for class_folder in listing.folders]
    empty = sorted(set(class_names) - {image.class_name for image in images})
    if empty:
        raise UserError(
            f"each class folder of {folder} must hold a picture"
            f" ({' '.join(EXTENSIONS)}); {len(empty)} hold none: {_some(empty)}"
        )
    return class_names, images, num_ignored


def _list_validation(
    folder: pathlib.Path, labels_file: pathlib.Path
) -> tuple[tuple[SourceImage, ...], int]:
    listing = _list_folder(folder)
    if listing.folders and listing.pictures:
        raise UserError(
            f"{folder} must hold either class folders or pictures; it holds both, such"
            f" as {listing.folders[0].name!r} and {listing.pictures[0].name!r}"
        )
    if listing.pictures:
        images = _label_flat_folder(folder, listing.pictures, labels_file)
        num_ignored = listing.num_others
    else:
        images, num_ignored = _list_class_folders(listing)
    if not images:
        raise UserError(f"{folder} must hold pictures; it holds none")
    return images, num_ignored


def _list_class_folders(listing: _Listing) -> tuple[tuple[SourceImage, ...], int]:
    images = []
    num_ignored = listing.num_others + len(listing.pictures)
    for class_folder in listing.folders:
        content = _list_folder(class_folder)
        images += [SourceImage(str(p), class_folder.name) for p in content.pictures]
        num_ignored += content.num_others + len(content.folders)
    return tuple(images), num_ignored


def _label_flat_folder(
    folder: pathlib.Path, pictures: list[pathlib.Path], labels_file: pathlib.Path
) -> tuple[SourceImage, ...]:
    try:
        text = labels_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{folder} has no class folders, so {labels_file} must hold the class of"
            f" each of its pictures, one a line; reading it failed: {error}"
        ) from error
    class_names = [line.strip() for line in text.rstrip().splitlines()]
    if len(class_names) != len(pictures):
        raise UserError(
            f"{labels_file} must have a line for each of the {len(pictures)} pictures"
            f" of {folder}; it has {len(class_names)}"
        )
    if "" in class_names:
        raise UserError(
            f"{labels_file} must have a class on each line; line"
            f" {class_names.index('') + 1} is empty"
        )
    images = [
        SourceImage(str(picture), class_name)
        for picture, class_name in zip(pictures, class_names, strict=True)
    ]
    return tuple(sorted(images, key=lambda image: (image.class_name, image.filename)))


def _list_folder(folder: pathlib.Path) -> _Listing:
    folders = []
    pictures = []
    num_others = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = pathlib.Path(entry.path)
            if entry.is_dir():
                folders.append(path)
            elif entry.is_file() and path.suffix.lower() in EXTENSIONS:
                pictures.append(path)
            else:
                num_others += 1
    return _Listing(sorted(folders), sorted(pictures), num_others)


def _some(names: list[str]) -> str:
    """Returns the first few names, for a message."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown}, ..."
