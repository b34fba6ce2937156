"""The source of a conversion: class folders, ImageNet's archives, or CIFAR-10."""

import dataclasses
import os
import pathlib
from typing import Any

from data_prep.sources import archives, cifar10, folders, imagenet_labels
from data_prep.sources.image_list import ImageList
from resnet.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class RawData:
    """Labelled images to convert.

    Attributes:
        class_names: Class names; the label of a class, from 0, is its index.
        class_descriptions: Description of each class, such as "tench, Tinca tinca", or
            empty.
        splits: Images by split (`train`, `validation`); one of the two can be missing.
        num_ignored_files: Number of files and folders that were ignored.
        description: Origin of the images, as JSON values.
        warnings: Warnings to show to the user.
        ignored_kinds: Numbers of ignored files and folders by kind, such as ".tif", if
            they are known.
    """

    class_names: tuple[str, ...]
    class_descriptions: tuple[str, ...]
    splits: dict[str, ImageList]
    num_ignored_files: int
    description: dict[str, Any]
    warnings: tuple[str, ...] = ()
    ignored_kinds: dict[str, int] = dataclasses.field(default_factory=dict)


def open_raw_data(raw_data_dir: str | os.PathLike[str]) -> RawData:
    """Returns the images of a folder without reading them, except those of CIFAR-10.

    The folder contains either ImageNet's archives (`archives`), split folders
    (`folders`) or CIFAR-10 (`cifar10`).

    Raises:
        UserError: If it contains none or several of them, or if their content is
            unexpected.
        OSError: If a folder or an archive can't be read.
    """
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            "raw_data_dir must be a folder with images or with the archives of ImageNet"
            f" or CIFAR-10; {root} is not a folder"
        )
    archive_files = archives.find(root)
    image_folders = folders.find(root)
    cifar10_path = cifar10.find(root)
    kinds = [f"{folder.name}/" for folder in image_folders[:1]]
    kinds[:0] = [archive.name for archive in archive_files[:1]]
    kinds += [cifar10_path.name] if cifar10_path else []
    if len(kinds) > 1:
        raise UserError(
            f"expected either archives or folders of images in {root};"
            f" there are {' and '.join(kinds)}. Remove all but one kind."
        )
    if not kinds:
        expected = ", ".join(folders.VALIDATION_FOLDERS)
        raise UserError(
            f"expected a folder named train or {expected} in {root}, or"
            f" {archives.TRAIN_ARCHIVE} or {archives.VALIDATION_ARCHIVE},"
            f" or {' or '.join(cifar10.ARCHIVES)}; it contains none of them"
        )
    if cifar10_path:
        return _open_cifar10(root, cifar10_path)
    if archive_files:
        return _open_archives(root)
    return _open_folders(root)


def _open_folders(root: pathlib.Path) -> RawData:
    listing = folders.list_images(root)
    return RawData(
        class_names=listing.class_names,
        class_descriptions=imagenet_labels.describe(listing.class_names),
        splits=listing.splits,
        num_ignored_files=listing.ignored.total(),
        ignored_kinds=dict(sorted(listing.ignored.items())),
        description={"raw_data_dir": str(root)},
        warnings=listing.warnings,
    )


def _open_archives(root: pathlib.Path) -> RawData:
    splits, num_ignored_files = archives.list_images(root)
    incomplete = _incomplete(splits, archives.NUM_IMAGES)
    description: dict[str, Any] = {"raw_data_dir": str(root), "archives": True}
    if incomplete:
        description["incomplete"] = incomplete
    return RawData(
        class_names=imagenet_labels.synsets(),
        class_descriptions=imagenet_labels.words(),
        splits=splits,
        num_ignored_files=num_ignored_files,
        description=description,
        warnings=tuple(
            f"{sentence} of ImageNet; the archive lacks the others"
            for sentence in incomplete
        ),
    )


def _open_cifar10(root: pathlib.Path, path: pathlib.Path) -> RawData:
    class_names, splits = cifar10.read(path)
    incomplete = _incomplete(splits, cifar10.NUM_IMAGES)
    return RawData(
        class_names=class_names,
        class_descriptions=(),
        splits=splits,
        num_ignored_files=0,
        description={"raw_data_dir": str(root), "cifar10": path.name},
        warnings=tuple(f"{sentence} of CIFAR-10" for sentence in incomplete),
    )


def _incomplete(splits: dict[str, ImageList], expected: dict[str, int]) -> list[str]:
    """Returns a clause for each split that doesn't have the expected number of images.

    It must stay as it is: plan.json can contain it, and must match to resume.
    """
    return [
        f"{split} holds {len(images):,} of {expected[split]:,} images"
        for split, images in splits.items()
        if len(images) != expected[split]
    ]
