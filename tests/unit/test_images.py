import io

import numpy as np
import pytest
from PIL import Image

from data_prep import images
from data_prep.errors import UserError


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


def assert_is_plain(encoded: images.EncodedImage, colour, tolerance: int = 2) -> None:
    """Asserts a converted RGB picture in one colour, up to the loss of the JPEG."""
    picture = decode(encoded.data)
    assert encoded.converted
    assert (picture.format, picture.mode) == ("JPEG", "RGB")
    assert (encoded.width, encoded.height) == picture.size == (24, 16)
    difference = np.asarray(picture, int) - np.array(colour)
    assert np.abs(difference).max() <= tolerance


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_an_rgb_or_grey_jpeg_is_kept_byte_for_byte(mode, options):
    data = encode(noise(mode), "JPEG", **options)
    kept = images.to_jpeg(data, "x.JPEG")
    assert kept == images.EncodedImage(data, height=16, width=24, converted=False)


def test_an_exif_orientation_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn by a quarter.
    data = encode(noise(), "JPEG", exif=exif)
    assert images.to_jpeg(data, "x.JPEG") == images.EncodedImage(data, 16, 24, False)


def test_a_jpeg_with_further_pictures_is_kept():
    data = encode(noise(), "MPO", save_all=True, append_images=[noise()])
    assert images.to_jpeg(data, "x.JPEG") == images.EncodedImage(data, 16, 24, False)


def test_bytes_after_the_end_of_a_jpeg_do_no_harm():
    data = encode(noise(), "JPEG") + bytes(7)
    assert images.to_jpeg(data, "x.JPEG") == images.EncodedImage(data, 16, 24, False)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "GIF"])
def test_other_formats_become_jpeg_whatever_the_name(kind):
    data = encode(plain("RGB", (200, 30, 60)), kind, lossless=True)
    assert_is_plain(images.to_jpeg(data, "x.JPEG"), (200, 30, 60))


def test_a_conversion_keeps_the_colours_of_single_pixels():
    data = encode(noise(), "PNG")
    picture = decode(images.to_jpeg(data, "x.png").data)
    difference = np.asarray(picture, int) - np.asarray(noise(), int)
    # Of noise, the hardest picture. Quality 90 loses twice as much, and halving the
    # colour's resolution ten times as much.
    assert np.abs(difference).mean() < 4


def test_a_cmyk_jpeg_becomes_rgb():
    data = encode(plain("CMYK", (0, 255, 255, 0)), "JPEG", quality=95)
    assert decode(data).mode == "CMYK"
    assert_is_plain(images.to_jpeg(data, "x.JPEG"), (255, 0, 0), tolerance=6)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_every_mode_of_png_becomes_rgb(mode):
    data = encode(plain("RGB", "white").convert(mode), "PNG")
    assert_is_plain(images.to_jpeg(data, "x.png"), (255, 255, 255))


@pytest.mark.parametrize(
    ("picture", "colour"),
    [
        (plain("RGBA", (255, 0, 0, 0)), (255, 255, 255)),
        (plain("RGBA", (255, 0, 0, 51)), (255, 204, 204)),
        (plain("RGBA", (10, 20, 30, 255)), (10, 20, 30)),
        (plain("LA", (0, 51)), (204, 204, 204)),
    ],
)
def test_transparency_shows_white(picture, colour):
    assert_is_plain(images.to_jpeg(encode(picture, "PNG"), "x.png"), colour)


def test_a_transparent_colour_shows_white():
    grey = plain("RGB", (9, 9, 9))
    data = encode(grey, "PNG", transparency=(9, 9, 9))
    assert_is_plain(images.to_jpeg(data, "x.png"), (255, 255, 255))
    palette = grey.quantize(2)
    data = encode(palette, "PNG", transparency=palette.getpixel((0, 0)))
    assert_is_plain(images.to_jpeg(data, "x.png"), (255, 255, 255))


@pytest.mark.parametrize(
    ("value", "grey"), [(0, 0), (0x00FF, 0), (0x80FF, 0x80), (0xFFFF, 255)]
)
def test_the_upper_8_of_16_bits_are_taken(value, grey):
    picture = Image.fromarray(np.full((16, 24), value, np.uint16))
    assert_is_plain(images.to_jpeg(encode(picture, "PNG"), "x.png"), [grey] * 3)


def test_the_first_frame_of_a_gif_is_taken():
    frames = [plain("RGB", (0, 0, 200)), plain("RGB", (200, 0, 0))]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_is_plain(images.to_jpeg(data, "x.gif"), (0, 0, 200))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no picture",
        encode(noise(), "TIFF"),
        encode(noise(), "JPEG")[:-2],
        encode(noise(), "JPEG")[:300],
        encode(noise(), "JPEG")[:3],
        encode(noise(), "PNG")[:200],
        encode(noise(), "GIF")[:-100],
    ],
    ids=["empty", "text", "tiff", "no end", "cut", "start", "cut png", "cut gif"],
)
def test_what_cannot_be_decoded_is_refused_by_name(data):
    with pytest.raises(UserError, match=r"^some/x\.JPEG is|^some/x\.JPEG must be"):
        images.to_jpeg(data, "some/x.JPEG")
