"""The source of a conversion: class folders, or ImageNet's archives as downloaded."""

import dataclasses
import os
import pathlib
from typing import Any

from data_prep.errors import UserError
from data_prep.sources import archives, folders, imagenet_labels
from data_prep.sources.image_list import ImageList


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
    """Returns the images of a folder without reading them.

    The folder contains either ImageNet's archives (`archives`) or split folders
    (`folders`).

    Raises:
        UserError: If it contains neither or both, or if their content is unexpected.
        OSError: If a folder or an archive can't be read.
    """
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            f"raw_data_dir must be a folder with images or ImageNet's archives; {root}"
            " is not a folder"
        )
    archive_files = archives.find(root)
    image_folders = folders.find(root)
    if archive_files and image_folders:
        raise UserError(
            f"expected either archives or folders of images in {root};"
            f" there are {archive_files[0].name} and {image_folders[0].name}/. Remove"
            " one kind."
        )
    if not archive_files and not image_folders:
        expected = ", ".join(folders.VALIDATION_FOLDERS)
        raise UserError(
            f"expected a folder named train or {expected} in {root}, or"
            f" {archives.TRAIN_ARCHIVE} or {archives.VALIDATION_ARCHIVE};"
            " it contains none of them"
        )
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
    incomplete = [  # Don't reword: plan.json holds it, and must match to resume.
        f"{split} holds {len(images):,} of {expected:,} images"
        for split, images in splits.items()
        if len(images) != (expected := archives.NUM_IMAGES[split])
    ]
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
