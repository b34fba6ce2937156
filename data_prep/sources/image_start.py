"""What the first bytes of an image file tell about it, without decoding it."""

NUM_BYTES = 32  # As many as the functions below need.
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_BIT_DEPTH = 24  # Byte offset in the file, as the header is the first chunk.
_PNG_COLOR_TYPE = 25
_GRAY_OR_RGB = (0, 2)  # The color types without a palette and without alpha.


def is_lossy(start: bytes) -> bool:
    """Returns whether an image is lossily compressed: a JPEG or a lossy WebP.

    A WebP in the extended form counts as lossy, since its first bytes don't tell it.

    Args:
        start: First `NUM_BYTES` of the image file, or all if it is smaller.
    """
    is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return start.startswith(_JPEG) or (is_webp and start[12:16] != b"VP8L")


def keeps_its_size(start: bytes, image_format: str) -> bool:
    """Returns whether a conversion is expected to store an image as it is.

    Args:
        start: First `NUM_BYTES` of the image file, or all if it is smaller.
        image_format: Format of the stored images, "jpeg" or "png".
    """
    if image_format == "jpeg":
        return start.startswith(_JPEG)
    return (
        start.startswith(_PNG)
        and len(start) > _PNG_COLOR_TYPE
        and start[_PNG_BIT_DEPTH] <= 8
        and start[_PNG_COLOR_TYPE] in _GRAY_OR_RGB
    )
