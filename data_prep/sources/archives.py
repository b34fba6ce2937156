"""Lists the images in ImageNet's tar archives as downloaded, without unpacking them.

ILSVRC2012_img_train.tar    n01440764.tar and so on, each with n01440764_10026.JPEG ...
ILSVRC2012_img_val.tar      ILSVRC2012_val_00000001.JPEG ..., perhaps in a folder

The classes are always ImageNet's 1,000, in the published label order.
"""

import os
import pathlib
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources import imagenet_labels, tar_members
from data_prep.sources.image_list import Entry, ImageList, Source, missing_images
from data_prep.sources.tar_members import Member
from resnet.base.errors import UserError

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VALIDATION_ARCHIVE = "ILSVRC2012_img_val.tar"
NUM_IMAGES = {  # In the complete archives.
    TRAIN: imagenet_labels.NUM_TRAIN,
    VALIDATION: imagenet_labels.NUM_VALIDATION,
}
_EXTENSIONS = (".jpeg", ".jpg")  # In any case.
_NO_CLASS = -1


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the archives in `root`, the training archive first."""
    names = (TRAIN_ARCHIVE, VALIDATION_ARCHIVE)
    return [root / name for name in names if (root / name).is_file()]


def read(root: pathlib.Path) -> Source:
    """Returns the images of the archives that `find` finds; reads only the tar headers.

    The images of a split are sorted by class and file name. Raises UserError if an
    archive is truncated or corrupt or has unexpected content.
    """
    splits = {}
    ignored: list[Entry] = []
    for archive in find(root):
        split, images_in = VALIDATION, _validation_images
        if archive.name == TRAIN_ARCHIVE:
            split, images_in = TRAIN, _train_images
        with open(archive, "rb", buffering=0) as file:
            images = images_in(archive, file, ignored)
            splits[split] = ImageList.of(imagenet_labels.synsets(), images)
        if not len(splits[split]):
            raise UserError(
                f"{archive} must contain ImageNet's {split} images; it contains none."
                " Copy the archive again."
            )
    description: dict[str, Any] = {"raw_data_dir": str(root), "archives": True}
    if incomplete := missing_images(splits, NUM_IMAGES):
        description["incomplete"] = incomplete
    return Source(
        class_names=imagenet_labels.synsets(),
        splits=splits,
        num_ignored_files=len(ignored),
        description=description,
        warnings=tuple(
            f"{clause} of ImageNet; the archive lacks the others"
            for clause in incomplete
        ),
    )


def _train_images(
    archive: pathlib.Path, file: BinaryIO, ignored: list[Entry]
) -> Iterator[Entry]:
    """Yields the images of the archives in an archive, and lists other files."""
    class_index = {name: index for index, name in enumerate(imagenet_labels.synsets())}
    inner_archives = []
    for member in _files(tar_members.members(file, str(archive)), str(archive)):
        synset, extension = os.path.splitext(member.filename)
        if extension != ".tar":
            ignored.append(member)
            continue
        if synset not in class_index:
            raise UserError(
                f"{archive} must contain one archive per ImageNet class, such as"
                f" n01440764.tar; it contains {member.filename!r}. Use the"
                f" {TRAIN_ARCHIVE} of ILSVRC 2012."
            )
        inner_archives.append(member._replace(class_index=class_index[synset]))
    for inner in _each_once(str(archive), inner_archives):
        where = f"{archive}: {inner.filename}"
        images: list[Entry] = []
        end = inner.offset + inner.num_bytes
        members = tar_members.members(file, where, inner.offset, end)
        for member in _files(members, where):
            of_class = member._replace(path=inner.path, class_index=inner.class_index)
            (images if _is_image(member) else ignored).append(of_class)
        yield from _each_once(where, images)


def _validation_images(
    archive: pathlib.Path, file: BinaryIO, ignored: list[Entry]
) -> Iterator[Entry]:
    """Yields the images of an archive, and lists other files."""
    class_index = {name: index for index, name in enumerate(imagenet_labels.synsets())}
    images = []
    for member in _files(tar_members.members(file, str(archive)), str(archive)):
        if not _is_image(member):
            ignored.append(member)
            continue
        synset = imagenet_labels.validation_synset(member.filename)
        if synset is None:
            raise UserError(
                f"the images of {archive} must be named"
                " ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG; one"
                f" is named {member.filename!r}. Use the {VALIDATION_ARCHIVE} of"
                " ILSVRC 2012."
            )
        images.append(member._replace(class_index=class_index[synset]))
    yield from _each_once(str(archive), images)


def _is_image(member: Entry) -> bool:
    return member.filename.lower().endswith(_EXTENSIONS)


def _each_once(where: str, members: list[Entry]) -> Iterator[Entry]:
    """Yields the members sorted by class and name, which must be there once."""
    previous = ""
    for member in sorted(members, key=lambda m: (m.class_index, m.filename)):
        if member.filename == previous:
            raise UserError(
                f"{where} must contain each file once; it contains {previous!r} twice."
                " Copy the archive again."
            )
        previous = member.filename
        yield member


def _files(members: Iterable[Member], where: str) -> Iterator[Entry]:
    """Yields those that aren't hidden, without a class, with `where` as their path."""
    for member in members:
        filename = posixpath.basename(member.name)
        if not filename.startswith("."):
            yield Entry(where, filename, _NO_CLASS, member.offset, member.num_bytes)
