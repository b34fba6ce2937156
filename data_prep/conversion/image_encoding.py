"""Turns an image file of any common kind into the JPEG that goes into a record."""

import dataclasses
import io
import warnings

import numpy as np
from PIL import Image, ImageChops, UnidentifiedImageError

from data_prep.conversion import jpeg_header
from data_prep.conversion.jpeg_header import JpegHeader
from data_prep.errors import UserError

# Makes the loss of a second compression invisible, at about twice the size of usual
# photographs; few images of a set need it.
JPEG_QUALITY = 95
JPEG_SUBSAMPLING = 0  # 4:4:4: PNG and GIF drawings have sharp edges in colour too.
# TensorFlow decodes fewer than 2^29 bytes (jpeg_mem.cc); Pillow's limit is the same.
MAX_PIXELS = (2**29 - 1) // 3
# Of 4,125 photographs of ImageNet, none has fewer than 0.029: cut short, or a drawing.
SUSPICIOUS_BYTES_PER_PIXEL = 0.02

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_PROCESSES = (  # That every decoder reads, TensorFlow's too.
    jpeg_header.BASELINE,
    jpeg_header.EXTENDED,
    jpeg_header.PROGRESSIVE,
)
_ALIKE = ((1, 1), (1, 1))
_USUAL_SAMPLING = {  # Decoders refuse some others, which shows when they are decoded.
    ((1, 1),),
    *(((x, y), *_ALIKE) for x, y in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))),
}
_FILLING_BYTES = 1024  # Enough for several blocks of pixels, of which one would do.
_ORIENTATION_TAG = 0x0112
_TURNS = {  # By EXIF orientation; 1 is upright.
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,  # Counterclockwise: a quarter to the right.
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedImage:
    """A JPEG file's content.

    Attributes:
        data: In RGB or grey.
        height: In pixels.
        width: In pixels.
        converted_from: What the image was if `data` is not its own file: "PNG",
            "16-bit PNG", "CMYK JPEG", "EXIF orientation" and so on; None if it is.
    """

    data: bytes
    height: int
    width: int
    converted_from: str | None


def to_jpeg(
    data: bytes, name: str, apply_exif_orientation: bool = False
) -> EncodedImage:
    """Returns an image as a JPEG file in RGB or grey.

    A JPEG in RGB or grey is kept byte for byte. Anything else (CMYK, PNG, WebP, BMP,
    the first frame of a GIF) becomes a new RGB JPEG: of 16 bits the upper 8 are taken,
    what is transparent becomes white (but for the single colour that a 16-bit PNG can
    call transparent). What an image is, is told from its content and not from its
    name.

    Of a kept JPEG the header and the end are checked; its pixels are decoded only if
    something is unusual: no end mark at the end, very few bytes for its size, or a
    kind that few files are of.

    Args:
        data: The file's content.
        name: The image's name, for messages.
        apply_exif_orientation: Whether an image that its EXIF data wants turned or
            flipped is, which makes it a new JPEG. The published recipes don't.

    Raises:
        UserError: If the image can't be decoded, has too many pixels, or is cut
            short.
    """
    if not data:
        raise UserError(f"{name} is an empty file; put the image there or remove it")
    try:
        header = None
        is_good = False
        if data.startswith(jpeg_header.START):
            header = jpeg_header.parse(data)
            is_good = _looks_good(header, data)
            if is_good and not (apply_exif_orientation and header.has_exif):
                return EncodedImage(data, header.height, header.width, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of broken metadata, which isn't read.
            if header is not None and not is_good:
                _check_jpeg(header, data)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                turn = _TURNS.get(_orientation(image) if apply_exif_orientation else 1)
                if is_good and turn is None:
                    return EncodedImage(data, image.height, image.width, None)
                return _encode(image, header, data, turn)
    except Exception as error:  # Pillow's decoders raise errors of any type.
        raise UserError(
            f"{name} must be an image ({', '.join(_FORMATS)}) that can be decoded, and"
            f" is not: {_reason(error)}. Replace or remove it."
        ) from error


def _looks_good(header: JpegHeader, data: bytes) -> bool:
    """Returns whether a JPEG can be kept without decoding it."""
    num_pixels = header.height * header.width
    return (
        header.process in _PROCESSES
        and header.precision == 8
        and header.sampling in _USUAL_SAMPLING
        and header.is_sound
        and 0 < num_pixels <= MAX_PIXELS
        and data.endswith(jpeg_header.END)
        and len(data) - header.scan_start >= SUSPICIOUS_BYTES_PER_PIXEL * num_pixels
    )


def _encode(
    image: Image.Image,
    header: JpegHeader | None,
    data: bytes,
    turn: Image.Transpose | None,
) -> EncodedImage:
    """Returns an open image that is decoded whole, kept as it is if it can be."""
    image.load()
    if header is not None:
        _check_complete(image, header, data)
    kind = _kind(image, header, data)
    if kind is None and turn is None:
        return EncodedImage(data, image.height, image.width, None)
    rgb = _to_rgb(image, header)
    if turn is not None:
        rgb = rgb.transpose(turn)
    file = io.BytesIO()
    rgb.save(
        file,
        "JPEG",
        quality=JPEG_QUALITY,
        subsampling=JPEG_SUBSAMPLING,
        comment=b"",  # Or Pillow copies that of a GIF.
    )
    return EncodedImage(
        file.getvalue(), rgb.height, rgb.width, kind or "EXIF orientation"
    )


def _check_jpeg(header: JpegHeader, data: bytes) -> None:
    """Raises an error for a JPEG that Pillow would give no good reason to refuse."""
    num_components = len(header.sampling)
    if num_components not in (1, 3, 4):
        raise ValueError(
            f"it is a JPEG of {num_components} components, instead of 1, 3 or 4"
        )
    if header.precision != 8:
        raise ValueError(
            f"it is a JPEG of {header.precision} bits a sample, instead of 8"
        )
    if jpeg_header.find_end(data, header.scan_start) is None:
        raise ValueError("it is cut short: the mark of a JPEG's end is missing")


def _check_complete(image: Image.Image, header: JpegHeader, data: bytes) -> None:
    """Raises an error if a JPEG has an end mark, but not all of the image before it.

    Decoders fill what is missing with grey and say nothing. So the image is decoded
    again with bytes put in before the mark: they are passed over if all is there, and
    become a part of the image if something is missing.
    """
    end = jpeg_header.find_end(data, header.scan_start)
    padded = data[:end] + bytes(_FILLING_BYTES) + jpeg_header.END
    with Image.open(io.BytesIO(padded), formats=_FORMATS) as again:
        if again.tobytes() != image.tobytes():
            raise ValueError("it is cut short: a part of the image is missing")


def _kind(image: Image.Image, header: JpegHeader | None, data: bytes) -> str | None:
    """Returns what an image is called that can't be kept, or None if it can."""
    if header is None:
        if image.format == "PNG" and data[24] == 16:  # Bit depth, in the first chunk.
            return "16-bit PNG"
        return {"WEBP": "WebP"}.get(str(image.format), image.format)
    if image.mode == "CMYK":
        return "YCCK JPEG" if header.adobe_transform == 2 else "CMYK JPEG"
    if header.process not in _PROCESSES:
        return "unusual JPEG"  # Arithmetic-coded or lossless.
    return None


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation; 1, upright, if there is none that can be read."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        return int(exif.get(_ORIENTATION_TAG, 1))
    except Exception:  # Whatever broken EXIF data makes Pillow's parser raise.
        return 1


def _to_rgb(image: Image.Image, header: JpegHeader | None) -> Image.Image:
    if image.mode == "CMYK" and header is not None and header.adobe_transform is None:
        # Adobe's files hold the inks inverted, and Pillow takes all files for Adobe's.
        return ImageChops.invert(image).convert("RGB")
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its content is of no such kind"  # Pillow's text shows a BytesIO object.
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MAX_PIXELS:,} pixels"
    return str(error).rstrip(".") or type(error).__name__
