"""Turns a picture file of any common kind into the JPEG that goes into a record."""

import dataclasses
import io
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

from data_prep.errors import UserError

# Makes the loss of a second compression invisible, at about twice the size of usual
# photographs; few pictures of a set need it.
JPEG_QUALITY = 95
JPEG_SUBSAMPLING = 0  # 4:4:4: PNG and GIF drawings have sharp edges in colour too.

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_JPEG_FORMATS = ("JPEG", "MPO")  # MPO is a JPEG with further pictures behind the first.
_JPEG_END = b"\xff\xd9"


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """A JPEG file's content.

    Attributes:
        data: In RGB or grey.
        height: In pixels.
        width: In pixels.
        converted: Whether `data` is not the picture's own file.
    """

    data: bytes
    height: int
    width: int
    converted: bool


def to_jpeg(data: bytes, name: str) -> EncodedImage:
    """Returns a picture as a JPEG file in RGB or grey.

    A JPEG in RGB or grey is kept byte for byte. Anything else (CMYK, PNG, WebP, BMP,
    the first frame of a GIF) becomes a new RGB JPEG: of 16 bits the upper 8 are taken,
    what is transparent becomes white. What a picture is, is told from its content and
    not from its name. An EXIF orientation is not applied, as the published recipes
    don't. Of a kept JPEG only the ends are checked, its pixels aren't decoded.

    Args:
        data: The file's content.
        name: The file's name, for messages.

    Raises:
        UserError: If the picture can't be decoded or its end is missing.
    """
    if not data:
        raise UserError(f"{name} is an empty file; put the picture there or remove it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of broken metadata, which isn't read.
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return _encode(image, data)
    except Exception as error:  # Pillow's decoders raise errors of any type.
        raise UserError(
            f"{name} must be a picture ({', '.join(_FORMATS)}) that can be decoded, and"
            f" is not: {_reason(error)}. Replace or remove it."
        ) from error


def _encode(image: Image.Image, data: bytes) -> EncodedImage:
    if image.format in _JPEG_FORMATS and image.mode in ("RGB", "L"):
        if not data.endswith(_JPEG_END):  # Its start is what Pillow knew it by.
            image.load()  # Raises if it is cut short; bytes after its end do no harm.
        return EncodedImage(data, image.height, image.width, converted=False)
    file = io.BytesIO()
    _to_rgb(image).save(
        file,
        "JPEG",
        quality=JPEG_QUALITY,
        subsampling=JPEG_SUBSAMPLING,
        comment=b"",  # Or Pillow copies that of a GIF.
    )
    return EncodedImage(file.getvalue(), image.height, image.width, converted=True)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its content is of no such kind"  # Pillow's text shows a BytesIO object.
    return str(error) or type(error).__name__
