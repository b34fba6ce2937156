"""What a record file is called, what is in a record, and how its bytes are laid out.

Names, feature keys and labels are those of the TPU ResNet scripts (tensorflow/tpu,
`tools/datasets/imagenet_to_gcs.py`), so their record sets and ours are the same kind.
TensorFlow is not needed to write and to read them.
"""

import mmap
import struct
from collections.abc import Callable, Container, Iterator, Mapping

import google_crc32c

TRAIN = "train"
VALIDATION = "validation"

ENCODED = "image/encoded"  # The JPEG file, bytes.
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
COLORSPACE = "image/colorspace"
FORMAT = "image/format"
FILENAME = "image/filename"  # Without its folder.
LABEL = "image/class/label"  # FIRST_LABEL + index of the class.
SYNSET = "image/class/synset"  # Name of the class.

# Lies in the root of a set while it is being written; removed when it is finished.
CONVERSION_FOLDER = ".conversion"

FIRST_LABEL = 1  # As in the TPU scripts, where 0 is kept for "background".

HEADER_BYTES = 12  # Length of the data, and the length's checksum.
FOOTER_BYTES = 4  # The data's checksum.
_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")

# Of the protobuf wire format, where a field's tag is number << 3 | wire type.
_VARINT = 0
_FIXED64 = 1
_LENGTH_DELIMITED = 2
_FIXED32 = 5

Feature = list[memoryview] | list[int] | list[float]


class CorruptRecord(ValueError):
    """A record whose bytes are not those that were written.

    Attributes:
        offset: Where the record begins, in bytes.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns a record file's name, `train-00000-of-01024`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}"


def image_example(
    encoded: bytes,
    *,
    height: int,
    width: int,
    label: int,
    class_name: str,
    filename: str,
) -> bytes:
    """Returns one labelled image as a serialized `tf.train.Example`.

    Channels and colour space are written as 3 and RGB for a grey image too, as the
    TPU scripts do: they say what a reader decodes to.

    Args:
        encoded: A JPEG file's content.
        height: In pixels.
        width: In pixels.
        label: `FIRST_LABEL` + index of the class.
        class_name: Synset, or whatever the class folder is called.
        filename: Name of the image's file, without its folder.
    """
    return encode_example(
        {
            ENCODED: encoded,
            HEIGHT: height,
            WIDTH: width,
            CHANNELS: 3,
            COLORSPACE: b"RGB",
            FORMAT: b"JPEG",
            FILENAME: _file_system_bytes(filename),
            LABEL: label,
            SYNSET: _file_system_bytes(class_name),
        }
    )


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """Returns a serialized `tf.train.Example` with one value in each feature.

    The same features give the same bytes: they are in the order of their names.

    Args:
        features: Value by name; bytes become a `bytes_list`, integers (64 bits, signed)
            an `int64_list`.
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _encode_feature(value)))
        for name, value in sorted(features.items())
    )
    return _field(1, entries)


def parse_example(
    data: bytes | memoryview, names: Container[str] | None = None
) -> dict[str, Feature]:
    """Returns the features of a serialized `tf.train.Example`, by name.

    The values of a feature are slices of `data` (bytes, not copied), integers or
    floats; a feature of no kind has none. Unknown fields are skipped.

    Args:
        data: The serialized example.
        names: Features that are wanted; None: all.

    Raises:
        ValueError: If `data` is no serialized example.
    """
    view = memoryview(data)
    features: dict[str, Feature] = {}
    for number, kind, begin, end in _fields(view, 0, len(view)):
        if number == 1 and kind == _LENGTH_DELIMITED:
            _parse_features(view, begin, end, names, features)
    return features


def _parse_features(
    view: memoryview,
    begin: int,
    end: int,
    names: Container[str] | None,
    features: dict[str, Feature],
) -> None:
    """Adds the wanted entries of a map from names to features."""
    for number, kind, start, stop in _fields(view, begin, end):
        if number == 1 and kind == _LENGTH_DELIMITED:
            _parse_entry(view, start, stop, names, features)


def _parse_entry(
    view: memoryview,
    begin: int,
    end: int,
    names: Container[str] | None,
    features: dict[str, Feature],
) -> None:
    name = ""
    value: tuple[int, int] | None = None
    for number, kind, start, stop in _fields(view, begin, end):
        if number == 1 and kind == _LENGTH_DELIMITED:
            name = str(view[start:stop], "utf-8")
            if names is not None and name not in names:
                return  # Most features aren't wanted, so this saves much time.
        elif number == 2 and kind == _LENGTH_DELIMITED:
            value = start, stop
    if names is None or name in names:  # Also a name that isn't there, "".
        features[name] = _parse_feature(view, *value) if value else []


def _parse_feature(view: memoryview, begin: int, end: int) -> Feature:
    feature: Feature = []
    for number, kind, start, stop in _fields(view, begin, end):
        if kind == _LENGTH_DELIMITED and number in _PARSERS:
            feature = _PARSERS[number](view, start, stop)
    return feature


def _parse_bytes_list(view: memoryview, begin: int, end: int) -> list[memoryview]:
    return [
        view[start:stop]
        for number, kind, start, stop in _fields(view, begin, end)
        if number == 1 and kind == _LENGTH_DELIMITED
    ]


def _parse_float_list(view: memoryview, begin: int, end: int) -> list[float]:
    values: list[float] = []
    for number, kind, start, stop in _fields(view, begin, end):
        if number != 1 or kind not in (_LENGTH_DELIMITED, _FIXED32):
            continue
        if (stop - start) % 4:
            raise ValueError("a list of floats is cut short")
        values += struct.unpack(f"<{(stop - start) // 4}f", view[start:stop])
    return values


def _parse_int64_list(view: memoryview, begin: int, end: int) -> list[int]:
    values: list[int] = []
    for number, kind, start, stop in _fields(view, begin, end):
        if number != 1 or kind not in (_LENGTH_DELIMITED, _VARINT):
            continue
        while start < stop:
            value, start = _read_varint(view, start, stop)
            values.append(value - 2**64 if value >= 2**63 else value)
    return values


_PARSERS: dict[int, Callable[[memoryview, int, int], Feature]] = {
    1: _parse_bytes_list,
    2: _parse_float_list,
    3: _parse_int64_list,
}


def _fields(
    view: memoryview, position: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, wire type, begin and end of each field of a protobuf message."""
    while position < end:
        tag, begin = view[position], position + 1
        if tag >= 0x80:  # Hardly ever, and the call takes time.
            tag, begin = _read_varint(view, position, end)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, begin = _read_varint(view, begin, end)
            position = begin + length
        elif kind == _VARINT:
            position = _read_varint(view, begin, end)[1]
        elif kind == _FIXED32:
            position = begin + 4
        elif kind == _FIXED64:
            position = begin + 8
        else:
            raise ValueError(f"it has a field of the unknown wire type {kind}")
        if position > end:
            raise ValueError("a field is cut short")
        if tag < 8:
            raise ValueError("a field has the number 0")
        yield tag >> 3, kind, begin, position


def _read_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """Returns an unsigned integer of 64 bits, and where it ends."""
    if position < end and view[position] < 0x80:  # The loop would be slower.
        return view[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("a number is cut short")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise ValueError("a number has more than 64 bits")


def frame_record(data: bytes) -> bytes:
    """Returns `data` as one record of a TFRecord file.

    The layout is u64 length, u32 checksum of the length's 8 bytes, data, u32 checksum
    of the data, all little-endian.

    Source: tensorflow/core/lib/io/record_writer.h.
    """
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc32c(length)),
            data,
            struct.pack("<I", masked_crc32c(data)),
        )
    )


def read_record(data: bytes | memoryview | mmap.mmap, offset: int) -> memoryview:
    """Returns the data of one record, after a check of both of its checksums.

    Args:
        data: Content of a TFRecord file.
        offset: Where the record begins in it, in bytes.

    Raises:
        CorruptRecord: If a checksum doesn't match or the record is cut short.
    """
    view = memoryview(data)
    length = record_length(view[offset : offset + HEADER_BYTES], offset)
    begin = offset + HEADER_BYTES
    end = begin + length
    if end + FOOTER_BYTES > len(view):
        raise CorruptRecord(
            f"it is cut short, {len(view) - offset:,} bytes are there of its"
            f" {end + FOOTER_BYTES - offset:,}",
            offset,
        )
    content = view[begin:end]
    if _U32.unpack_from(view, end)[0] != masked_crc32c(content):
        raise CorruptRecord("the checksum of its data does not match", offset)
    return content


def record_length(header: bytes | memoryview, offset: int) -> int:
    """Returns the length of a record's data in bytes, after a check of its checksum.

    Args:
        header: The record's first `HEADER_BYTES` bytes.
        offset: Where the record begins in its file; for the error.

    Raises:
        CorruptRecord: If the checksum doesn't match or the header is cut short.
    """
    if len(header) < HEADER_BYTES:
        raise CorruptRecord(
            f"it is cut short, {len(header)} bytes are there of the {HEADER_BYTES} of"
            " its header",
            offset,
        )
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_crc32c(header[:8]):
        raise CorruptRecord("the checksum of its length does not match", offset)
    return int(length)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Returns the checksum that a TFRecord file holds for `data`.

    It is CRC-32C, rotated right by 15 bits, plus a constant, modulo 2^32.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    # The library takes nothing but bytes; of bytes this makes no copy.
    crc = int(google_crc32c.value(bytes(data)))
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def _encode_feature(value: bytes | int) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))  # bytes_list
    # A negative number is written as the 64-bit pattern of its two's complement.
    return _field(3, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))  # int64_list


def _field(number: int, content: bytes) -> bytes:
    tag = number << 3 | _LENGTH_DELIMITED
    return b"".join((_varint(tag), _varint(len(content)), content))


def _varint(value: int) -> bytes:
    """Returns seven bits a byte, lowest first; the top bit says that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _file_system_bytes(name: str) -> bytes:
    """Returns a file name's bytes; one that is not UTF-8 comes out as it is on disk."""
    return name.encode("utf-8", "surrogateescape")
