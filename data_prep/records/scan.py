"""Finds the offsets and labels of a file's records without reading the images."""

import dataclasses
import mmap
import os

import numpy as np
import numpy.typing as npt

from data_prep.records import schema, tf_example, tfrecord
from data_prep.records.tf_example import Feature
from data_prep.records.tfrecord import FOOTER_BYTES, HEADER_BYTES
from resnet.base import regular_file
from resnet.base.errors import UserError

_GZIP_START = b"\x1f\x8b\x08"
_IMAGE_STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class ScannedFile:
    """The records of one file.

    Attributes:
        num_bytes: Size of the file in bytes.
        offsets: Byte offset of each record, `[num_records]`, int64.
        labels: Label of each record as stored, `[num_records]`, int64.
        class_names: Class name by label; empty if the records contain no names.
        image_formats: Byte offset of the first record of each image format ("jpeg",
            "png") that occurs.
        is_oriented: Whether records say that --apply_exif_orientation was on.
    """

    num_bytes: int
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    class_names: dict[int, str]
    image_formats: dict[str, int]
    is_oriented: bool


def scan_file(
    path: str | os.PathLike[str],
    image_key: str,
    label_key: str,
    name_key: str | None = None,
) -> ScannedFile:
    """Returns the offsets and labels of a file's records.

    It reads a few hundred bytes of each record, and verifies the checksum of the length
    but not that of the data; `verification` reads all bytes.

    Args:
        path: Path of the record file.
        image_key: Name of the feature with the encoded image.
        label_key: Name of the feature with the label.
        name_key: Name of the feature with the class name; records may lack it.

    Raises:
        UserError: If a record is corrupt or has no label or no JPEG or PNG image.
    """
    offsets: list[int] = []
    labels: list[int] = []
    names: dict[int, memoryview] = {}
    image_formats: dict[str, int] = {}
    is_oriented = False
    wanted = {image_key, label_key, schema.IS_ORIENTED}
    wanted |= {name_key} if name_key else set()
    content = _map(path)
    offset = 0
    try:
        while offset < len(content):
            data = _record_unchecked(content, offset)
            features = tf_example.parse_example(data, wanted)
            label = integer_of(features, label_key)
            image_format = image_format_of(bytes_of(features, image_key))
            image_formats.setdefault(image_format, offset)
            is_oriented |= schema.IS_ORIENTED in features
            if name_key is not None and name_key in features:
                name = bytes_of(features, name_key)
                if name and names.setdefault(label, name) != name:
                    raise ValueError(
                        f"its class name for label {label} is {decode_name(name)!r};"
                        f" an earlier record has {decode_name(names[label])!r}"
                    )
            offsets.append(offset)
            labels.append(label)
            offset += HEADER_BYTES + len(data) + FOOTER_BYTES
    except ValueError as error:
        if not offsets and bytes(content[: len(_GZIP_START)]) == _GZIP_START:
            raise UserError(
                f"{path} must contain plain records; it is compressed with gzip."
                " Decompress all record files of the set (gunzip) under their names."
            ) from error
        raise UserError(
            f"the record at byte {offset:,} of {path} can't be used: {error}. Copy or"
            " create the record set again."
        ) from error
    return ScannedFile(
        num_bytes=len(content),
        offsets=np.array(offsets, np.int64),
        labels=np.array(labels, np.int64),
        class_names={label: decode_name(name) for label, name in names.items()},
        image_formats=image_formats,
        is_oriented=is_oriented,
    )


def integer_of(features: dict[str, Feature], name: str) -> int:
    """Returns the value of an integer feature.

    Raises:
        ValueError: If the feature is missing or isn't exactly one integer.
    """
    value = _only_value(features, name)
    if not isinstance(value, int):
        raise ValueError(f"its feature {name} is not an integer")
    return value


def bytes_of(features: dict[str, Feature], name: str) -> memoryview:
    """Returns the value of a bytes feature.

    Raises:
        ValueError: If the feature is missing or isn't exactly one string of bytes.
    """
    value = _only_value(features, name)
    if not isinstance(value, memoryview):
        raise ValueError(f"its feature {name} is not a string of bytes")
    return value


def image_format_of(encoded: memoryview) -> str:
    """Returns the format of an image, "jpeg" or "png", by its first bytes.

    Raises:
        ValueError: If the image has neither format.
    """
    start = bytes(encoded[:8])
    for image_format, expected in _IMAGE_STARTS.items():
        if start.startswith(expected):
            return image_format
    raise ValueError(f"its image is neither JPEG nor PNG; it starts with {start!r}")


def _only_value(features: dict[str, Feature], name: str) -> memoryview | int | float:
    values = features.get(name)
    if values is None:
        raise ValueError(f"it has no feature {name}")
    if len(values) != 1:
        raise ValueError(f"its feature {name} has {len(values)} values; expected one")
    return values[0]


def _record_unchecked(content: memoryview, offset: int) -> memoryview:
    """Returns a record's data; only the checksum of its length is verified."""
    begin = offset + HEADER_BYTES
    end = begin + tfrecord.record_length(content[offset:begin], offset)
    if end + FOOTER_BYTES > len(content):
        raise ValueError(
            f"it is truncated: {len(content) - offset:,} of its"
            f" {end + FOOTER_BYTES - offset:,} bytes are there"
        )
    return content[begin:end]


def _map(path: str | os.PathLike[str]) -> memoryview:
    """Returns a memory map of a file.

    The kernel's read-ahead stays on: most disks stream a whole file faster than they
    read single pages of each of its records.
    """
    try:
        with regular_file.open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror})") from error


def decode_name(name: memoryview) -> str:
    """Returns a class name, decoded as `schema` encodes it."""
    return str(name, "utf-8", "surrogateescape")
