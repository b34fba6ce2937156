"""Finds the records and the labels of a record file, without reading the images."""

import dataclasses
import mmap
import os

import numpy as np
import numpy.typing as npt

from data_prep.errors import UserError
from data_prep.records import tfrecord_format
from data_prep.records.tfrecord_format import FOOTER_BYTES, HEADER_BYTES, Feature

_IMAGE_STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class ScannedFile:
    """One record file.

    Attributes:
        num_bytes: Size of the file.
        offsets: Where each record begins, in bytes, `[num_records]`, int64.
        labels: Of each record, as it stands there, `[num_records]`, int64.
        class_names: By label; empty if the records hold no names.
        image_formats: Which of the formats "jpeg" and "png" the images have, with the
            offset of the first such record.
    """

    num_bytes: int
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    class_names: dict[int, str]
    image_formats: dict[str, int]


def scan_file(
    path: str | os.PathLike[str],
    image_key: str,
    label_key: str,
    name_key: str | None = None,
) -> ScannedFile:
    """Returns where the records of a file lie, with their labels.

    The checksums of the lengths are verified, those of the data are not: this looks at
    some hundred bytes of each record. `verify` reads all.

    Args:
        path: The file.
        image_key: Feature that holds the image.
        label_key: Feature that holds the label.
        name_key: Feature that holds the class's name, where a record has it.

    Raises:
        UserError: If a record is damaged, or is no labelled JPEG or PNG image.
    """
    offsets: list[int] = []
    labels: list[int] = []
    names: dict[int, memoryview] = {}
    image_formats: dict[str, int] = {}
    wanted = {image_key, label_key, *([name_key] if name_key else [])}
    content = _map(path)
    offset = 0
    try:
        while offset < len(content):
            data = _record_unchecked(content, offset)
            features = tfrecord_format.parse_example(data, wanted)
            label = the_integer(features, label_key)
            image_format = image_format_of(the_bytes(features, image_key))
            image_formats.setdefault(image_format, offset)
            if name_key is not None and name_key in features:
                name = the_bytes(features, name_key)
                if name and names.setdefault(label, name) != name:
                    raise ValueError(
                        f"the class of label {label} is called {_text(name)!r} there"
                        f" and {_text(names[label])!r} before"
                    )
            offsets.append(offset)
            labels.append(label)
            offset += HEADER_BYTES + len(data) + FOOTER_BYTES
    except ValueError as error:
        raise UserError(
            f"the record at byte {offset:,} of {path} can't be used: {error}. Copy or"
            " make the record set again."
        ) from error
    return ScannedFile(
        num_bytes=len(content),
        offsets=np.array(offsets, np.int64),
        labels=np.array(labels, np.int64),
        class_names={label: _text(name) for label, name in names.items()},
        image_formats=image_formats,
    )


def the_integer(features: dict[str, Feature], name: str) -> int:
    """Returns the only value of a feature.

    Raises:
        ValueError: If there is no such feature, or if it isn't one integer.
    """
    value = _only_value(features, name)
    if not isinstance(value, int):
        raise ValueError(f"its feature {name} is not an integer")
    return value


def the_bytes(features: dict[str, Feature], name: str) -> memoryview:
    """Returns the only value of a feature.

    Raises:
        ValueError: If there is no such feature, or if it isn't one string of bytes.
    """
    value = _only_value(features, name)
    if not isinstance(value, memoryview):
        raise ValueError(f"its feature {name} is not a string of bytes")
    return value


def image_format_of(encoded: memoryview) -> str:
    """Returns "jpeg" or "png", told from an image's first bytes.

    Raises:
        ValueError: If it is neither.
    """
    start = bytes(encoded[:8])
    for image_format, expected in _IMAGE_STARTS.items():
        if start.startswith(expected):
            return image_format
    raise ValueError(f"its image is no JPEG and no PNG, it begins with {start!r}")


def _only_value(features: dict[str, Feature], name: str) -> memoryview | int | float:
    values = features.get(name)
    if values is None:
        raise ValueError(f"it has no feature {name}")
    if len(values) != 1:
        raise ValueError(f"its feature {name} has {len(values)} values instead of one")
    return values[0]


def _record_unchecked(content: memoryview, offset: int) -> memoryview:
    """Returns a record's data, of which only the length is verified."""
    begin = offset + HEADER_BYTES
    end = begin + tfrecord_format.record_length(content[offset:begin], offset)
    if end + FOOTER_BYTES > len(content):
        raise ValueError(
            f"it is cut short, {len(content) - offset:,} bytes are there of its"
            f" {end + FOOTER_BYTES - offset:,}"
        )
    return content[begin:end]


def _map(path: str | os.PathLike[str]) -> memoryview:
    """Returns a file's content without reading it yet.

    The kernel's read-ahead stays on: from most disks, to stream a file that isn't in
    memory is faster than to fetch some page of each of its records.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror})") from error


def _text(name: memoryview) -> str:
    """Returns a class's name, as `tfrecord_format` encodes it."""
    return str(name, "utf-8", "surrogateescape")
