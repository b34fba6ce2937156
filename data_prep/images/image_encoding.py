"""Converts image files of all common formats to the JPEG or PNG files of records.

Does not import TensorFlow.
"""

import contextlib
import dataclasses
import io
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, UnidentifiedImageError

from data_prep.images import depth, jpeg_header, other_formats, png_data
from data_prep.images.jpeg_header import JpegHeader
from resnet.base import regular_file
from resnet.base.errors import UserError

# The loss of a second compression is invisible at this quality. Files are about twice
# as large as usual photographs, but few images need to be re-encoded.
JPEG_QUALITY = 95
JPEG_SUBSAMPLING = 0  # 4:4:4, as drawings in PNG and GIF have sharp color edges.
_PILLOW_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": JPEG_QUALITY, "subsampling": JPEG_SUBSAMPLING},
    "PNG": {},
}
# TensorFlow decodes to fewer than 2^29 bytes (jpeg_mem.cc); Pillow's limit is the same.
MAX_PIXELS = (2**29 - 1) // 3
MAX_SIDE = 65_500  # Limit of libjpeg (JPEG_MAX_DIMENSION).
# 4,125 photographs of ImageNet have at least 0.029. Images with less are truncated, or
# drawings.
SUSPICIOUS_BYTES_PER_PIXEL = 0.02

START_BYTES = 32  # As many as the functions of the start of a file need of it.
_MAX_FILE_BYTES = 2**31  # More than any image that can be decoded has.
MAX_PNG_SIDE = 1_000_000  # Limit of libpng (PNG_USER_WIDTH_MAX).
_LOSSLESS_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF")
_FORMATS = ("JPEG", *_LOSSLESS_FORMATS)
# Supported by every decoder, TensorFlow's included.
_PROCESSES = (jpeg_header.BASELINE, jpeg_header.EXTENDED, jpeg_header.PROGRESSIVE)
_NO_SUBSAMPLING = ((1, 1), (1, 1))
_USUAL_SAMPLING = {  # Some decoders reject others, so those are decoded as a check.
    ((1, 1),),
    *(((x, y), *_NO_SUBSAMPLING) for x, y in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))),
}
_FILLING_BYTES = 1024  # Several blocks of pixels; one would suffice.
_GRAY_OR_RGB = (0, 2)  # The color types without a palette and without alpha.
_ORIENTATION_TAG = 0x0112
_TRANSPOSE = {  # By EXIF orientation; 1 is upright.
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,  # Counterclockwise: a quarter turn to the right.
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_INVERSE = {6: 8, 8: 6}  # Orientations; the others are their own.


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedImage:
    """An encoded image of `height` and `width` pixels."""

    data: bytes  # Content of an RGB or gray JPEG file, or of a PNG file without alpha.
    height: int
    width: int
    # Original kind of a re-encoded image: "PNG", "16-bit PNG", "CMYK JPEG", "EXIF
    # orientation" and so on; None if `data` is the original file.
    converted_from: str | None
    # Whether its EXIF data tells to rotate or flip it, and that wasn't to be applied.
    ignores_orientation: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """How the images of a set are stored."""

    image_format: str = ""  # "jpeg" or "png"; empty if unknown.
    apply_exif_orientation: bool = False
    depth_window: tuple[int, ...] = ()  # As `depth.table` takes it.

    def store(self, data: bytes, name: str) -> EncodedImage:
        """Returns an image file as an RGB or gray JPEG file, or as a PNG file.

        In JPEG, an RGB or gray JPEG is kept byte for byte. It is decoded only if
        something is unusual: no end marker at the end, very few bytes for its size, or
        a rare kind of JPEG. In PNG, a PNG of at most 8 bits per channel without
        transparency is kept, and a JPEG refused. Anything else (CMYK, WebP, BMP, TIFF,
        the first frame of a GIF) is re-encoded in RGB. `depth.table` says what 16 bits
        per channel become. Transparent pixels become white; of a single transparent
        color see `png_data.without_metadata`. Raises
        UserError if the image can't be decoded, has too many pixels, or is truncated.
        """
        in_jpeg = self.image_format == "jpeg"
        formats = _FORMATS if in_jpeg else _LOSSLESS_FORMATS
        with _naming_failures(data, name, formats):
            header = None
            if in_jpeg and data.startswith(jpeg_header.START):
                header = jpeg_header.parse(data)
                is_good = _looks_good(header, data)
                is_turned = bool(header.exif) and _transpose(header.exif) is not None
                if is_good and not (self.apply_exif_orientation and is_turned):
                    size = header.height, header.width
                    return EncodedImage(data, *size, None, is_turned)
                if not is_good:
                    _check_jpeg(header, data)
            with Image.open(_for_pillow(data), formats=formats) as image:
                _check_side(image, name, in_jpeg)
                if header is None:
                    loaded, kind = _load(image, data, self.depth_window)
                    if kind == "PNG" and not (in_jpeg or loaded.has_transparency_data):
                        kind = None
                else:
                    image.load()
                    _check_complete(image, header, data)
                    loaded, kind = image, _kind(image, header)
                return self._encode(loaded, data, header, kind)

    def _encode(
        self,
        image: Image.Image,
        data: bytes,
        header: JpegHeader | None,
        kind: str | None,
    ) -> EncodedImage:
        """Returns a decoded image as a new file, or its file if it can be kept."""
        transpose = _transpose(image.info.get("exif", b""))
        is_ignored = transpose is not None and not self.apply_exif_orientation
        if kind is None and (transpose is None or is_ignored):
            return EncodedImage(data, image.height, image.width, None, is_ignored)
        rgb = _to_rgb(image, header)
        if transpose is not None and not is_ignored:
            rgb = rgb.transpose(transpose)
        rgb.info = {}  # Otherwise Pillow copies metadata, as a comment or a profile.
        file = io.BytesIO()
        image_format = self.image_format.upper()
        rgb.save(file, image_format, **_PILLOW_OPTIONS[image_format])
        kind = kind or "EXIF orientation"
        return EncodedImage(file.getvalue(), rgb.height, rgb.width, kind, is_ignored)

    def read(self, path: str | os.PathLike[str]) -> tuple[bytes, str]:
        """Returns an image file as it is stored, and its format.

        That is JPEG for a lossily compressed one, and otherwise the set's or, if it is
        unknown, PNG. Raises UserError as `store`, or if the file can't be read.
        """
        try:
            data = regular_file.read_bytes(path, _MAX_FILE_BYTES)
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror}.") from error
        image_format = "jpeg" if is_lossy(data) else self.image_format or "png"
        encoding = dataclasses.replace(self, image_format=image_format)
        return encoding.store(data, str(path)).data, image_format


def is_lossy(start: bytes) -> bool:
    """Returns whether an image is lossily compressed: a JPEG or a lossy WebP.

    A WebP in the extended form counts as lossy, since its first bytes don't tell it.
    `start` are the first `START_BYTES` of the file, or all if it is smaller.
    """
    is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return start.startswith(jpeg_header.START) or (is_webp and start[12:16] != b"VP8L")


def keeps_its_size(start: bytes, image_format: str) -> bool:
    """Returns whether a conversion to a format is expected to keep an image's file."""
    if image_format == "jpeg":
        return start.startswith(jpeg_header.START)
    return (
        start.startswith(png_data.SIGNATURE)
        and len(start) > png_data.COLOR_TYPE
        and start[png_data.BIT_DEPTH] <= 8
        and start[png_data.COLOR_TYPE] in _GRAY_OR_RGB
    )


def read_colors(data: bytes, name: str) -> npt.NDArray[np.uint16] | None:
    """Returns a file's samples of gray or RGB; None if it has fewer than 16 bits.

    Raises UserError as `Encoding.store`.
    """
    with _naming_failures(data, name, _LOSSLESS_FORMATS):
        if not _is_deep(data):
            return None
        file = _for_pillow(data)
        with Image.open(file, formats=_LOSSLESS_FORMATS) as image:
            image.load()
            return depth.samples(image, file.getvalue())[0]


def may_be_deep(start: bytes) -> bool:
    """Returns whether an image may have 16 bits, by its first `START_BYTES`."""
    return start.startswith(other_formats.TIFF) or _is_deep(start)


@contextlib.contextmanager
def _naming_failures(
    data: bytes, name: str, formats: tuple[str, ...]
) -> Iterator[None]:
    """Turns any error of a decoder in the block into a UserError."""
    if not data:
        raise UserError(f"{name} is an empty file. Replace it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About corrupt metadata, which isn't used.
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # Pillow's decoders raise errors of any type.
            if kind := other_formats.kind_of(data):
                text = f"{name} is {kind}, which isn't read. {other_formats.ADVICE}"
                raise UserError(text) from error
            raise UserError(
                f"{name} can't be decoded as an image ({', '.join(formats)}):"
                f" {_reason(error)}. Replace it."
            ) from error


def _looks_good(header: JpegHeader, data: bytes) -> bool:
    """Returns whether a JPEG file can be kept without decoding it."""
    num_pixels = header.height * header.width
    return (
        header.process in _PROCESSES
        and header.precision == 8
        and header.sampling in _USUAL_SAMPLING
        and header.is_sound
        and 0 < num_pixels <= MAX_PIXELS
        and max(header.height, header.width) <= MAX_SIDE
        and data.endswith(jpeg_header.END)
        and len(data) - header.scan_start >= SUSPICIOUS_BYTES_PER_PIXEL * num_pixels
    )


def _for_pillow(data: bytes) -> io.BytesIO:
    """Returns an image file without what Pillow would refuse or interpret wrongly."""
    if data.startswith(png_data.SIGNATURE):
        data = png_data.without_metadata(data)
    elif data.startswith(other_formats.TIFF):
        other_formats.check_tiff(data)
    return io.BytesIO(data)


def _is_deep(data: bytes) -> bool:
    """Returns whether a file has 16 bits per channel; the start of a PNG suffices."""
    if data.startswith(other_formats.TIFF):
        return other_formats.check_tiff(data) == 16
    is_png = data.startswith(png_data.SIGNATURE)
    return is_png and data[png_data.BIT_DEPTH :][:1] == b"\x10"


def _load(
    image: Image.Image, data: bytes, depth_window: tuple[int, ...]
) -> tuple[Image.Image, str | None]:
    """Returns a lossless image, decoded to 8 bits, and its kind."""
    kind = {"WEBP": "WebP"}.get(str(image.format), str(image.format))
    orientation = image.getexif().get(_ORIENTATION_TAG, 1) if kind == "TIFF" else 1
    image.load()  # The EXIF data of a PNG can follow its pixels.
    if image.format == "PNG":
        png_data.check(data)
    if _is_deep(data):
        kind = f"16-bit {kind}"
        parts = depth.samples(image, _for_pillow(data).getvalue())
        deep, image = image, depth.to_8_bits(parts, depth_window)
        image.info = deep.info
    if orientation in _TRANSPOSE:  # Pillow has applied that of a TIFF.
        image = image.transpose(_TRANSPOSE[_INVERSE.get(orientation, orientation)])
        exif = Image.Exif()
        exif[_ORIENTATION_TAG] = orientation
        image.info["exif"] = exif.tobytes()
    return image, kind


def _check_side(image: Image.Image, name: str, in_jpeg: bool) -> None:
    kind, most = ("JPEG", MAX_SIDE) if in_jpeg else ("PNG", MAX_PNG_SIDE)
    if max(image.size) > most:
        raise UserError(
            f"{name} must have at most {most:,} pixels per side to be stored as {kind};"
            f" it has {image.width:,} x {image.height:,}. Shrink it."
        )


def _check_jpeg(header: JpegHeader, data: bytes) -> None:
    """Raises ValueError for JPEGs that Pillow rejects with an unclear message."""
    num_components = len(header.sampling)
    if num_components not in (1, 3, 4):
        raise ValueError(
            f"it is a JPEG of {num_components} components; expected 1, 3 or 4"
        )
    if header.precision != 8:
        raise ValueError(
            f"it is a JPEG of {header.precision} bits per sample; expected 8"
        )
    if jpeg_header.find_end(data, header.scan_start) is None:
        raise ValueError("it is truncated: the end marker is missing")


def _check_complete(image: Image.Image, header: JpegHeader, data: bytes) -> None:
    """Raises ValueError if a JPEG has an end marker but incomplete image data.

    Decoders silently fill missing data with gray; extra bytes before the end marker are
    skipped if the image is complete, and decoded as pixels if something is missing.
    """
    end = jpeg_header.find_end(data, header.scan_start)
    padded = data[:end] + bytes(_FILLING_BYTES) + jpeg_header.END
    with Image.open(io.BytesIO(padded), formats=_FORMATS) as padded_image:
        if padded_image.tobytes() != image.tobytes():
            raise ValueError("it is truncated: a part of the image is missing")


def _kind(image: Image.Image, header: JpegHeader) -> str | None:
    """Returns the kind of a JPEG that must be re-encoded, None if it can be kept."""
    if image.mode == "CMYK":
        return "YCCK JPEG" if header.adobe_transform == 2 else "CMYK JPEG"
    if header.process not in _PROCESSES:
        return "unusual JPEG"  # Arithmetic-coded or lossless.
    return None


def _transpose(exif_data: bytes) -> Image.Transpose | None:
    """Returns what makes an image upright; None for nothing or without EXIF data."""
    exif = Image.Exif()
    try:
        exif.load(exif_data)
        return _TRANSPOSE.get(int(exif.get(_ORIENTATION_TAG, 1)))
    except Exception:  # Pillow's parser raises any type for corrupt EXIF.
        return None


def _to_rgb(image: Image.Image, header: JpegHeader | None) -> Image.Image:
    if image.mode == "CMYK" and header is not None and header.adobe_transform is None:
        # Adobe's files store inverted inks, and Pillow inverts those of all files.
        return ImageChops.invert(image).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"  # Pillow's message contains a BytesIO object.
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS:,} pixels"
    return str(error).rstrip(".") or type(error).__name__
