import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.conversion import image_encoding, jpeg_header
from resnet.base.errors import UserError
from tests.unit.encoded_images import (
    assert_is_kept,
    assert_is_plain,
    assert_tensorflow_agrees,
    decode,
    encode,
    noise,
    plain,
    replace_byte,
    with_frame,
    without,
)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_an_rgb_or_grey_jpeg_is_kept_byte_for_byte(mode, options):
    data = encode(noise(mode), "JPEG", **options)
    assert_is_kept(data)


def test_a_jpeg_with_further_images_is_kept():
    data = encode(noise(), "MPO", save_all=True, append_images=[noise()])
    assert_is_kept(data)


@pytest.mark.parametrize("junk", [bytes(7), b"\xff", b"\xff\xd8\xff\xe0", b"\n"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_bytes_after_the_end_of_a_jpeg_do_no_harm(junk, options):
    assert_is_kept(encode(noise(), "JPEG", **options) + junk)


def test_bytes_after_the_end_of_a_jpeg_with_further_images_do_no_harm():
    data = encode(noise(), "MPO", save_all=True, append_images=[noise()])
    assert_is_kept(data + bytes(7))


def test_fill_bytes_and_comments_in_a_header_do_no_harm():
    data = encode(noise(), "JPEG")
    assert_is_kept(data[:2] + b"\xff\xff\xfe\0\x04ab" + data[2:])


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "GIF"])
def test_other_formats_become_jpeg_whatever_the_name(kind):
    data = encode(plain("RGB", (200, 30, 60)), kind, lossless=True)
    named = {"WEBP": "WebP"}.get(kind, kind)
    assert_is_plain(image_encoding.to_jpeg(data, "x.JPEG"), named, (200, 30, 60))


def test_a_conversion_keeps_the_colours_of_single_pixels():
    data = encode(noise(), "PNG")
    image = decode(image_encoding.to_jpeg(data, "x.png").data)
    difference = np.asarray(image, int) - np.asarray(noise(), int)
    # Of noise, the hardest image. Quality 90 loses twice as much, and halving the
    # colour's resolution ten times as much.
    assert np.abs(difference).mean() < 4


# Stored as Adobe does, 255 minus the ink. RGB = stored colour * stored black / 255.
CMYK_COLOURS = [
    ((255, 0, 0, 255), (255, 0, 0)),
    ((0, 255, 0, 255), (0, 255, 0)),
    ((200, 100, 50, 255), (200, 100, 50)),
    ((200, 100, 50, 153), (120, 60, 30)),  # 153 / 255 = 0.6.
    ((255, 255, 255, 0), (0, 0, 0)),
]


def cmyk_jpeg(stored: tuple[int, ...]) -> bytes:
    """Returns a JPEG with these four numbers in every pixel, and Adobe's segment."""
    # Pillow inverts what it is given.
    image = plain("CMYK", tuple(255 - value for value in stored))
    return encode(image, "JPEG", quality=100)


@pytest.mark.parametrize(("stored", "colour"), CMYK_COLOURS)
def test_a_cmyk_jpeg_of_adobe_becomes_rgb(stored, colour):
    data = cmyk_jpeg(stored)
    assert decode(data).mode == "CMYK"
    assert b"Adobe" in data
    encoded = image_encoding.to_jpeg(data, "x.JPEG")
    assert_is_plain(encoded, "CMYK JPEG", colour, tolerance=3)
    assert_tensorflow_agrees(encoded)
    # TensorFlow converts CMYK itself, so the published record sets came about.
    np.testing.assert_allclose(
        tf.io.decode_jpeg(data, channels=3)[0, 0], colour, atol=3
    )


@pytest.mark.parametrize(("stored", "colour"), CMYK_COLOURS)
def test_a_cmyk_jpeg_of_others_holds_inks_and_becomes_rgb(stored, colour):
    inks = tuple(255 - value for value in stored)
    data = without(cmyk_jpeg(inks), b"\xff\xee")
    assert b"Adobe" not in data
    encoded = image_encoding.to_jpeg(data, "x.JPEG")
    assert_is_plain(encoded, "CMYK JPEG", colour, tolerance=3)
    np.testing.assert_allclose(
        tf.io.decode_jpeg(data, channels=3)[0, 0], colour, atol=3
    )


@pytest.mark.parametrize(
    ("stored", "colour"),
    [
        # Y, Cb, Cr of 255 - stored colour (JFIF), so of the ink; then black.
        ((255, 128, 128, 255), (0, 0, 0)),
        ((0, 128, 128, 255), (255, 255, 255)),
        # Ink (0, 255, 255) = cyan's complement: Y = 0.587 * 255 + 0.114 * 255 = 178.8,
        # Cb = 128 + (255 - Y) / 1.772 = 171.0, Cr = 128 + (0 - Y) / 1.402 = 0.5.
        ((179, 171, 1, 255), (255, 0, 0)),
        # Ink (55, 155, 205): Y = 130.8, Cb = 128 + (205 - Y) / 1.772 = 169.9,
        # Cr = 128 + (55 - Y) / 1.402 = 73.9; black 0.6.
        ((131, 170, 74, 153), (120, 60, 30)),
    ],
)
def test_a_ycck_jpeg_becomes_rgb(stored, colour):
    data = cmyk_jpeg(stored)
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    encoded = image_encoding.to_jpeg(replace_byte(data, transform, 2), "x.JPEG")
    assert_is_plain(encoded, "YCCK JPEG", colour, tolerance=4)
    assert_tensorflow_agrees(encoded)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_every_mode_of_png_becomes_rgb(mode):
    data = encode(plain("RGB", "white").convert(mode), "PNG")
    assert_is_plain(image_encoding.to_jpeg(data, "x.png"), "PNG", (255, 255, 255))


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (plain("RGBA", (255, 0, 0, 0)), (255, 255, 255)),
        (plain("RGBA", (255, 0, 0, 51)), (255, 204, 204)),
        (plain("RGBA", (10, 20, 30, 255)), (10, 20, 30)),
        (plain("LA", (0, 51)), (204, 204, 204)),
    ],
)
def test_transparency_shows_white(image, colour):
    assert_is_plain(
        image_encoding.to_jpeg(encode(image, "PNG"), "x.png"), "PNG", colour
    )


def test_a_transparent_colour_shows_white():
    grey = plain("RGB", (9, 9, 9))
    data = encode(grey, "PNG", transparency=(9, 9, 9))
    assert_is_plain(image_encoding.to_jpeg(data, "x.png"), "PNG", (255, 255, 255))
    palette = grey.quantize(2)
    data = encode(palette, "PNG", transparency=palette.getpixel((0, 0)))
    assert_is_plain(image_encoding.to_jpeg(data, "x.png"), "PNG", (255, 255, 255))


VALUES_16_BITS = [(0, 0), (0x00FF, 0), (0x80FF, 0x80), (0xFFFF, 255)]


@pytest.mark.parametrize(("value", "grey"), VALUES_16_BITS)
def test_of_16_bits_in_grey_the_upper_8_are_taken(value, grey):
    image = Image.fromarray(np.full((16, 24), value, np.uint16))
    encoded = image_encoding.to_jpeg(encode(image, "PNG"), "x.png")
    assert_is_plain(encoded, "16-bit PNG", [grey] * 3)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    )


def rgb_png_of_16_bits(colour: tuple[int, int, int], *chunks: bytes) -> bytes:
    """Returns a plain image; Pillow writes no such files."""
    row = b"\0" + struct.pack(">3H", *colour) * 24
    header = struct.pack(">IIBBBBB", 24, 16, 16, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            *chunks,
            chunk(b"IDAT", zlib.compress(row * 16)),
            chunk(b"IEND", b""),
        )
    )


@pytest.mark.parametrize(("value", "upper"), VALUES_16_BITS)
def test_of_16_bits_in_colour_the_upper_8_are_taken(value, upper):
    encoded = image_encoding.to_jpeg(
        rgb_png_of_16_bits((value, 0x40FF, 0xC000)), "x.png"
    )
    assert_is_plain(encoded, "16-bit PNG", (upper, 0x40, 0xC0))


def test_the_first_frame_of_a_gif_is_taken():
    frames = [plain("RGB", (0, 0, 200)), plain("RGB", (200, 0, 0))]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_is_plain(image_encoding.to_jpeg(data, "x.gif"), "GIF", (0, 0, 200))


@pytest.mark.parametrize(
    ("sampling", "process"),
    [
        ((0x11, 0x11, 0x11), {}),
        ((0x21, 0x11, 0x11), {}),
        ((0x12, 0x11, 0x11), {}),  # 4:4:0
        ((0x22, 0x11, 0x11), {}),
        ((0x41, 0x11, 0x11), {}),  # 4:1:1
        ((0x22, 0x21, 0x12), {}),
        ((0x22, 0x11, 0x11), {"progressive": True}),
    ],
)
def test_every_usual_sampling_is_kept_and_decoded_by_tensorflow(sampling, process):
    # Larger than it says then: other factors need more or fewer blocks.
    image = plain("RGB", (90, 120, 60), size=(96, 64))
    flat = encode(image, "JPEG", subsampling=0, **process)
    if not process:
        changes = dict(zip((11, 14, 17), sampling, strict=True))
        flat = with_frame(flat, {6: 16, 8: 24, **changes})
    encoded = image_encoding.to_jpeg(flat, "x.JPEG")
    assert encoded.converted_from is None
    size = (64, 96) if process else (16, 24)
    assert tf.io.decode_jpeg(encoded.data, channels=3).shape == (*size, 3)


@pytest.mark.parametrize(
    "data",
    [
        encode(noise(), "PNG"),
        encode(noise("L"), "BMP"),
        encode(noise("P"), "GIF"),
        encode(noise(), "WEBP"),
        encode(noise("CMYK"), "JPEG"),
        encode(noise("L"), "JPEG"),
    ],
)
def test_what_is_written_is_decoded_by_tensorflow(data):
    assert_tensorflow_agrees(image_encoding.to_jpeg(data, "x"))


def test_an_arithmetic_coded_jpeg_is_written_anew():
    data = with_frame(encode(noise(), "JPEG"), {1: 0xC9})
    encoded = image_encoding.to_jpeg(data, "x.JPEG")
    assert encoded.converted_from == "unusual JPEG"
    assert_tensorflow_agrees(encoded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({4: 12}, "it is a JPEG of 12 bits per sample; expected 8"),
        ({9: 2}, "it is a JPEG of 2 components; expected 1, 3 or 4"),
        ({1: 0xC3}, "broken data stream"),  # Lossless.
        ({1: 0xC5}, "broken data stream"),  # Hierarchical.
        ({5: 0, 6: 0}, "unknown format"),  # Height behind the image.
        ({11: 0x31, 14: 0x21}, "broken data stream"),  # Samples 2/3 of a pixel wide.
        ({11: 0x44}, "broken data stream"),  # More blocks than a group may have.
        ({11: 0x00}, "broken data stream"),
    ],
)
def test_a_jpeg_that_tensorflow_cannot_read_is_refused(changes, message):
    data = with_frame(encode(noise(), "JPEG"), changes)
    with pytest.raises(UserError, match=message):
        image_encoding.to_jpeg(data, "x.JPEG")
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_jpeg(data, channels=3)


def test_a_jpeg_without_quantization_tables_is_refused():
    data = without(encode(noise(), "JPEG"), b"\xff\xdb")
    with pytest.raises(UserError, match="broken data stream"):
        image_encoding.to_jpeg(data, "x.JPEG")


@pytest.mark.parametrize("process", [{}, {"progressive": True}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_drawing_of_few_bytes_is_decoded_and_taken(mode, process):
    image = Image.new("RGB", (1280, 960), "white")
    image.paste((200, 40, 40), (300, 200, 500, 300))
    data = encode(image.convert(mode), "JPEG", **process)
    if mode != "CMYK":  # Which is decoded in any case.
        assert len(data) < image_encoding.SUSPICIOUS_BYTES_PER_PIXEL * 1280 * 960
    encoded = image_encoding.to_jpeg(data, "x.JPEG")
    assert (encoded.height, encoded.width) == (960, 1280)
    assert encoded.converted_from == ("CMYK JPEG" if mode == "CMYK" else None)


@pytest.mark.parametrize("process", [{}, {"progressive": True}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_large_image_of_which_little_is_there_is_refused(mode, process):
    data = encode(noise().resize((640, 480)).convert(mode), "JPEG", **process)
    begin = jpeg_header.parse(data).scan_start
    cut = data[: begin + 500] + b"\xff\xd9"  # An end mark, as of repaired files.
    message = "it is truncated: a part of the image is missing"
    with pytest.raises(UserError, match=message):
        image_encoding.to_jpeg(cut, "x.JPEG")


def test_an_image_with_the_height_of_another_is_refused():
    data = with_frame(encode(noise(), "JPEG"), {5: 0x10})  # 16 + 4096 rows.
    message = "it is truncated: a part of the image is missing"
    with pytest.raises(UserError, match=message):
        image_encoding.to_jpeg(data, "x.JPEG")


def test_a_large_photograph_is_kept():
    data = encode(noise().resize((6000, 4000)), "JPEG", quality=95)
    assert image_encoding.to_jpeg(data, "x.JPEG").data is data


@pytest.mark.parametrize(
    "data",
    [
        with_frame(encode(noise(), "JPEG"), {5: 0xFF, 7: 0xFF}),  # 65,296 x 65,304.
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 65536, 65536, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", b""),
    ],
    ids=["jpeg", "png"],
)
def test_more_pixels_than_tensorflow_decodes_are_refused(data):
    with pytest.raises(UserError, match=r"it has more than 178,956,970 pixels\."):
        image_encoding.to_jpeg(data, "x.JPEG")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        encode(noise(), "TIFF"),
        encode(noise(), "JPEG")[:-2],
        encode(noise(), "JPEG")[:300],
        encode(noise(), "JPEG")[:3],
        encode(noise(), "PNG")[:200],
        encode(noise(), "GIF")[:-100],
        encode(noise(), "WEBP")[:-100],
        encode(noise(), "BMP")[:-100],
        encode(noise(), "JPEG")[:-50] + bytes(50),
        b"\xff\xd8\xff\xd9",
    ],
    ids=[
        "empty",
        "text",
        "tiff",
        "no end",
        "cut",
        "start",
        "cut png",
        "cut gif",
        "cut webp",
        "cut bmp",
        "zeros at the end",
        "nothing but marks",
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(data):
    with pytest.raises(UserError, match=r"^some/x\.JPEG (is|can't be)") as error:
        image_encoding.to_jpeg(data, "some/x.JPEG")
    assert "\n" not in str(error.value)
    assert "BytesIO" not in str(error.value)


HEADERS = [
    encode(noise(mode), "JPEG", **options)
    for mode in ("RGB", "L", "CMYK")
    for options in ({}, {"progressive": True}, {"optimize": True})
]


def test_a_jpeg_with_a_second_start_marker_is_refused():
    data = encode(noise(), "JPEG")
    with pytest.raises(UserError, match=r"^x\.JPEG can't be decoded"):
        image_encoding.to_jpeg(data[:2] + b"\xff\xd8" + data[2:], "x.JPEG")


@settings(max_examples=300)
@given(st.sampled_from(HEADERS), st.data())
def test_whatever_is_damaged_in_a_header_what_is_taken_can_be_decoded(jpeg, data):
    scan_start = jpeg_header.parse(jpeg).scan_start
    offset = data.draw(st.integers(0, scan_start - 1))
    damaged = replace_byte(jpeg, offset, data.draw(st.integers(0, 255)))
    try:
        encoded = image_encoding.to_jpeg(damaged, "x.JPEG")
    except UserError:
        return
    decoded = tf.io.decode_jpeg(encoded.data, channels=3)
    assert decoded.shape == (encoded.height, encoded.width, 3)
