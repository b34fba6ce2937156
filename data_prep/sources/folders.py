"""Lists the labelled images in class folders.

raw_data_dir/train/<class>/*.JPEG
raw_data_dir/validation/<class>/*.JPEG, or validation/*.JPEG + synset_labels.txt

Validation images with ImageNet's own file names need no synset_labels.txt.
"""

import dataclasses
import os
import pathlib
from collections import Counter
from collections.abc import Iterable

from data_prep.records import schema
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import ImageList, ImageListBuilder
from resnet.base import regular_file
from resnet.base.errors import UserError

EXTENSIONS = (  # In any case; the first four are JPEG's.
    *(".jpeg", ".jpg", ".jpe", ".jfif"),
    *(".png", ".webp", ".bmp", ".gif"),
)
_OUTSIDE = "image outside of the class folders"
_FOLDER = "folder in a class folder"
_NO_EXTENSION = "file without an extension"
LABELS_FILE = "synset_labels.txt"
_MAX_LABELS_BYTES = 2**31  # ImageNet's 50,000 lines have half a million bytes.
TRAIN_FOLDER = "train"
VALIDATION_FOLDERS = ("validation", "val", "test")  # Accepted names; one must exist.


@dataclasses.dataclass(frozen=True)
class Listing:
    """The images and classes of a source folder.

    Attributes:
        class_names: Sorted class names; the label of a class, from 0, is its index.
        splits: Images by split (`train`, `validation`), sorted by class and file name.
        ignored: Number of ignored entries by kind: the extension of a file, or a
            phrase such as "folder in a class folder".
        warnings: Warnings to show to the user.
    """

    class_names: tuple[str, ...]
    splits: dict[str, ImageList]
    ignored: Counter[str]
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Content:
    """Content of one folder without hidden files; the lists are sorted."""

    folders: list[str]
    images: list[str]
    others: Counter[str]  # By kind, as in `Listing.ignored`.


@dataclasses.dataclass(frozen=True)
class _FlatFolder:
    """Labelled images of a folder without class folders.

    Attributes:
        images: Pairs of class name and file name, sorted.
        class_names: Sorted class names, used if there is no `train` folder.
    """

    images: list[tuple[str, str]]
    class_names: tuple[str, ...]


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the split folders in `root`, the training folder first."""
    names = (TRAIN_FOLDER, *VALIDATION_FOLDERS)
    return [root / name for name in names if (root / name).is_dir()]


def list_images(root: pathlib.Path) -> Listing:
    """Returns the images of the folders in `root` without opening them.

    The classes are the folders in `train` or, without `train`, the classes of the
    validation images.

    Args:
        root: Folder in which `find` finds at least one split folder.

    Raises:
        UserError: If the content of the folders isn't as described above.
    """
    validation_folders = [f for f in find(root) if f.name != TRAIN_FOLDER]
    if len(validation_folders) > 1:
        raise UserError(
            "expected one folder with validation images; there are"
            f" {' and '.join(map(str, validation_folders))}. Remove all but one."
        )
    train = root / TRAIN_FOLDER
    splits = {}
    all_ignored: Counter[str] = Counter()
    class_names: tuple[str, ...] | None = None
    if train.is_dir():
        class_names, splits[schema.TRAIN], ignored = _list_train(train)
        all_ignored += ignored
    for folder in validation_folders:
        class_names, images, ignored = _list_validation(
            folder, root / LABELS_FILE, class_names
        )
        splits[schema.VALIDATION] = images
        all_ignored += ignored
    warnings = tuple(
        warning
        for folder in validation_folders
        if (warning := _wrong_labels(folder, root / LABELS_FILE))
    )
    return Listing(class_names or (), splits, all_ignored, warnings)


def _list_train(
    folder: pathlib.Path,
) -> tuple[tuple[str, ...], ImageList, Counter[str]]:
    content = _scan(folder)
    if not content.folders:
        raise UserError(
            f"{folder} must contain one folder per class; it contains no folders"
        )
    class_names = tuple(content.folders)
    # Scans one folder at a time: all file names of ImageNet would take 100 MB.
    contents = ((name, _scan(folder / name)) for name in class_names)
    images, ignored = _gather(folder, contents, class_names)
    ignored += content.others
    ignored[_OUTSIDE] += len(content.images)
    filled = set(images.class_indices.tolist())
    empty = [name for index, name in enumerate(class_names) if index not in filled]
    if empty:
        raise UserError(
            f"each class folder in {folder} must contain images"
            f" ({' '.join(EXTENSIONS)}); {len(empty)} contain none: {_some(empty)}"
        )
    return class_names, images, ignored


def _list_validation(
    folder: pathlib.Path,
    labels_file: pathlib.Path,
    train_classes: tuple[str, ...] | None,
) -> tuple[tuple[str, ...], ImageList, Counter[str]]:
    content = _scan(folder)
    if content.folders and content.images:
        raise UserError(
            f"{folder} must contain either class folders or images; it contains both,"
            f" for example {content.folders[0]!r} and {content.images[0]!r}"
        )
    if content.images:
        flat = _label_flat_folder(folder, content.images, labels_file)
        class_names = train_classes or flat.class_names
        _check_known(folder, {name for name, _ in flat.images}, class_names)
        class_index = {name: index for index, name in enumerate(class_names)}
        builder = ImageListBuilder(class_names)
        for class_name, filename in flat.images:
            builder.add_file(str(folder), filename, class_index[class_name])
        return class_names, builder.build(), content.others

    contents = {name: _scan(folder / name) for name in content.folders}
    own_classes = tuple(name for name, found in contents.items() if found.images)
    if not own_classes:
        raise UserError(f"{folder} must contain images; it contains none")
    class_names = train_classes or own_classes
    _check_known(folder, set(own_classes), class_names)
    images, ignored = _gather(folder, contents.items(), class_names)
    ignored += content.others
    return class_names, images, ignored


def _gather(
    folder: pathlib.Path,
    contents: Iterable[tuple[str, _Content]],
    class_names: tuple[str, ...],
) -> tuple[ImageList, Counter[str]]:
    """Returns the images of class folders and the numbers of other entries by kind.

    Args:
        folder: Folder that contains the class folders.
        contents: Class name and content of each class folder. A folder without images
            may have an unknown class name.
        class_names: Class names in label order.
    """
    builder = ImageListBuilder(class_names)
    class_index = {name: index for index, name in enumerate(class_names)}
    ignored: Counter[str] = Counter()
    for class_name, content in contents:
        class_folder = str(folder / class_name)
        for filename in content.images:
            builder.add_file(class_folder, filename, class_index[class_name])
        ignored += content.others
        ignored[_FOLDER] += len(content.folders)
    return builder.build(), ignored


def _check_known(
    folder: pathlib.Path, names: set[str], class_names: tuple[str, ...]
) -> None:
    unknown = sorted(names.difference(class_names))
    if unknown:
        raise UserError(
            f"each class in {folder} must have a folder in"
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
    """Returns a warning if the labels file contradicts ImageNet's published labels.

    It does if its lines are not in the order of the sorted file names.

    Raises:
        UserError: If the folder contains all of ImageNet's validation images.
    """
    filenames = _scan(folder).images
    if not filenames or not labels_file.exists():
        return None
    stated = _read_labels(folder, len(filenames), labels_file)
    pairs = [
        (filename, label, published)
        for filename, label in zip(filenames, stated, strict=True)
        if (published := imagenet_labels.validation_synset(filename)) is not None
    ]
    wrong = [pair for pair in pairs if pair[1] != pair[2]]
    if not wrong:
        return None
    name, label, published = wrong[0]
    sentence = (
        f"{labels_file} contradicts ImageNet's published labels for {len(wrong):,} of"
        f" {len(filenames):,} images, for example {name}: {label} in the file,"
        f" {published} published"
    )
    if len(pairs) == len(imagenet_labels.validation_synsets()):
        raise UserError(
            f"{sentence}. Delete the file: this program contains ImageNet's labels."
        )
    return sentence


def _read_labels(
    folder: pathlib.Path, num_images: int, labels_file: pathlib.Path
) -> list[str]:
    try:
        class_names = regular_file.read_lines(labels_file, _MAX_LABELS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{folder} has no class folders, so {labels_file} must contain the class of"
            f" each image, one per line; reading it failed: {error}"
        ) from error
    while class_names and not class_names[-1]:
        class_names.pop()
    if len(class_names) != num_images:
        raise UserError(
            f"{labels_file} must have one line for each of the {num_images} images"
            f" in {folder}; it has {len(class_names)} lines"
        )
    if "" in class_names:
        raise UserError(
            f"{labels_file} must have a class name on each line; line"
            f" {class_names.index('') + 1} is empty"
        )
    return class_names


def _scan(folder: str | os.PathLike[str]) -> _Content:
    folders = []
    images = []
    others: Counter[str] = Counter()
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
                    f"{entry.path} is a broken link to an image; restore the image or"
                    " remove the link"
                )
            else:
                extension = os.path.splitext(entry.name)[1]
                others[extension.lower() or _NO_EXTENSION] += 1
    return _Content(sorted(folders), sorted(images), others)


def _some(names: list[str]) -> str:
    """Returns the first few names, for a message."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown}, ..."
