import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.images import image_encoding
from resnet.base.errors import UserError
from tests.unit.encoded_images import (
    chunk,
    decode,
    encode,
    noise,
    png,
    png_header,
    replace_byte,
    to_jpeg,
    to_png,
)


def assert_tensorflow_decodes(data: bytes, expected: np.ndarray) -> None:
    decoded = tf.io.decode_png(data, channels=3).numpy()
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
@pytest.mark.parametrize("options", [{}, {"gamma": True}])
def test_a_png_is_kept_byte_for_byte_and_has_the_same_pixels_for_tensorflow(
    mode, options
):
    image = noise().quantize(200) if mode == "P" else noise(mode)
    data = encode(image, "PNG", **options)
    if "gamma" in options:  # A decoder that applied it would change the pixels.
        data = data[:33] + chunk(b"gAMA", struct.pack(">I", 90_000)) + data[33:]
    kept = to_png(data, "x.png")
    assert kept == image_encoding.EncodedImage(data, 16, 24, None)
    assert kept.data is data
    assert_tensorflow_decodes(data, np.asarray(image.convert("RGB")))


def test_a_new_file_has_the_same_pixels_upright_and_no_metadata():
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned a quarter to the right.
    options = {"lossless": True, "icc_profile": b"profile", "exif": exif}
    data = encode(noise(), "WEBP", **options)
    png_file = to_png(data, "x")
    assert_tensorflow_decodes(png_file.data, np.asarray(noise()))
    for encoded in (png_file, to_jpeg(data, "x")):
        assert encoded.converted_from == "WebP"
        assert not decode(encoded.data).info.keys() & {"icc_profile", "exif"}
    upright = to_png(data, "x", apply_exif_orientation=True).data
    assert_tensorflow_decodes(upright, np.rot90(np.asarray(noise()), k=-1))


def test_damaged_and_other_files_are_refused():
    good = encode(noise(), "PNG")
    pixels = good.index(b"IDAT") + 4
    for data in (
        b"text",
        good[: len(good) // 2],
        good[:-12],  # Without its end.
        replace_byte(good, pixels + 30, good[pixels + 30] ^ 1),
        replace_byte(good, len(good) - 13, good[-13] ^ 1),  # A checksum.
        encode(noise(), "JPEG"),
    ):
        with pytest.raises(UserError, match=r"^x\.png can't be decoded as an image"):
            to_png(data, "x.png")
    with pytest.raises(UserError, match="is an empty file"):
        to_png(b"", "x.png")


ROWS = bytes(16 * (1 + 24))  # Of an image of 8 bits gray.
# The seven passes of Adam7 of 24x16 pixels have 3x2, 3x2, 6x2, 6x4, 12x4, 12x8 and 24x8
# pixels, and each row has a byte besides.
PASSES = bytes(2 * 4 + 2 * 4 + 2 * 7 + 4 * 7 + 4 * 13 + 8 * 13 + 8 * 25)


@pytest.mark.parametrize("convert", [to_png, to_jpeg])
@pytest.mark.parametrize(
    ("first_chunks", "compressed"),
    [
        (png_header(8, 0), zlib.compress(ROWS[:-1])),  # One byte is missing,
        (png_header(8, 0), zlib.compress(ROWS[: 4 * 25])),  # 12 of the 16 rows,
        (
            png_header(8, 0, interlace=1),
            zlib.compress(PASSES[:-1]),
        ),  # a byte of a pass,
        (png_header(8, 0), zlib.compress(ROWS)[:-4]),  # or the checksum.
        (png_header(8, 0) * 2, zlib.compress(ROWS)),
        (png_header(8, 0) + chunk(b"ABCD", b""), zlib.compress(ROWS)),
    ],
)
def test_a_png_that_only_pillow_decodes_is_refused(first_chunks, compressed, convert):
    data = png(first_chunks, chunk(b"IDAT", compressed))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_png(data, channels=3)
    with pytest.raises(UserError, match=r"^x\.png can't be decoded as an image"):
        convert(data, "x.png")


@pytest.mark.parametrize(
    ("first_chunks", "rows"),
    [
        (png_header(8, 0), ROWS),
        (png_header(8, 0), ROWS + bytes(100)),
        (png_header(8, 0, interlace=1), PASSES),
        (png_header(1, 0), bytes(16 * (1 + 3))),
        (png_header(8, 0) + chunk(b"abCD", b"of another program"), ROWS),
    ],
)
def test_a_complete_png_of_any_encoder_is_kept(first_chunks, rows):
    compressed = zlib.compress(rows)
    pieces = [chunk(b"IDAT", compressed[:7]), chunk(b"IDAT", compressed[7:])]
    data = png(first_chunks, *pieces) + b"what follows the end"
    assert to_png(data, "x.png").data is data
    assert_tensorflow_decodes(data, np.zeros((16, 24, 3)))
