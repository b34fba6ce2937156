"""Formats of images that aren't read, and the kinds of TIFF that are.

Sources: TIFF 6.0; TIFF/EP and Adobe's DNG 1.7 (camera files in TIFF); ISO/IEC 14496-12
(`ftyp`); ISO/IEC 15444-1 and 18181-2 (JPEG 2000, JPEG XL); DICOM PS3.10, section 7.1.
"""

import contextlib
import io
import re

from PIL.TiffImagePlugin import ImageFileDirectory_v2

ADVICE = "Convert it to PNG or TIFF, which may have 16 bits, or to JPEG."
# In the names of images that are of such formats, or for other reasons not read.
EXTENSIONS = (
    *(".avif", ".heic", ".heif", ".jp2", ".j2k", ".jxl", ".pgm", ".ppm", ".dcm"),
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"),
)
START_BYTES = 65_536  # As many as `kind_of` needs of a usual file.
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_RAW = "a raw file of a camera"
_KINDS = (  # What a file of a format begins with.
    (rb".{128}DICM", "DICOM"),
    # A still image of either of two kinds may have the common brand first.
    (rb".{4}ftyp.{0,20}avi[fs]", "AVIF"),
    (rb".{4}ftyp(hei|hev|mif1|msf1)", "HEIC"),
    (rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51", "JPEG 2000"),
    (rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a", "JPEG XL"),
    (rb".{4}ftypcrx |.{8}CR\x02|.{6}HEAPCCDR|FUJIFILMCCD-RAW|FOVb|\0MRM", _RAW),
    (rb"II(RO|RS|U\0)|MMOR", _RAW),
)
# Tags of TIFF.
_SUBFILE, _BITS, _COMPRESSION, _COLORS, _PLANES = 254, 258, 259, 262, 284
_EXTRA, _SAMPLE_FORMAT, _DNG_VERSION = 338, 339, 50_706
_LOSSLESS = (1, 2, 3, 4, 5, 8, 32_773, 32_946, 34_925, 50_000)
_RAW_COLORS = (32_803, 34_892)
_COLOR_NAMES = {5: "CMYK", 6: "YCbCr", 8: "CIELAB"}
_FORMAT_NAMES = {2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}


def kind_of(data: bytes) -> str:
    """Returns the name of a format that isn't read, by a file's first bytes, or ""."""
    for pattern, kind in _KINDS:
        if re.match(pattern, data, re.DOTALL):
            return kind
    if data.startswith(TIFF):
        with contextlib.suppress(Exception):  # Pillow raises any type.
            tags = _tags(data)
            is_thumbnail = tags.get(_SUBFILE, 0) & 1  # Of the image in another page.
            if is_thumbnail or _DNG_VERSION in tags or tags[_COLORS] in _RAW_COLORS:
                return _RAW
    return ""


def check_tiff(data: bytes) -> int:
    """Returns the bits per sample of a TIFF; raises ValueError for kinds not read."""
    if kind := kind_of(data):
        raise ValueError(f"it is {kind}")
    tags = _tags(data)
    bits, extra = tags.get(_BITS, (1,)), tags.get(_EXTRA, ())
    sample_format = max(tags.get(_SAMPLE_FORMAT, (1,)))
    colors = tags.get(_COLORS, 0)
    is_deep = 16 in bits
    kinds = (
        (tags.next != 0, "several pages"),
        (tags.get(_COMPRESSION, 1) not in _LOSSLESS, "lossy compression"),
        (sample_format != 1, f"{_FORMAT_NAMES.get(sample_format, 'unknown')} samples"),
        (colors > 3, f"{_COLOR_NAMES.get(colors, 'unknown')} colors"),
        (not {*bits} <= {1, 2, 4, 8, 16}, f"{max(bits)} bits per sample"),
        (is_deep and colors == 0, "16 bits and zero for white"),
        (is_deep and 1 in extra, "16 bits and colors multiplied by alpha"),
        (is_deep and colors < 2 and extra, "16-bit gray and other channels"),
        (is_deep and len(bits) > 1 and tags.get(_PLANES) == 2, "16-bit planes"),
    )
    for is_kind, what in kinds:
        if is_kind:
            raise ValueError(
                f"it is a TIFF with {what}; expected one page of gray or RGB samples of"
                " 8 or 16 bits, compressed without loss"
            )
    return int(max(bits))


def _tags(data: bytes) -> ImageFileDirectory_v2:
    """Returns the tags of the first page of a TIFF; `next` is the place of another."""
    is_big = 43 in data[2:4]  # BigTIFF, which has a longer header.
    tags = ImageFileDirectory_v2(data[: 16 if is_big else 8])
    file = io.BytesIO(data)
    file.seek(tags.next)
    tags.load(file)
    return tags
