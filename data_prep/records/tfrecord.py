"""The records of a TFRecord file, read and written without TensorFlow.

A record is the u64 length of its data, the u32 checksum of the length's 8 bytes, the
data and its u32 checksum, all little-endian.

Source: tensorflow/core/lib/io/record_writer.h.
"""

import mmap
import os
import struct

import google_crc32c

from resnet.base import regular_file

HEADER_BYTES = 12  # Length of the data and the length's checksum.
FOOTER_BYTES = 4  # The data's checksum.
_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")


def frame_record(data: bytes) -> bytes:
    """Returns `data` as one record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    header = length + _U32.pack(masked_crc32c(length))
    return b"".join((header, data, _U32.pack(masked_crc32c(data))))


def read_at(path: str | os.PathLike[str], offset: int) -> memoryview:
    """Returns the data of the record at an offset of a file; checks both checksums.

    Raises ValueError if one doesn't match or the record is truncated, and OSError, also
    if the file is none, such as a named pipe.
    """
    with regular_file.open_regular(path) as file:
        file.seek(offset)
        header = file.read(HEADER_BYTES)
        length = record_length(header)
        # Not beyond the end of the file: a corrupt length can be any number.
        num_left = os.fstat(file.fileno()).st_size - file.tell()
        rest = file.read(min(length + FOOTER_BYTES, num_left))
    return read_record(header + rest, 0)


def read_record(
    content: bytes | memoryview | mmap.mmap, offset: int, check_data: bool = True
) -> memoryview:
    """Returns the data of the record at a byte offset; checks its length's checksum.

    With `check_data`, it checks that of the data too. Raises ValueError if a checksum
    doesn't match or the record is truncated.
    """
    view = memoryview(content)
    begin = offset + HEADER_BYTES
    end = begin + record_length(view[offset:begin])
    if end + FOOTER_BYTES > len(view):
        raise ValueError(
            f"it is truncated: {len(view) - offset:,} of its"
            f" {end + FOOTER_BYTES - offset:,} bytes are there"
        )
    data = view[begin:end]
    if check_data and _U32.unpack_from(view, end)[0] != masked_crc32c(data):
        raise ValueError("the checksum of its data does not match")
    return data


def describe_fault(path: str | os.PathLike[str]) -> str:
    """Returns what is wrong with the first corrupt record of a file; empty if nothing.

    Raises OSError.
    """
    with regular_file.open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:  # Which can't be mapped.
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            offset = 0
            while offset < len(content):
                try:
                    with read_record(content, offset) as data:
                        offset += HEADER_BYTES + len(data) + FOOTER_BYTES
                except ValueError as error:
                    place = f"the record at byte {offset} of {path}"
                    return f"{place} is corrupt: {error}"
    return ""


def record_length(header: bytes | memoryview) -> int:
    """Returns the length of a record's data, by its first `HEADER_BYTES` bytes.

    Raises ValueError if its checksum doesn't match or the header is truncated.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError(
            f"it is truncated: {len(header)} of the {HEADER_BYTES} bytes of its header"
            " are there"
        )
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_crc32c(header[:8]):
        raise ValueError("the checksum of its length does not match")
    return int(length)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Returns the CRC-32C of `data` as TFRecord files store it.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    # The library accepts only bytes; bytes(bytes) makes no copy.
    crc = int(google_crc32c.value(bytes(data)))
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF
