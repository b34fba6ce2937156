"""Lists the labelled images in class folders.

raw_data_dir/train/<class>/*.JPEG
raw_data_dir/validation/<class>/*.JPEG, or validation/*.JPEG + synset_labels.txt

Validation images with ImageNet's own file names need no synset_labels.txt.
"""

import dataclasses
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator

from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import Entry, ImageList, Source
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.text import first_of

EXTENSIONS = (  # In any case; the first four are JPEG's.
    *(".jpeg", ".jpg", ".jpe", ".jfif"),
    *(".png", ".webp", ".bmp", ".gif"),
)
LABELS_FILE = "synset_labels.txt"
TRAIN_FOLDER = "train"
VALIDATION_FOLDERS = ("validation", "val", "test")  # Accepted names; one must exist.
_OUTSIDE = "image outside of the class folders"
_FOLDER = "folder in a class folder"
_NO_EXTENSION = "file without an extension"
_MAX_LABELS_BYTES = 2**31  # ImageNet's 50,000 lines have half a million bytes.


@dataclasses.dataclass(frozen=True)
class _Content:
    """Content of one folder without hidden files; the lists are sorted."""

    folders: list[str]
    images: list[str]


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the split folders in `root`, the training folder first."""
    names = (TRAIN_FOLDER, *VALIDATION_FOLDERS)
    return [root / name for name in names if (root / name).is_dir()]


def read(root: pathlib.Path) -> Source:
    """Returns the images of the folders in `root` without opening them.

    The classes are the folders in `train` or, without `train`, the classes of the
    validation images. The images are sorted by class and file name.

    Args:
        root: Folder in which `find` finds at least one split folder.

    Raises:
        UserError: If the content of the folders isn't as described above.
    """
    train = root / TRAIN_FOLDER
    validation_folders = [folder for folder in find(root) if folder != train]
    if len(validation_folders) > 1:
        raise UserError(
            "expected one folder with validation images; there are"
            f" {' and '.join(map(str, validation_folders))}. Remove all but one."
        )
    splits: dict[str, ImageList] = {}
    ignored: Counter[str] = Counter()
    class_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if train.is_dir():
        splits[TRAIN] = _list_train(train, ignored)
        class_names = splits[TRAIN].class_names
    for folder in validation_folders:
        content = _scan(folder, ignored)
        if content.folders and content.images:
            raise UserError(
                f"{folder} must contain either class folders or images; it contains"
                f" both, for example {content.folders[0]!r} and {content.images[0]!r}"
            )
        if content.images:
            labels_file = root / LABELS_FILE
            images, warnings = _list_flat(
                folder, content.images, labels_file, class_names
            )
        else:
            images = _list_classes(folder, content.folders, class_names, ignored)
        splits[VALIDATION] = images
        class_names = images.class_names
    return Source(
        class_names=class_names,
        class_descriptions=imagenet_labels.describe(class_names),
        splits=splits,
        num_ignored_files=ignored.total(),
        ignored_kinds=dict(sorted(ignored.items())),
        description={"raw_data_dir": str(root)},
        warnings=warnings,
    )


def _list_train(folder: pathlib.Path, ignored: Counter[str]) -> ImageList:
    content = _scan(folder, ignored)
    if not content.folders:
        raise UserError(
            f"{folder} must contain one folder per class; it contains no folders"
        )
    if content.images:
        ignored[_OUTSIDE] += len(content.images)
    class_names = tuple(content.folders)
    # Scans one folder at a time: all file names of ImageNet would take 100 MB.
    contents = ((name, _scan(folder / name, ignored)) for name in class_names)
    images = _gather(folder, contents, class_names, ignored)
    filled = set(images.class_indices.tolist())
    empty = [name for index, name in enumerate(class_names) if index not in filled]
    if empty:
        raise UserError(
            f"each class folder in {folder} must contain images"
            f" ({' '.join(EXTENSIONS)}); {len(empty)} contain none:"
            f" {first_of(map(repr, empty))}"
        )
    return images


def _list_classes(
    folder: pathlib.Path,
    names: list[str],
    train_classes: tuple[str, ...],
    ignored: Counter[str],
) -> ImageList:
    """Returns the validation images in class folders."""
    contents = {name: _scan(folder / name, ignored) for name in names}
    own_classes = tuple(name for name, content in contents.items() if content.images)
    if not own_classes:
        raise UserError(f"{folder} must contain images; it contains none")
    class_names = train_classes or own_classes
    _check_known(folder, set(own_classes), class_names)
    return _gather(folder, contents.items(), class_names, ignored)


def _gather(
    folder: pathlib.Path,
    contents: Iterable[tuple[str, _Content]],
    class_names: tuple[str, ...],
    ignored: Counter[str],
) -> ImageList:
    """Returns the images of class folders, given by class name and content.

    `class_names` can lack the name of a folder without images.
    """
    class_index = {name: index for index, name in enumerate(class_names)}

    def entries() -> Iterator[Entry]:
        for class_name, content in contents:
            if content.folders:
                ignored[_FOLDER] += len(content.folders)
            path = str(folder / class_name)
            for filename in content.images:
                yield Entry(path, filename, class_index[class_name])

    return ImageList.of(class_names, entries())


def _list_flat(
    folder: pathlib.Path,
    filenames: list[str],
    labels_file: pathlib.Path,
    train_classes: tuple[str, ...],
) -> tuple[ImageList, tuple[str, ...]]:
    """Returns the validation images of a folder without class folders, and warnings."""
    published = [imagenet_labels.validation_synset(name) for name in filenames]
    warnings: tuple[str, ...] = ()
    labels = [synset for synset in published if synset is not None]
    own_classes = imagenet_labels.synsets()
    if len(labels) < len(filenames) or labels_file.exists():
        labels = _read_labels(folder, len(filenames), labels_file)
        own_classes = tuple(sorted(set(labels)))
        warnings = _wrong_labels(filenames, labels, published, labels_file)
    class_names = train_classes or own_classes
    _check_known(folder, set(labels), class_names)
    class_index = {name: index for index, name in enumerate(class_names)}
    images = ImageList.of(
        class_names,
        (
            Entry(str(folder), filename, class_index[label])
            for label, filename in sorted(zip(labels, filenames, strict=True))
        ),
    )
    return images, warnings


def _check_known(
    folder: pathlib.Path, names: set[str], class_names: tuple[str, ...]
) -> None:
    unknown = sorted(names.difference(class_names))
    if unknown:
        raise UserError(
            f"each class in {folder} must have a folder in"
            f" {folder.with_name(TRAIN_FOLDER)}; {len(unknown)} have none:"
            f" {first_of(map(repr, unknown))}"
        )


def _wrong_labels(
    filenames: list[str],
    labels: list[str],
    published: list[str | None],
    labels_file: pathlib.Path,
) -> tuple[str, ...]:
    """Returns a warning if the labels file contradicts ImageNet's published labels.

    It does if its lines are not in the order of the sorted file names.

    Raises:
        UserError: If the folder contains all of ImageNet's validation images.
    """
    triples = zip(filenames, labels, published, strict=True)
    wrong = [triple for triple in triples if triple[2] not in (None, triple[1])]
    if not wrong:
        return ()
    name, label, right_label = wrong[0]
    sentence = (
        f"{labels_file} contradicts ImageNet's published labels for {len(wrong):,} of"
        f" {len(filenames):,} images, for example {name}: {label} in the file,"
        f" {right_label} published"
    )
    num_published = len(published) - published.count(None)
    if num_published == imagenet_labels.NUM_VALIDATION:
        raise UserError(
            f"{sentence}. Delete the file: this program contains ImageNet's labels."
        )
    return (sentence,)


def _read_labels(
    folder: pathlib.Path, num_images: int, labels_file: pathlib.Path
) -> list[str]:
    try:
        labels = regular_file.read_lines(labels_file, _MAX_LABELS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{folder} has no class folders, so {labels_file} must contain the class of"
            f" each image, one per line; reading it failed: {error}"
        ) from error
    while labels and not labels[-1]:
        labels.pop()
    if len(labels) != num_images:
        raise UserError(
            f"{labels_file} must have one line for each of the {num_images} images"
            f" in {folder}; it has {len(labels)} lines"
        )
    if "" in labels:
        raise UserError(
            f"{labels_file} must have a class name on each line; line"
            f" {labels.index('') + 1} is empty"
        )
    return labels


def _scan(folder: str | os.PathLike[str], ignored: Counter[str]) -> _Content:
    """Returns the content of a folder, and adds to the numbers of ignored files."""
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
                ignored[extension.lower() or _NO_EXTENSION] += 1
    return _Content(sorted(folders), sorted(images))
