"""Encoded images for the tests of images, and what is expected of them."""

import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image

from data_prep.records import image_encoding


def encode(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def plain(mode: str, colour, size=(24, 16)) -> Image.Image:
    return Image.new(mode, size, colour)


def noise(mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def assert_is_plain(
    encoded: image_encoding.EncodedImage, kind: str, colour, tolerance: int = 2
) -> None:
    """Asserts a converted RGB image in one colour, up to the loss of the JPEG."""
    image = decode(encoded.data)
    assert encoded.converted_from == kind
    assert (image.format, image.mode) == ("JPEG", "RGB")
    assert (encoded.width, encoded.height) == image.size == (24, 16)
    difference = np.asarray(image, int) - np.array(colour)
    assert np.abs(difference).max() <= tolerance


def assert_tensorflow_agrees(encoded: image_encoding.EncodedImage) -> None:
    """Asserts that training decodes what is written, to the same pixels."""
    decoded = tf.io.decode_jpeg(
        encoded.data, channels=3, dct_method="INTEGER_ACCURATE"
    ).numpy()
    expected = np.asarray(decode(encoded.data).convert("RGB"), int)
    assert decoded.shape == (encoded.height, encoded.width, 3)
    # Two builds of one library; they may round differently where they interpolate.
    assert np.abs(decoded - expected).max() <= 2


def replace_byte(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + bytes([value]) + data[offset + 1 :]


def with_frame(data: bytes, changes: dict[int, int]) -> bytes:
    """Returns a baseline JPEG with other bytes in its frame header, by their place.

    1: process; 4: precision; 5, 6: height; 7, 8: width; 9: number of components; 11,
    14, 17: sampling factors of each.
    """
    frame = data.index(b"\xff\xc0")
    for place, value in changes.items():
        data = replace_byte(data, frame + place, value)
    return data


def without(data: bytes, marker: bytes) -> bytes:
    """Returns a JPEG without the segments of a marker."""
    while (begin := data.find(marker)) >= 0:
        length = int.from_bytes(data[begin + 2 : begin + 4], "big")
        data = data[:begin] + data[begin + 2 + length :]
    return data


def chunk(name: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def png(*chunks: bytes) -> bytes:
    """Returns a PNG with chunks between its signature and its end."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def png_header(bit_depth: int, color_type: int, interlace: int = 0) -> bytes:
    """Returns the header of an image of 24x16 pixels."""
    content = 24, 16, bit_depth, color_type, 0, 0, interlace
    return chunk(b"IHDR", struct.pack(">IIBBBBB", *content))


def png_of_16_bits(color_type: int, pixel: bytes) -> bytes:
    """Returns a PNG of 24x16 equal pixels of 16 bits per channel."""
    rows = (b"\0" + pixel * 24) * 16
    return png(png_header(16, color_type), chunk(b"IDAT", zlib.compress(rows)))
