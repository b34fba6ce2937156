"""Opens the source of a conversion: class folders, ImageNet's archives, or CIFAR-10."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable

from data_prep.sources import archives, cifar10, folders
from data_prep.sources.image_list import Source
from resnet.base.errors import UserError
from resnet.base.text import first_of


def open_raw_data(
    raw_data_dir: str | os.PathLike[str], validation_split: str | None = None
) -> Source:
    """Returns the images of a folder without reading them, except those of CIFAR-10.

    A warning names what lies beside them. Raises UserError if there are none or several
    kinds of sources, or if their content is unexpected.
    """
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            "raw_data_dir must be a folder with images or with the archives of ImageNet"
            f" or CIFAR-10; {root} is not a folder"
        )
    kinds: dict[str, Callable[[pathlib.Path], Source]] = {}
    if files := archives.find(root):
        kinds[files[0].name] = archives.read
    if split_folders := folders.find(root, validation_split):
        kinds[f"{split_folders[0].name}/"] = functools.partial(
            folders.read, validation_split=validation_split
        )
    if path := cifar10.find(root):
        kinds[path.name] = cifar10.read
    if len(kinds) > 1:
        raise UserError(
            f"expected either archives or folders of images in {root};"
            f" there are {' and '.join(kinds)}. Name a folder with one of them, or with"
            " a link to it."
        )
    if validation_split and (
        validation_split == folders.TRAIN_FOLDER
        or root / validation_split not in split_folders
    ):
        raise UserError(
            f"--validation_split={validation_split} must name a folder of images in"
            f" {root}, other than {folders.TRAIN_FOLDER}; there is no such folder"
        )
    for read in kinds.values():
        source = read(root)
        converted = {*files, *split_folders, path}
        warnings = (*source.warnings, *_warnings(root, converted))
        return dataclasses.replace(source, warnings=warnings)
    raise UserError(
        f"expected a folder named train or {', '.join(folders.VALIDATION_FOLDERS)} in"
        f" {root}, or {archives.TRAIN_ARCHIVE} or {archives.VALIDATION_ARCHIVE},"
        f" or {' or '.join(cifar10.ARCHIVES)}; it contains none of them"
    )


def _warnings(root: pathlib.Path, converted: set[pathlib.Path | None]) -> list[str]:
    """Returns a warning that counts and names what isn't converted, if there is any."""
    known = {folders.LABELS_FILE, *(path.name for path in converted if path)}
    others = sorted(n for n in os.listdir(root) if n[0] != "." and n not in known)
    if not others or root in converted:  # CIFAR-10 may be the folder itself.
        return []
    return [
        f"{len(others):,} of the files and folders in {root} are not converted:"
        f" {first_of(map(repr, others))}"
    ]
