"""What a record file is called, what is in a record, and how its bytes are laid out.

Names, feature keys and labels are those of the TPU ResNet scripts (tensorflow/tpu,
`tools/datasets/imagenet_to_gcs.py`), so their record sets and ours are the same kind.
TensorFlow is not needed to write them.
"""

import struct
from collections.abc import Mapping

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

FIRST_LABEL = 1  # As in the TPU scripts, where 0 is kept for "background".

HEADER_BYTES = 12  # Length of the data, and the length's checksum.
FOOTER_BYTES = 4  # The data's checksum.

# Of the protobuf wire format, where a field's tag is number << 3 | wire type.
_LENGTH_DELIMITED = 2


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
    """Returns one labelled picture as a serialized `tf.train.Example`.

    Channels and colour space are written as 3 and RGB for a grey picture too, as the
    TPU scripts do: they say what a reader decodes to.

    Args:
        encoded: A JPEG file's content.
        height: In pixels.
        width: In pixels.
        label: `FIRST_LABEL` + index of the class.
        class_name: Synset, or whatever the class folder is called.
        filename: Name of the picture's file, without its folder.
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


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that a TFRecord file holds for `data`.

    It is CRC-32C, rotated right by 15 bits, plus a constant, modulo 2^32.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    crc = int(google_crc32c.value(data))
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
