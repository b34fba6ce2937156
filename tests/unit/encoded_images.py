"""Encoded images for the tests of images, and what is expected of them."""

import io
import struct
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image

from data_prep.images import image_encoding
from data_prep.images.image_encoding import Encoding


def to_jpeg(data: bytes, name: str, *rules, **more) -> image_encoding.EncodedImage:
    """Returns an image as a set of JPEG stores it, by further fields of `Encoding`."""
    return Encoding("jpeg", *rules, **more).store(data, name)


def to_png(data: bytes, name: str, *rules, **more) -> image_encoding.EncodedImage:
    """Returns an image as a set of PNG stores it, by further fields of `Encoding`."""
    return Encoding("png", *rules, **more).store(data, name)


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


def png_of(samples: np.ndarray, color_type: int) -> bytes:
    """Returns a PNG of samples `[height, width, channels]` of 8 or 16 bits.

    Its rows have each filter of PNG in turn.
    """
    height, width, channels = samples.shape
    pixel = channels * samples.itemsize
    rows = np.frombuffer(samples.astype(samples.dtype.newbyteorder(">")), np.uint8)
    rows = rows.reshape(height, -1).astype(int)
    padded = np.pad(rows, ((1, 0), (pixel, 0)))
    left, above, corner = padded[1:, :-pixel], padded[:-1, pixel:], padded[:-1, :-pixel]
    near = np.stack([left, above, corner])
    distances = np.abs(left + above - corner - near)
    paeth = np.take_along_axis(near, distances.argmin(0)[np.newaxis], 0)[0]
    filters = np.stack([0 * rows, left, above, (left + above) // 2, paeth])
    data = b"".join(
        bytes([index % 5])
        + (row - filters[index % 5, index]).astype(np.uint8).tobytes()
        for index, row in enumerate(rows)
    )
    content = width, height, 8 * samples.itemsize, color_type, 0, 0, 0
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *content))
    return png(header, chunk(b"IDAT", zlib.compress(data)))


def _lzw(data: bytes) -> bytes:
    """Returns LZW as TIFF has it, in which no code stands for several bytes."""
    codes = [256]  # Begin a new table; before it has codes of 10 bits, another one.
    for first in range(0, len(data), 200):
        codes += [*data[first : first + 200], 256]
    bits = "".join(f"{code:09b}" for code in [*codes, 257])
    return int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8))


COMPRESS = {1: bytes, 5: _lzw, 8: zlib.compress}  # By the number in TIFF.


def tiff_of(
    samples: np.ndarray, order: str = "<", compression: int = 1, **others: int
) -> bytes:
    """Returns a TIFF of samples `[height, width, channels]` in one strip.

    `others` are tags by their numbers, as t274=6.
    """
    height, width, channels = samples.shape
    stored = samples.astype(samples.dtype.newbyteorder(order)).tobytes()
    strip = COMPRESS.get(compression, bytes)(stored)
    bits = 8 * samples.itemsize
    tags: dict[int, tuple[int, ...]] = {
        **{256: (width,), 257: (height,), 258: (bits,) * channels},
        **{259: (compression,), 262: (1 if channels < 3 else 2,), 273: (8,)},
        **{277: (channels,), 278: (height,), 279: (len(strip),)},
        **{int(name[1:]): (value,) for name, value in others.items()},
    }
    strip += bytes(len(strip) % 2)
    start = 8 + len(strip)
    outside = start + 2 + 12 * len(tags) + 4  # Of values of more than 4 bytes.
    entries, values = b"", b""
    for tag, numbers in sorted(tags.items()):
        kind, letter = (4, "I") if tag in (273, 279) else (3, "H")
        value = struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
        if len(value) > 4:
            values, value = (
                values + value,
                struct.pack(f"{order}I", outside + len(values)),
            )
        entries += struct.pack(f"{order}HHI", tag, kind, len(numbers))
        entries += value.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, start)
    count = struct.pack(f"{order}H", len(tags))
    return head + strip + count + entries + bytes(4) + values
