"""Opens the source of a conversion: class folders, ImageNet's archives, or CIFAR-10."""

import os
import pathlib

from data_prep.sources import archives, cifar10, folders
from data_prep.sources.image_list import Source
from resnet.base.errors import UserError


def open_raw_data(raw_data_dir: str | os.PathLike[str]) -> Source:
    """Returns the images of a folder without reading them, except those of CIFAR-10.

    Raises UserError if it contains none or several kinds of sources, or if their
    content is unexpected.
    """
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            "raw_data_dir must be a folder with images or with the archives of ImageNet"
            f" or CIFAR-10; {root} is not a folder"
        )
    kinds = {}
    if files := archives.find(root):
        kinds[files[0].name] = archives.read
    if split_folders := folders.find(root):
        kinds[f"{split_folders[0].name}/"] = folders.read
    if path := cifar10.find(root):
        kinds[path.name] = cifar10.read
    if len(kinds) > 1:
        raise UserError(
            f"expected either archives or folders of images in {root};"
            f" there are {' and '.join(kinds)}. Remove all but one kind."
        )
    for read in kinds.values():
        return read(root)
    raise UserError(
        f"expected a folder named train or {', '.join(folders.VALIDATION_FOLDERS)} in"
        f" {root}, or {archives.TRAIN_ARCHIVE} or {archives.VALIDATION_ARCHIVE},"
        f" or {' or '.join(cifar10.ARCHIVES)}; it contains none of them"
    )
