"""Checks that a PNG file is complete, as strictly as libpng reads it.

Pillow's decoder accepts files without their last rows, checksums or end, which
TensorFlow's decoder, libpng, refuses. The format is that of the PNG Specification,
https://www.w3.org/TR/png-3/ (sections 5, 8.1, 10 and 11.2).
"""

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BIT_DEPTH, COLOR_TYPE = 24, 25  # Byte offsets, as the header is the first chunk.
PALETTE = 3  # A color type.
_HEADER = struct.Struct(">IIBBBBB")
_CRITICAL_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_ANCILLARY_BIT = 0x20  # Of the first byte of a chunk's name: a lower-case letter.
_NUM_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # By color type.
# First column, first row, column step and row step of the passes of Adam7.
_ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_NO_INTERLACE = ((0, 0, 1, 1),)
_PIECE = 2**16  # Compressed bytes at a time, which become 2**26 at most.


def without_metadata(data: bytes) -> bytes:
    """Returns a PNG file with what its pixels and its orientation depend on.

    Decoders' limits on texts and profiles, which nobody reads, don't apply to it, and
    the default image is left of an animation. A single transparent color of gray or
    RGB is left out unless the file has 8 bits per channel, since decoders differ.
    Raises ValueError if a chunk is damaged.
    """
    has_color = data[BIT_DEPTH : BIT_DEPTH + 1] == b"\x08"
    has_color = has_color or data[COLOR_TYPE : COLOR_TYPE + 1] == bytes([PALETTE])
    kept = [SIGNATURE]
    for name, content in _chunks(data):
        is_critical = not name[0] & _ANCILLARY_BIT
        if is_critical or name == b"eXIf" or (name == b"tRNS" and has_color):
            kept += len(content).to_bytes(4, "big"), name, content
            kept.append(zlib.crc32(name + content).to_bytes(4, "big"))
    return b"".join(kept)


def check(data: bytes) -> None:
    """Raises ValueError if a chunk of a PNG file or its image data is damaged.

    What follows the end chunk is ignored, as is image data beyond the last row.
    """
    header = None
    image_data = []
    for name, content in _chunks(data):
        if (header is None) != (name == b"IHDR"):
            raise ValueError("its PNG header must be its first chunk, and only that")
        if name == b"IHDR":
            header = content
        elif name == b"IDAT":
            image_data.append(content)
        elif name not in _CRITICAL_CHUNKS and not name[0] & _ANCILLARY_BIT:
            raise ValueError(f"its chunk {name!r} is none of PNG")
    if header is None or len(header) != _HEADER.size:
        raise ValueError("its PNG header is damaged")
    _check_image_data(b"".join(image_data), _num_bytes(header))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the name and the content of each chunk, up to the end chunk."""
    if not data.startswith(SIGNATURE):
        raise ValueError("it doesn't begin with the signature of PNG")
    position = len(SIGNATURE)
    name = b""
    while name != b"IEND":
        end = position + 12  # Length, name and checksum.
        if end <= len(data):
            end += int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            raise ValueError("it is truncated: its end is missing")
        name = data[position + 4 : position + 8]
        if zlib.crc32(data[position + 4 : end - 4]) != int.from_bytes(
            data[end - 4 : end], "big"
        ):
            raise ValueError(f"the checksum of its chunk {name!r} is wrong")
        yield name, data[position + 8 : end - 4]
        position = end


def _num_bytes(header: bytes) -> int:
    """Returns the size of all rows, each of which begins with its filter's number."""
    width, height, depth, color_type, _, _, interlace = _HEADER.unpack(header)
    if color_type not in _NUM_CHANNELS:
        raise ValueError(f"its color type is {color_type}, which PNG doesn't define")
    bits = depth * _NUM_CHANNELS[color_type]
    num_bytes = 0
    for column, row, column_step, row_step in _ADAM7 if interlace else _NO_INTERLACE:
        num_columns = max(-(-(width - column) // column_step), 0)
        num_rows = max(-(-(height - row) // row_step), 0)
        if num_columns:
            num_bytes += num_rows * (1 + (num_columns * bits + 7) // 8)
    return num_bytes


def _check_image_data(compressed: bytes, num_bytes: int) -> None:
    """Checks that compressed data has `num_bytes` and a checksum, or more bytes."""
    inflater = zlib.decompressobj()
    num_inflated = 0
    try:
        for begin in range(0, len(compressed), _PIECE):
            num_inflated += len(inflater.decompress(compressed[begin : begin + _PIECE]))
            if inflater.eof or num_inflated > num_bytes:
                break
    except zlib.error as error:
        raise ValueError(f"its image data can't be decompressed ({error})") from error
    if num_inflated < num_bytes:
        raise ValueError(
            f"it is truncated: its rows must have {num_bytes:,} bytes; they have"
            f" {num_inflated:,}"
        )
    if not inflater.eof and num_inflated == num_bytes:
        raise ValueError("it is truncated: the checksum of its image data is missing")
