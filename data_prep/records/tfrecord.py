"""The records of a TFRecord file: length, data and their checksums.

Reading and writing need no TensorFlow.
"""

import mmap
import struct

import google_crc32c

HEADER_BYTES = 12  # Length of the data and the length's checksum.
FOOTER_BYTES = 4  # The data's checksum.
_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")


class CorruptRecord(ValueError):
    """A record whose bytes are not those that were written.

    Attributes:
        offset: Byte offset of the record in its file.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


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
    """Returns the data of one record after a check of both checksums.

    Args:
        data: Content of a TFRecord file.
        offset: Byte offset of the record in `data`.

    Raises:
        CorruptRecord: If a checksum doesn't match or the record is truncated.
    """
    view = memoryview(data)
    length = record_length(view[offset : offset + HEADER_BYTES], offset)
    begin = offset + HEADER_BYTES
    end = begin + length
    if end + FOOTER_BYTES > len(view):
        raise CorruptRecord(
            f"it is truncated: {len(view) - offset:,} of its"
            f" {end + FOOTER_BYTES - offset:,} bytes are there",
            offset,
        )
    content = view[begin:end]
    if _U32.unpack_from(view, end)[0] != masked_crc32c(content):
        raise CorruptRecord("the checksum of its data does not match", offset)
    return content


def record_length(header: bytes | memoryview, offset: int) -> int:
    """Returns the length of a record's data in bytes after a check of its checksum.

    Args:
        header: First `HEADER_BYTES` bytes of the record.
        offset: Byte offset of the record in its file, for the error.

    Raises:
        CorruptRecord: If the checksum doesn't match or the header is truncated.
    """
    if len(header) < HEADER_BYTES:
        raise CorruptRecord(
            f"it is truncated: {len(header)} of the {HEADER_BYTES} bytes of its header"
            " are there",
            offset,
        )
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_crc32c(header[:8]):
        raise CorruptRecord("the checksum of its length does not match", offset)
    return int(length)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Returns the checksum that a TFRecord file stores for `data`.

    It is CRC-32C, rotated right by 15 bits, plus a constant, modulo 2^32.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    # The library accepts only bytes; bytes(bytes) makes no copy.
    crc = int(google_crc32c.value(bytes(data)))
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF
