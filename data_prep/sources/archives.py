"""Lists the images in ImageNet's tar archives as downloaded, without unpacking them.

ILSVRC2012_img_train.tar    n01440764.tar and so on, each with n01440764_10026.JPEG ...
ILSVRC2012_img_val.tar      ILSVRC2012_val_00000001.JPEG ..., perhaps in a folder

The classes are always ImageNet's 1,000, in the published label order.
"""

import dataclasses
import itertools
import os
import pathlib
import posixpath
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from data_prep.records import schema
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import ImageList, ImageListBuilder
from resnet.base.errors import UserError

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VALIDATION_ARCHIVE = "ILSVRC2012_img_val.tar"
NUM_IMAGES = {  # In the complete archives.
    schema.TRAIN: imagenet_labels.NUM_TRAIN,
    schema.VALIDATION: imagenet_labels.NUM_VALIDATION,
}
_EXTENSIONS = (".jpeg", ".jpg")  # In any case.


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A file in an archive.

    Attributes:
        filename: File name without the folder.
        offset: Byte offset of the content in the archive.
        num_bytes: Size of the content in bytes.
    """

    filename: str
    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Byte offset of the content's end in the archive."""
        return self.offset + self.num_bytes

    @property
    def is_image(self) -> bool:
        """Whether the file name has the extension of an image."""
        return self.filename.lower().endswith(_EXTENSIONS)


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the archives in `root`, the training archive first."""
    names = (TRAIN_ARCHIVE, VALIDATION_ARCHIVE)
    return [root / name for name in names if (root / name).is_file()]


def list_images(root: pathlib.Path) -> tuple[dict[str, ImageList], int]:
    """Returns the images of the archives in `root`; reads only the tar headers.

    Args:
        root: Folder in which `find` finds at least one archive.

    Returns:
        The images by split (`train`, `validation`), sorted by class and file name, and
        the number of files without the extension of an image.

    Raises:
        UserError: If an archive is truncated or corrupt or has unexpected content.
        OSError: If an archive can't be read.
    """
    splits = {}
    num_ignored_files = 0
    for archive in find(root):
        if archive.name == TRAIN_ARCHIVE:
            split = schema.TRAIN
            images, num_ignored = _list_train(archive)
        else:
            split = schema.VALIDATION
            images, num_ignored = _list_validation(archive)
        if not len(images):
            raise UserError(
                f"{archive} must contain ImageNet's {split} images; it contains none."
                " Copy the archive again."
            )
        splits[split] = images
        num_ignored_files += num_ignored
    return splits, num_ignored_files


def _list_train(archive: pathlib.Path) -> tuple[ImageList, int]:
    builder = ImageListBuilder(imagenet_labels.synsets())
    known = frozenset(imagenet_labels.synsets())
    num_ignored = 0
    inner_archives: dict[str, _Member] = {}
    with open(archive, "rb", buffering=0) as file:
        for member in _members(file, str(archive), 0, os.path.getsize(archive)):
            synset, extension = os.path.splitext(member.filename)
            if extension != ".tar":
                num_ignored += 1
                continue
            if synset not in known:
                raise UserError(
                    f"{archive} must contain one archive per ImageNet class, such as"
                    f" n01440764.tar; it contains {member.filename!r}. Use the"
                    f" {TRAIN_ARCHIVE} of ILSVRC 2012."
                )
            if synset in inner_archives:
                raise UserError(_twice(str(archive), member.filename))
            inner_archives[synset] = member
        for class_index, synset in enumerate(imagenet_labels.synsets()):
            if synset not in inner_archives:
                continue
            inner = inner_archives[synset]
            where = f"{archive}: {inner.filename}"
            members = list(_members(file, where, inner.offset, inner.end))
            images = sorted(
                (m for m in members if m.is_image), key=lambda m: m.filename
            )
            _check_names(where, [image.filename for image in images])
            num_ignored += len(members) - len(images)
            for image in images:
                builder.add_span(
                    str(archive),
                    image.filename,
                    class_index,
                    image.offset,
                    image.num_bytes,
                )
    return builder.build(), num_ignored


def _list_validation(archive: pathlib.Path) -> tuple[ImageList, int]:
    class_index = {name: i for i, name in enumerate(imagenet_labels.synsets())}
    num_ignored = 0
    found: list[tuple[int, str, _Member]] = []
    with open(archive, "rb", buffering=0) as file:
        for member in _members(file, str(archive), 0, os.path.getsize(archive)):
            if not member.is_image:
                num_ignored += 1
                continue
            synset = imagenet_labels.validation_synset(member.filename)
            if synset is None:
                raise UserError(
                    f"the images of {archive} must be named"
                    " ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG; one"
                    f" is named {member.filename!r}. Use the {VALIDATION_ARCHIVE} of"
                    " ILSVRC 2012."
                )
            found.append((class_index[synset], member.filename, member))
    found.sort(key=lambda entry: entry[:2])
    _check_names(str(archive), [filename for _, filename, _ in found])
    builder = ImageListBuilder(imagenet_labels.synsets())
    for index, filename, member in found:
        builder.add_span(str(archive), filename, index, member.offset, member.num_bytes)
    return builder.build(), num_ignored


def _members(file: BinaryIO, name: str, start: int, end: int) -> Iterator[_Member]:
    """Yields the files in a tar archive, without folders, links and hidden files.

    Args:
        file: Open file that is or contains the archive.
        name: Name of the archive, for messages.
        start: Byte offset of the archive in `file`.
        end: Byte offset of the archive's end in `file`.

    Raises:
        UserError: If a member extends past the end, a header is corrupt, or the
            archive's end marker is missing.
    """
    file.seek(start)
    if file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE):
        return  # An empty archive, on which Python 3.10's tarfile fails.
    file.seek(start)
    try:
        archive = tarfile.TarFile(fileobj=file)  # Starts at the current position.
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # Free the memory.
            if info.offset >= end:
                return
            if info.offset_data + info.size > end:
                raise UserError(
                    f"{name} is truncated: its member {info.name} needs"
                    f" {info.offset_data + info.size - end:,} more bytes. Copy the"
                    " archive again."
                )
            filename = posixpath.basename(info.name)
            if info.isreg() and not info.issparse() and not filename.startswith("."):
                yield _Member(filename, info.offset_data, info.size)
        last = archive.offset
    except tarfile.TarError as error:
        raise UserError(
            f"{name} is not a readable tar archive: {error}. Copy it again."
        ) from error
    # At a bad header and at the file's end, tarfile stops without an error.
    file.seek(last)
    marker = file.read(tarfile.BLOCKSIZE)
    may_lack_marker = start > 0 and last >= end  # At the end of another archive.
    if not may_lack_marker and marker != bytes(tarfile.BLOCKSIZE):
        raise UserError(
            f"{name} is truncated or corrupt: at byte {last:,} there is neither a"
            " member nor the archive's end marker. Copy the archive again."
        )


def _check_names(where: str, filenames: list[str]) -> None:
    """Raises UserError if a sorted list contains a name twice."""
    for first, second in itertools.pairwise(filenames):
        if first == second:
            raise UserError(_twice(where, first))


def _twice(where: str, filename: str) -> str:
    return (
        f"{where} must contain each file once; it contains {filename!r} twice. Copy"
        " the archive again."
    )
