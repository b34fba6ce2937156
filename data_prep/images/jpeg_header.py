"""Parses the header of a JPEG file without decoding the image.

Source: ITU-T T.81 (markers: table B.1), and libjpeg-turbo's jdmarker.c for the errors
that decoders tolerate.
"""

import dataclasses
import functools
import re

START = b"\xff\xd8\xff"  # Decoders check the next marker's first byte too.
END = b"\xff\xd9"
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2  # Huffman-coded, lossy.

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_TABLES = 0xC4
_START_OF_IMAGE = 0xD8
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA
_QUANTIZATION_TABLES = 0xDB
_EXIF = 0xE1
_EXIF_START = b"Exif\0\0"
_ADOBE = 0xEE
_IGNORED = frozenset((0xCC, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE))
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # Markers without a length.
# Tables have numbers: DC 0x00 to 0x03 and AC 0x10 to 0x13, as in the file, quantization
# tables from 0x20.
_QUANTIZATION = 0x20
_UNSOUND = frozenset((-1,))  # The tables of an invalid segment.
# After a scan's data: 00 is a stuffed byte, D0 to D7 are restarts, FF is a fill byte.
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class JpegHeader:
    """Header of a JPEG file up to its first scan."""

    process: int  # Marker of the frame, such as `BASELINE`.
    precision: int  # Bits per sample.
    height: int  # In pixels; 0 if it stands after the image data.
    width: int
    # Pair of horizontal and vertical sampling factors of each component.
    sampling: tuple[tuple[int, int], ...]
    # Adobe's segment: 0 for RGB or CMYK, 1 for YCbCr, 2 for YCCK; None without it.
    adobe_transform: int | None
    # Whether all tables for the first scan exist, and tables, frame and scan contain
    # nothing that decoders reject. Also False for some valid but rare content.
    is_sound: bool
    exif: bytes  # Content of its EXIF segments, or empty.
    scan_start: int  # Byte offset of the end of the first scan's header.


def parse(data: bytes) -> JpegHeader:
    """Returns the header of a file that starts with `START`, or raises ValueError."""
    frame = b""
    process = 0
    adobe_transform = None
    tables = []
    exif = b""
    try:
        position = 2
        while True:
            position = data.index(b"\xff", position)
            marker = data[position + 1]
            if marker in (0xFF, 0x00):  # A fill byte, or junk that decoders ignore.
                position += 1
                continue
            if marker in _ALONE:
                if marker == _START_OF_IMAGE:  # A second one.
                    tables.append(_UNSOUND)
                position += 2
                continue
            if marker == _END_OF_IMAGE:
                raise ValueError("the end marker is before the image")
            begin = position + 4
            position += 2 + (data[position + 2] << 8 | data[position + 3])
            if marker == _START_OF_SCAN:
                break
            if marker in _FRAMES and not frame:
                process, frame = marker, data[begin:position]
            elif marker == _HUFFMAN_TABLES:
                tables.append(_huffman_tables(data[begin:position]))
            elif marker == _QUANTIZATION_TABLES:
                tables.append(_quantization_tables(data[begin:position]))
            elif marker == _ADOBE and data.startswith(b"Adobe", begin):
                adobe_transform = data[begin + 11]
            elif marker == _EXIF and data.startswith(_EXIF_START, begin):
                exif += data[begin + len(_EXIF_START) : position]
            elif marker not in _IGNORED:
                tables.append(_UNSOUND)
        components = frame[6 : 6 + 3 * frame[5]]
        needed = _tables_of_scan(process, frame, data[begin:position])
    except (IndexError, ValueError) as error:
        raise ValueError("its header is truncated or corrupt") from error
    defined = frozenset[int]().union(*tables)
    return JpegHeader(
        process=process,
        precision=frame[0],
        height=frame[1] << 8 | frame[2],
        width=frame[3] << 8 | frame[4],
        sampling=tuple((factors >> 4, factors & 15) for factors in components[1::3]),
        adobe_transform=adobe_transform,
        is_sound=_UNSOUND.isdisjoint(needed | defined) and needed <= defined,
        exif=exif,
        scan_start=position,
    )


def find_end(data: bytes, scan_start: int) -> int | None:
    """Returns the byte offset of the end marker, or None if it is missing."""
    position = scan_start
    while (match := _NEXT_MARKER.search(data, position)) is not None:
        position = match.start()
        if data[position + 1] == _END_OF_IMAGE:
            return position
        # Tables or another scan: skipped, since their bytes may look like markers.
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        position += 2 + length
    return None


def _tables_of_scan(process: int, frame: bytes, scan: bytes) -> frozenset[int]:
    """Returns the numbers of the tables that the first scan needs."""
    num_components = frame[5]
    num_scanned = scan[0]
    identifiers = set(frame[6::3])
    scanned = scan[1 : 1 + 2 * num_scanned : 2]
    selectors = scan[2 : 2 + 2 * num_scanned : 2]
    if (
        len(frame) != 6 + 3 * num_components
        or len(scan) != 4 + 2 * num_scanned
        or not 1 <= num_scanned <= num_components
        or len(identifiers) != num_components
        or len(set(scanned)) != num_scanned
        or not identifiers.issuperset(scanned)
    ):
        return _UNSOUND
    needed = {_QUANTIZATION + table for table in frame[8::3]}
    needed.update(selector >> 4 for selector in selectors)
    if process == PROGRESSIVE:
        # The first scan has the upper bits of the DC coefficients; others refine them.
        first, last, bits = scan[-3:]
        if first != 0 or last != 0 or bits > 13:
            return _UNSOUND
    else:
        needed.update(0x10 | selector & 15 for selector in selectors)
    return frozenset(needed)


@functools.lru_cache(maxsize=1024)  # Most files have the same tables.
def _huffman_tables(segment: bytes) -> frozenset[int]:
    """Returns the numbers of a segment's Huffman tables, checked as in libjpeg."""
    defined = set()
    position = 0
    while position < len(segment):
        table = segment[position]
        counts = segment[position + 1 : position + 17]
        symbols = segment[position + 17 : position + 17 + sum(counts)]
        position += 17 + sum(counts)
        code = 0  # First free code of the current number of bits.
        for num_bits, count in enumerate(counts, start=1):
            code = 2 * code + count
            if code > 1 << num_bits:
                return _UNSOUND
        is_dc = table < 0x10
        if (
            table not in (0, 1, 2, 3, 0x10, 0x11, 0x12, 0x13)
            or position > len(segment)
            or (is_dc and max(symbols, default=0) > 15)
        ):
            return _UNSOUND
        defined.add(table)
    return frozenset(defined)


@functools.lru_cache(maxsize=1024)
def _quantization_tables(segment: bytes) -> frozenset[int]:
    """Returns the numbers of a segment's quantization tables."""
    defined = set()
    position = 0
    while position < len(segment):
        precision, table = segment[position] >> 4, segment[position] & 15
        position += 65 if precision == 0 else 129
        if precision > 1 or table > 3 or position > len(segment):
            return _UNSOUND
        defined.add(_QUANTIZATION + table)
    return frozenset(defined)
