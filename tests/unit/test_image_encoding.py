import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.images import image_encoding, jpeg_header
from resnet.base.errors import UserError
from tests.unit.encoded_images import (
    assert_is_plain,
    assert_tensorflow_agrees,
    chunk,
    decode,
    encode,
    noise,
    plain,
    png,
    png_of_16_bits,
    replace_byte,
    to_jpeg,
    to_png,
    with_frame,
    without,
)

PLAIN = encode(noise(), "JPEG")
PROGRESSIVE = encode(noise(), "JPEG", progressive=True)
SEVERAL = encode(noise(), "MPO", save_all=True, append_images=[noise()])


def with_orientation(image: Image.Image, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "maker"
    return encode(image, kind, exif=exif, quality=95)


@pytest.mark.parametrize(
    "data",
    [
        *(PLAIN, PROGRESSIVE, SEVERAL),
        encode(noise("L"), "JPEG"),
        encode(noise("L"), "JPEG", progressive=True),
        PLAIN[:2] + b"\xff\xff\xfe\0\x04ab" + PLAIN[2:],  # Fill bytes, a comment.
        *(PLAIN + junk for junk in (bytes(7), b"\xff", b"\xff\xd8\xff\xe0", b"\n")),
        *(PROGRESSIVE + junk for junk in (bytes(7), b"\xff\xd8\xff\xe0")),
        SEVERAL + bytes(7),
    ],
)
def test_an_rgb_or_grey_jpeg_is_kept_byte_for_byte(data):
    kept = to_jpeg(data, "x.JPEG")
    assert kept == image_encoding.EncodedImage(data, 16, 24, converted_from=None)
    assert kept.data is data


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "GIF"])
def test_other_formats_become_jpeg_whatever_the_name(kind):
    data = encode(plain("RGB", (200, 30, 60)), kind, lossless=True)
    named = {"WEBP": "WebP"}.get(kind, kind)
    encoded = to_jpeg(data, "x.JPEG")
    assert_is_plain(encoded, named, (200, 30, 60))
    assert_tensorflow_agrees(encoded)


def test_a_conversion_keeps_the_colours_of_single_pixels():
    data = encode(noise(), "PNG")
    image = decode(to_jpeg(data, "x.png").data)
    difference = np.asarray(image, int) - np.asarray(noise(), int)
    # Of noise, the hardest image. Quality 90 loses twice as much, and halving the
    # colour's resolution ten times as much.
    assert np.abs(difference).mean() < 4


def cmyk_jpeg(stored: tuple[int, ...]) -> bytes:
    """Returns a JPEG with these four numbers in every pixel, and Adobe's segment."""
    # Pillow inverts what it is given.
    image = plain("CMYK", tuple(255 - value for value in stored))
    return encode(image, "JPEG", quality=100)


# Stored as Adobe does, 255 minus the ink. RGB = stored colour * stored black / 255.
@pytest.mark.parametrize(
    ("stored", "colour"),
    [
        ((0, 255, 0, 255), (0, 255, 0)),
        ((200, 100, 50, 153), (120, 60, 30)),  # 153 / 255 = 0.6.
        ((255, 255, 255, 0), (0, 0, 0)),
    ],
)
def test_a_cmyk_jpeg_of_adobe_becomes_rgb(stored, colour):
    data = cmyk_jpeg(stored)
    assert decode(data).mode == "CMYK"
    assert b"Adobe" in data
    encoded = to_jpeg(data, "x.JPEG")
    assert_is_plain(encoded, "CMYK JPEG", colour, tolerance=3)
    assert_tensorflow_agrees(encoded)
    # Those of other programs hold inks, and have no segment of Adobe.
    inks = without(cmyk_jpeg(tuple(255 - value for value in stored)), b"\xff\xee")
    assert b"Adobe" not in inks
    assert_is_plain(to_jpeg(inks, "x.JPEG"), "CMYK JPEG", colour, tolerance=3)
    # TensorFlow converts CMYK itself, so the published record sets came about.
    for file in (data, inks):
        decoded = tf.io.decode_jpeg(file, channels=3)
        np.testing.assert_allclose(decoded[0, 0], colour, atol=3)


def test_a_ycck_jpeg_becomes_rgb():
    # Y, Cb, Cr of 255 - stored colour (JFIF), so of the ink (55, 155, 205): Y = 130.8,
    # Cb = 128 + (205 - Y) / 1.772 = 169.9, Cr = 128 + (55 - Y) / 1.402 = 73.9; then
    # black 0.6.
    data = cmyk_jpeg((131, 170, 74, 153))
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    encoded = to_jpeg(replace_byte(data, transform, 2), "x.JPEG")
    assert_is_plain(encoded, "YCCK JPEG", (120, 60, 30), tolerance=4)
    assert_tensorflow_agrees(encoded)


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (plain("RGBA", (255, 0, 0, 0)), (255, 255, 255)),
        (plain("RGBA", (255, 0, 0, 51)), (255, 204, 204)),
        (plain("RGBA", (10, 20, 30, 255)), (10, 20, 30)),
        (plain("LA", (0, 51)), (204, 204, 204)),
        *((plain("RGB", "white").convert(mode), (255, 255, 255)) for mode in "1LP"),
    ],
)
def test_every_mode_of_png_becomes_rgb_and_transparency_shows_white(image, colour):
    encoded = to_jpeg(encode(image, "PNG"), "x.png")
    assert_is_plain(encoded, "PNG", colour)
    # A single transparent colour.
    grey = plain("RGB", (9, 9, 9))
    palette = grey.quantize(2)
    for data in (
        encode(grey, "PNG", transparency=(9, 9, 9)),
        encode(palette, "PNG", transparency=palette.getpixel((0, 0))),
    ):
        assert_is_plain(to_jpeg(data, "x.png"), "PNG", (255, 255, 255))


@pytest.mark.parametrize(("value", "upper"), [(0x00FF, 0), (0x80FF, 0x80)])
def test_of_16_bits_the_upper_8_are_taken(value, upper):
    grey = encode(Image.fromarray(np.full((16, 24), value, np.uint16)), "PNG")
    encoded = to_jpeg(grey, "x.png")
    assert_is_plain(encoded, "16-bit PNG", [upper] * 3)
    colours = png_of_16_bits(2, struct.pack(">3H", value, 0x40FF, 0xC000))
    encoded = to_jpeg(colours, "x.png")
    assert_is_plain(encoded, "16-bit PNG", (upper, 0x40, 0xC0))


def test_the_first_frame_of_a_gif_is_taken():
    frames = [plain("RGB", (0, 0, 200)), plain("RGB", (200, 0, 0))]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_is_plain(to_jpeg(data, "x.gif"), "GIF", (0, 0, 200))


@pytest.mark.parametrize(
    "sampling",
    [
        *((0x11, 0x11, 0x11), (0x21, 0x11, 0x11), (0x12, 0x11, 0x11)),
        *((0x22, 0x11, 0x11), (0x41, 0x11, 0x11), (0x22, 0x21, 0x12)),
    ],
)
def test_every_usual_sampling_is_kept_and_decoded_by_tensorflow(sampling):
    # Larger than it says then: other factors need more or fewer blocks.
    flat = encode(plain("RGB", (90, 120, 60), size=(96, 64)), "JPEG", subsampling=0)
    changes = dict(zip((11, 14, 17), sampling, strict=True))
    flat = with_frame(flat, {6: 16, 8: 24, **changes})
    encoded = to_jpeg(flat, "x.JPEG")
    assert encoded.converted_from is None
    assert tf.io.decode_jpeg(encoded.data, channels=3).shape == (16, 24, 3)


def test_an_arithmetic_coded_jpeg_is_written_anew():
    data = with_frame(encode(noise(), "JPEG"), {1: 0xC9})
    encoded = to_jpeg(data, "x.JPEG")
    assert encoded.converted_from == "unusual JPEG"
    assert_tensorflow_agrees(encoded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({4: 12}, "it is a JPEG of 12 bits per sample; expected 8"),
        ({9: 2}, "it is a JPEG of 2 components; expected 1, 3 or 4"),
        ({1: 0xC3}, "broken data stream"),  # Lossless.
        ({5: 0, 6: 0}, "unknown format"),  # Height behind the image.
        ({11: 0x31, 14: 0x21}, "broken data stream"),  # Samples 2/3 of a pixel wide.
        ({11: 0x44}, "broken data stream"),  # More blocks than a group may have.
        (None, "broken data stream"),  # Without quantization tables.
    ],
)
def test_a_jpeg_that_tensorflow_cannot_read_is_refused(changes, message):
    data = without(PLAIN, b"\xff\xdb")
    if changes is not None:
        data = with_frame(PLAIN, changes)
    with pytest.raises(UserError, match=message):
        to_jpeg(data, "x.JPEG")
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_jpeg(data, channels=3)


def test_more_pixels_than_tensorflow_decodes_are_refused():
    large_jpeg = with_frame(PLAIN, {5: 0xFF, 7: 0xFF})  # 65,296 x 65,304.
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 65536, 65536, 8, 2, 0, 0, 0))
    for data in (large_jpeg, png(header, chunk(b"IDAT", b""))):
        with pytest.raises(UserError, match=r"it has more than 178,956,970 pixels\."):
            to_jpeg(data, "x.JPEG")


@pytest.mark.parametrize("process", [{}, {"progressive": True}])
@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_of_few_bytes_a_drawing_is_taken_and_a_truncated_image_is_refused(
    mode, process
):
    image = Image.new("RGB", (1280, 960), "white")
    image.paste((200, 40, 40), (300, 200, 500, 300))
    drawing = encode(image.convert(mode), "JPEG", **process)
    if mode != "CMYK":  # Which is decoded in any case.
        assert len(drawing) < image_encoding.SUSPICIOUS_BYTES_PER_PIXEL * 1280 * 960
    encoded = to_jpeg(drawing, "x.JPEG")
    assert (encoded.height, encoded.width) == (960, 1280)
    data = encode(noise().resize((640, 480)).convert(mode), "JPEG", **process)
    begin = jpeg_header.parse(data).scan_start
    cut = data[: begin + 500] + b"\xff\xd9"  # An end mark, as of repaired files.
    taller = with_frame(PLAIN, {5: 0x10})  # By 4096 rows.
    for damaged in (cut, taller):
        with pytest.raises(UserError, match="truncated: a part of the image is miss"):
            to_jpeg(damaged, "x.JPEG")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"no image", b"\xff\xd8\xff\xd9", encode(noise("F"), "TIFF")),
        *(PLAIN[:-2], PLAIN[:300], PLAIN[:3], PLAIN[:-50] + bytes(50)),
        *(encode(noise(), kind)[:-100] for kind in ("PNG", "GIF", "WEBP", "BMP")),
        *(encode(noise(), "TIFF", compression=c)[:-300] for c in ("raw", "tiff_lzw")),
        PLAIN[:2] + b"\xff\xd8" + PLAIN[2:],  # A second start marker.
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(data):
    with pytest.raises(UserError, match=r"^some/x\.JPEG (is|can't be)") as error:
        to_jpeg(data, "some/x.JPEG")
    assert "\n" not in str(error.value)
    assert "BytesIO" not in str(error.value)


HEADERS = [
    encode(noise(mode), "JPEG", **options)
    for mode in ("RGB", "L", "CMYK")
    for options in ({}, {"progressive": True}, {"optimize": True})
]


@settings(max_examples=60)
@given(st.sampled_from(HEADERS), st.data())
def test_whatever_is_damaged_in_a_header_what_is_taken_can_be_decoded(jpeg, data):
    scan_start = jpeg_header.parse(jpeg).scan_start
    offset = data.draw(st.integers(0, scan_start - 1))
    damaged = replace_byte(jpeg, offset, data.draw(st.integers(0, 255)))
    try:
        encoded = to_jpeg(damaged, "x.JPEG")
    except UserError:
        return
    decoded = tf.io.decode_jpeg(encoded.data, channels=3)
    assert decoded.shape == (encoded.height, encoded.width, 3)


@pytest.mark.parametrize(
    ("orientation", "corners"),
    # Upper left, upper right, lower left, lower right of what is seen; of the file they
    # are a, b, c, d. The tag says where row 0 and column 0 of the file are seen.
    [
        (2, "badc"),  # Top, right.
        (3, "dcba"),  # Bottom, right.
        (4, "cdab"),  # Bottom, left.
        (5, "acbd"),  # Left, top.
        (6, "cadb"),  # Right, top.
        (7, "dbca"),  # Right, bottom.
        (8, "bdac"),  # Left, bottom.
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_exif_orientation_is_applied_when_asked_for(kind, orientation, corners):
    greys = {"a": 250, "b": 180, "c": 100, "d": 20}
    rows = np.array([[greys["a"], greys["b"]], [greys["c"], greys["d"]]], np.uint8)
    image = Image.fromarray(np.kron(rows, np.ones((16, 24), np.uint8))).convert("RGB")
    data = with_orientation(image, kind, orientation)
    encoded = to_jpeg(data, "x", apply_exif_orientation=True)
    turned = decode(encoded.data)
    named = {"JPEG": "EXIF orientation", "WEBP": "WebP"}
    assert encoded.converted_from == named.get(kind, kind)
    assert turned.getexif().get(0x0112) is None
    size = (48, 32) if orientation <= 4 else (32, 48)
    assert (encoded.width, encoded.height) == turned.size == size
    seen = np.asarray(turned.convert("L").resize((2, 2), Image.Resampling.BOX), int)
    expected = [greys[corner] for corner in corners]
    # WebP and JPEG each lose something.
    np.testing.assert_allclose(seen.ravel(), expected, atol=6)


@pytest.mark.parametrize("orientation", [1, 9, None])
def test_an_exif_orientation_without_a_turn_changes_nothing(orientation):
    data = encode(noise(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffnonsense")
    if orientation is not None:
        data = with_orientation(noise(), "JPEG", orientation)
    assert to_jpeg(data, "x", apply_exif_orientation=True).data is data


def test_the_exif_orientation_of_a_png_may_follow_its_pixels():
    exif = Image.Exif()
    exif[0x0112] = 6
    with_exif = encode(noise(), "PNG", exif=exif)
    begin = with_exif.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(with_exif[begin : begin + 4], "big")
    data = with_exif[:begin] + with_exif[end:-12] + with_exif[begin:end]
    data += with_exif[-12:]
    for convert in to_jpeg, to_png:
        encoded = convert(data, "x", apply_exif_orientation=True)
        assert (encoded.height, encoded.width) == noise().size


def test_an_image_too_wide_for_its_format_is_refused_with_the_reason():
    wide = encode(Image.new("1", (1_000_001, 1)), "PNG")
    with pytest.raises(UserError, match=r"at most 65,500 .* as JPEG; .* 1,000,001 x 1"):
        to_jpeg(wide, "a.png")
    with pytest.raises(UserError, match="at most 1,000,000 pixels per side"):
        to_png(wide, "a.png")


@pytest.mark.parametrize(
    ("data", "is_lossy"),
    [
        (PLAIN, True),
        (encode(noise(), "WEBP"), True),
        (encode(noise(), "WEBP", lossless=True), False),
        # Its first bytes don't tell, if it has metadata.
        (encode(noise(), "WEBP", lossless=True, icc_profile=b"p"), True),
        (encode(noise(), "PNG"), False),
        (b"", False),
        (b"RIFF\4\0\0\0WAVE", False),
    ],
)
def test_lossy_formats_are_known_by_their_first_bytes(data, is_lossy):
    assert image_encoding.is_lossy(data[: image_encoding.START_BYTES]) is is_lossy


def test_only_files_of_the_format_of_the_records_keep_their_size():
    files = {"JPEG": PLAIN, "start of a PNG": encode(noise(), "PNG")[:20]}
    # A palette may have transparent colors.
    for mode in ("RGB", "L", "P", "RGBA", "LA"):
        files[mode] = encode(noise("RGBA").convert(mode), "PNG")
    for image_format, kept in (("jpeg", {"JPEG"}), ("png", {"RGB", "L"})):
        assert kept == {
            name
            for name, data in files.items()
            if image_encoding.keeps_its_size(data[:32], image_format)
        }


@pytest.mark.parametrize(
    ("data", "alone"),
    [
        (with_orientation(noise(), "PNG", 6), "png"),
        (encode(noise(), "WEBP", lossless=True), "png"),
        (encode(noise(), "WEBP"), "jpeg"),
        (encode(noise("CMYK"), "JPEG"), "jpeg"),
        (with_orientation(noise(), "JPEG", 6), "jpeg"),
    ],
    ids=["png", "lossless webp", "webp", "cmyk", "jpeg"],
)
@pytest.mark.parametrize("set_format", ["jpeg", "png", ""])
def test_an_image_is_read_as_the_converter_stores_it(tmp_path, data, alone, set_format):
    path = tmp_path / "image"
    path.write_bytes(data)
    expected = "jpeg" if set_format == "jpeg" else alone
    convert = {"jpeg": to_jpeg, "png": to_png}[expected]
    for is_turned in (False, True):
        stored = image_encoding.Encoding(set_format, is_turned).read(str(path))
        assert stored == (convert(data, "name", is_turned).data, expected)
        image = decode(stored[0])
        assert (image.format, image.mode) == (expected.upper(), "RGB")


def test_files_that_are_no_images_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "x.jpg"
    with pytest.raises(UserError, match=r"x\.jpg can't be read: No such file"):
        image_encoding.Encoding().read(str(path))
    path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"x\.jpg can't be decoded as an image"):
        image_encoding.Encoding().read(str(path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="can't be read: not a regular file"):
        image_encoding.Encoding().read(str(path))
