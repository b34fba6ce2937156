"""Where images come from: class folders, or ImageNet's archives as downloaded."""

import dataclasses
import os
import pathlib
from typing import Any

from data_prep.errors import UserError
from data_prep.sources import archives, folders, imagenet_labels
from data_prep.sources.image_list import ImageList


@dataclasses.dataclass(frozen=True)
class RawData:
    """What there is to convert.

    Attributes:
        class_names: A class's index here is its label, counted from 0.
        class_descriptions: Words for each class, such as "tench, Tinca tinca", or
            nothing.
        splits: The images of `train` and `validation`, of whichever there are.
        num_ignored_files: Files that are no images, going by their names, and
            whatever else lies where images should.
        description: Where the images came from; of types that JSON has.
        warnings: Sentences for the user, about what may not be as intended.
    """

    class_names: tuple[str, ...]
    class_descriptions: tuple[str, ...]
    splits: dict[str, ImageList]
    num_ignored_files: int
    description: dict[str, Any]
    warnings: tuple[str, ...] = ()


def open_raw_data(raw_data_dir: str | os.PathLike[str]) -> RawData:
    """Returns the images of a folder, without reading them.

    The folder holds either ImageNet's archives (`archives`) or folders of
    images (`folders`).

    Raises:
        UserError: If it holds neither or both, or what it holds is not as it must be.
        OSError: If a folder or an archive can't be read.
    """
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            f"raw_data_dir must be a folder of images or of ImageNet's archives, and"
            f" {root} is none"
        )
    archive_files = archives.find(root)
    image_folders = folders.find(root)
    if archive_files and image_folders:
        raise UserError(
            f"expected either archives or folders of images in {root};"
            f" there are {archive_files[0].name} and {image_folders[0].name}/. Take one"
            " kind away."
        )
    if not archive_files and not image_folders:
        expected = ", ".join(folders.VALIDATION_FOLDERS)
        raise UserError(
            f"expected a folder named train or {expected} in {root}, or"
            f" {archives.TRAIN_ARCHIVE} or {archives.VALIDATION_ARCHIVE};"
            " there is none"
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
        num_ignored_files=listing.num_ignored_files,
        description={"raw_data_dir": str(root)},
        warnings=listing.warnings,
    )


def _open_archives(root: pathlib.Path) -> RawData:
    splits, num_ignored_files = archives.list_images(root)
    incomplete = [
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
            f"{sentence} of ImageNet; the rest is not in the archive"
            for sentence in incomplete
        ),
    )
