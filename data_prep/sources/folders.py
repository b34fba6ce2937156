"""The images of folders.

raw_data_dir/train/<class>/*.JPEG
raw_data_dir/validation/<class>/*.JPEG, or validation/*.JPEG + synset_labels.txt

Flat validation images with ImageNet's own file names need no synset_labels.txt.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterable

from data_prep.errors import UserError
from data_prep.records import tfrecord_format
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import ImageList, ImageListBuilder

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif")  # In any case.
LABELS_FILE = "synset_labels.txt"
TRAIN_FOLDER = "train"
VALIDATION_FOLDERS = ("validation", "val", "test")  # Under one of these names.


@dataclasses.dataclass(frozen=True)
class Listing:
    """What the folders hold.

    Attributes:
        class_names: Sorted; a class's index here is its label, counted from 0.
        splits: The images of `train` and `validation`, of whichever there are,
            sorted by class and file name.
        num_ignored_files: Files that are no images, going by their extension, and
            whatever else lies where images should.
        warnings: Sentences for the user.
    """

    class_names: tuple[str, ...]
    splits: dict[str, ImageList]
    num_ignored_files: int
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Content:
    """One folder's content without hidden files, each list sorted by name."""

    folders: list[str]
    images: list[str]
    num_others: int


@dataclasses.dataclass(frozen=True)
class _FlatFolder:
    """A folder of images with the class of each.

    Attributes:
        images: `(class name, file name)`, sorted.
        class_names: The classes there are where no `train` says it, sorted.
    """

    images: list[tuple[str, str]]
    class_names: tuple[str, ...]


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of images in `root`, that of the train images first."""
    names = (TRAIN_FOLDER, *VALIDATION_FOLDERS)
    return [root / name for name in names if (root / name).is_dir()]


def list_images(root: pathlib.Path) -> Listing:
    """Returns the images of the folders in `root`, without opening them.

    The classes are the folders of `train`, or those of the validation images where
    there is no `train`.

    Args:
        root: A folder in which `find` finds something.

    Raises:
        UserError: If the folders are not laid out as above; the message says where.
    """
    validation_folders = [f for f in find(root) if f.name != TRAIN_FOLDER]
    if len(validation_folders) > 1:
        raise UserError(
            "the validation images must be in one folder, and there are"
            f" {' and '.join(map(str, validation_folders))}; take one away"
        )
    train = root / TRAIN_FOLDER
    splits = {}
    num_ignored_files = 0
    class_names: tuple[str, ...] | None = None
    if train.is_dir():
        class_names, splits[tfrecord_format.TRAIN], num_ignored = _list_train(train)
        num_ignored_files += num_ignored
    for folder in validation_folders:
        class_names, images, num_ignored = _list_validation(
            folder, root / LABELS_FILE, class_names
        )
        splits[tfrecord_format.VALIDATION] = images
        num_ignored_files += num_ignored
    warnings = tuple(
        warning
        for folder in validation_folders
        if (warning := _wrong_labels(folder, root / LABELS_FILE))
    )
    return Listing(class_names or (), splits, num_ignored_files, warnings)


def _list_train(folder: pathlib.Path) -> tuple[tuple[str, ...], ImageList, int]:
    content = _scan(folder)
    if not content.folders:
        raise UserError(f"{folder} must hold one folder for each class; it holds none")
    class_names = tuple(content.folders)
    # One folder's names at a time: ImageNet's all together would take 100 MB.
    contents = ((name, _scan(folder / name)) for name in class_names)
    images, num_ignored = _gather(folder, contents, class_names)
    num_ignored += content.num_others + len(content.images)
    filled = set(images.class_indices.tolist())
    empty = [name for index, name in enumerate(class_names) if index not in filled]
    if empty:
        raise UserError(
            f"each class folder of {folder} must hold an image"
            f" ({' '.join(EXTENSIONS)}); {len(empty)} hold none: {_some(empty)}"
        )
    return class_names, images, num_ignored


def _list_validation(
    folder: pathlib.Path,
    labels_file: pathlib.Path,
    train_classes: tuple[str, ...] | None,
) -> tuple[tuple[str, ...], ImageList, int]:
    content = _scan(folder)
    if content.folders and content.images:
        raise UserError(
            f"{folder} must hold either class folders or images; it holds both, such"
            f" as {content.folders[0]!r} and {content.images[0]!r}"
        )
    if content.images:
        flat = _label_flat_folder(folder, content.images, labels_file)
        class_names = train_classes or flat.class_names
        _check_known(folder, {name for name, _ in flat.images}, class_names)
        class_index = {name: index for index, name in enumerate(class_names)}
        builder = ImageListBuilder(class_names)
        for class_name, filename in flat.images:
            builder.add_file(str(folder), filename, class_index[class_name])
        return class_names, builder.build(), content.num_others

    contents = {name: _scan(folder / name) for name in content.folders}
    own_classes = tuple(name for name, found in contents.items() if found.images)
    if not own_classes:
        raise UserError(f"{folder} must hold images; it holds none")
    class_names = train_classes or own_classes
    _check_known(folder, set(own_classes), class_names)
    images, num_ignored = _gather(folder, contents.items(), class_names)
    num_ignored += content.num_others + len(content.images)
    return class_names, images, num_ignored


def _gather(
    folder: pathlib.Path,
    contents: Iterable[tuple[str, _Content]],
    class_names: tuple[str, ...],
) -> tuple[ImageList, int]:
    """Returns the images of class folders, and the number of other entries.

    Args:
        folder: That holds the class folders.
        contents: Class name and content of each; one without images may be of no
            known class.
        class_names: In the order of the labels.
    """
    builder = ImageListBuilder(class_names)
    class_index = {name: index for index, name in enumerate(class_names)}
    num_ignored = 0
    for class_name, content in contents:
        class_folder = str(folder / class_name)
        for filename in content.images:
            builder.add_file(class_folder, filename, class_index[class_name])
        num_ignored += content.num_others + len(content.folders)
    return builder.build(), num_ignored


def _check_known(
    folder: pathlib.Path, names: set[str], class_names: tuple[str, ...]
) -> None:
    unknown = sorted(names.difference(class_names))
    if unknown:
        raise UserError(
            f"each class of {folder} must have a folder in"
            f" {folder.with_name(TRAIN_FOLDER)}; {len(unknown)} have none:"
            f" {_some(unknown)}"
        )


def _label_flat_folder(
    folder: pathlib.Path, filenames: list[str], labels_file: pathlib.Path
) -> _FlatFolder:
    if not labels_file.exists():
        synsets = [imagenet_labels.validation_synset(name) for name in filenames]
        known = [synset for synset in synsets if synset is not None]
        if len(known) == len(filenames):
            return _FlatFolder(
                sorted(zip(known, filenames, strict=True)), imagenet_labels.synsets()
            )
    class_names = _read_labels(folder, len(filenames), labels_file)
    return _FlatFolder(
        sorted(zip(class_names, filenames, strict=True)),
        tuple(sorted(set(class_names))),
    )


def _wrong_labels(folder: pathlib.Path, labels_file: pathlib.Path) -> str | None:
    """Returns a warning if labels of ImageNet's own images are not ImageNet's.

    So it is where a list was zipped to files in another order.

    Raises:
        UserError: If the images are ImageNet's, all 50,000.
    """
    filenames = _scan(folder).images
    if not filenames or not labels_file.exists():
        return None
    own = _read_labels(folder, len(filenames), labels_file)
    pairs = [
        (filename, label, right)
        for filename, label in zip(filenames, own, strict=True)
        if (right := imagenet_labels.validation_synset(filename)) is not None
    ]
    wrong = [(name, label, right) for name, label, right in pairs if label != right]
    if not wrong:
        return None
    name, label, right = wrong[0]
    sentence = (
        f"{labels_file} gives {len(wrong):,} of {len(filenames):,} images with"
        f" ImageNet's file names another class than ImageNet does; {name} has {label}"
        f" there and is {right}"
    )
    if len(pairs) == len(imagenet_labels.validation_synsets()):
        raise UserError(
            f"{sentence}. Remove the file: the labels come with the project."
        )
    return sentence


def _read_labels(
    folder: pathlib.Path, num_images: int, labels_file: pathlib.Path
) -> list[str]:
    try:
        text = labels_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{folder} has no class folders, so {labels_file} must hold the class of"
            f" each of its images, one a line; reading it failed: {error}"
        ) from error
    class_names = [line.strip() for line in text.rstrip().splitlines()]
    if len(class_names) != num_images:
        raise UserError(
            f"{labels_file} must have a line for each of the {num_images} images"
            f" of {folder}; it has {len(class_names)}"
        )
    if "" in class_names:
        raise UserError(
            f"{labels_file} must have a class on each line; line"
            f" {class_names.index('') + 1} is empty"
        )
    return class_names


def _scan(folder: str | os.PathLike[str]) -> _Content:
    folders = []
    images = []
    num_others = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(EXTENSIONS) and entry.is_file():
                images.append(entry.name)
            elif entry.name.lower().endswith(EXTENSIONS) and entry.is_symlink():
                raise UserError(
                    f"{entry.path} is a link to an image that isn't there; put the"
                    " image there or remove the link"
                )
            else:
                num_others += 1
    return _Content(sorted(folders), sorted(images), num_others)


def _some(names: list[str]) -> str:
    """Returns the first few names, for a message."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown}, ..."
