"""Opens the source of a conversion: folders of images, or files that hold many."""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Callable

from data_prep.records.manifest import VALIDATION
from data_prep.sources import (
    archives,
    cifar10,
    folders,
    label_table,
    parquet,
    webdataset,
)
from data_prep.sources.image_list import Source
from resnet.base.errors import UserError
from resnet.base.text import first_of


def open_raw_data(
    raw_data_dir: str | os.PathLike[str] | None,
    validation_split: str | None = None,
    labels: str | None = None,
    group_column: str | None = None,
    multi_label: bool = False,
) -> Source:
    """Returns the images of a folder without reading them, except those of CIFAR-10.

    `labels` is a table of them, whose folder is the default; its `group_column` tells
    which images are of one patient, part or the like, `multi_label` that an image may
    have several labels. Otherwise a warning names what lies beside them. Raises
    UserError if there are none or several kinds of sources, or if their content is
    unexpected.
    """
    if labels:
        table = pathlib.Path(os.path.abspath(labels))
        folder = os.path.abspath(raw_data_dir or table.parent)
        root = pathlib.Path(folder)
        return label_table.read(
            table, root, validation_split, group_column, multi_label
        )
    assert raw_data_dir  # noqa: S101 - One of both is set.
    root = pathlib.Path(os.path.abspath(raw_data_dir))
    if not root.is_dir():
        raise UserError(
            "--raw_data_dir must be a folder with images or with the archives of"
            f" ImageNet or CIFAR-10; {root}"
            f" {'is not a folder' if root.exists() else 'does not exist'}. Name that"
            " folder, after unpacking it if it is a zip file."
        )
    kinds: dict[str, Callable[[pathlib.Path], Source]] = {}
    if files := archives.find(root):
        kinds[files[0].name] = archives.read
    if path := cifar10.find(root):
        kinds[path.name] = cifar10.read
    containers: list[pathlib.Path] = []
    if not kinds and not folders.hold_images(root, validation_split):
        for module in (webdataset, parquet):
            if paths := module.find(root, validation_split):
                kinds[paths[0].name] = functools.partial(
                    module.read, validation_split=validation_split
                )
                containers += [*paths, root / webdataset.CLASS_NAMES]
    image_folders: list[pathlib.Path] = []
    if not containers:
        image_folders = folders.find(root, validation_split, with_classes=not kinds)
    if image_folders:
        kinds[f"{image_folders[0].name}/"] = functools.partial(
            folders.read, validation_split=validation_split
        )
    if len(kinds) > 1:
        raise UserError(
            f"expected one kind of archives, Parquet files or folders of images in"
            f" {root}; there are {' and '.join(kinds)}. Name a folder with one of them,"
            " or with a link to it."
        )
    for read in kinds.values():
        source = read(root)
        converted = {*files, *image_folders, *containers, path}
        warnings = (*source.warnings, *_warnings(root, converted))
        return dataclasses.replace(source, warnings=warnings)
    advice = folders.advice(root) or (
        f" Nor is there a folder named {', '.join(folders.SPLIT_NAMES[VALIDATION])}, or"
        f" {archives.TRAIN_ARCHIVE}, {archives.VALIDATION_ARCHIVE},"
        f" {', '.join(cifar10.ARCHIVES)}, *.tar or *.parquet: name another folder."
    )
    raise UserError(
        f"expected images in train/<class>/ or <class>/ of at least two classes in"
        f" {root}; there are none.{advice}"
    )


def _warnings(root: pathlib.Path, converted: set[pathlib.Path | None]) -> list[str]:
    """Returns a warning that counts and names what isn't converted, if there is any."""
    names = {path.relative_to(root).parts[:1] for path in converted if path}
    known = {"synset_labels.txt", *itertools.chain.from_iterable(names)}
    others = sorted(n for n in os.listdir(root) if n[0] != "." and n not in known)
    if not others or root in converted:  # CIFAR-10 may be the folder itself.
        return []
    return [
        f"not converted of the files and folders in {root}, {len(others):,}:"
        f" {first_of(map(repr, others))}"
    ]
