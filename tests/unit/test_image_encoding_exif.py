import numpy as np
import pytest
from PIL import Image

from data_prep.conversion import image_encoding
from tests.unit.encoded_images import assert_is_kept, decode, encode, noise


def with_orientation(image: Image.Image, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "maker"
    return encode(image, kind, exif=exif, quality=95)


def test_an_exif_orientation_is_left_alone():
    assert_is_kept(with_orientation(noise(), "JPEG", 6))


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
    colours = {
        "a": (250, 250, 250),
        "b": (200, 20, 20),
        "c": (20, 200, 20),
        "d": (20, 20, 20),
    }
    image = Image.new("RGB", (48, 32))
    for colour, place in zip(
        colours.values(), [(0, 0), (24, 0), (0, 16), (24, 16)], strict=True
    ):
        image.paste(colour, (*place, place[0] + 24, place[1] + 16))
    data = with_orientation(image, kind, orientation)
    encoded = image_encoding.to_jpeg(data, "x", apply_exif_orientation=True)
    turned = decode(encoded.data)
    assert encoded.converted_from == {"JPEG": "EXIF orientation", "WEBP": "WebP"}.get(
        kind, kind
    )
    assert turned.getexif().get(0x0112) is None
    size = (48, 32) if orientation <= 4 else (32, 48)
    assert (encoded.width, encoded.height) == turned.size == size
    width, height = size
    for corner, place in zip(
        corners,
        [(4, 4), (width - 5, 4), (4, height - 5), (width - 5, height - 5)],
        strict=True,
    ):
        difference = np.subtract(turned.getpixel(place), colours[corner])
        assert np.abs(difference).max() <= 12  # WebP and JPEG each lose something.


@pytest.mark.parametrize("orientation", [0, 1, 9])
def test_an_exif_orientation_without_a_turn_changes_nothing(orientation):
    data = with_orientation(noise(), "JPEG", orientation)
    assert image_encoding.to_jpeg(data, "x", apply_exif_orientation=True).data is data


def test_broken_exif_data_changes_nothing():
    data = encode(noise(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffnonsense")
    assert image_encoding.to_jpeg(data, "x", apply_exif_orientation=True).data is data


def test_the_exif_orientation_of_a_png_may_follow_its_pixels():
    exif = Image.Exif()
    exif[0x0112] = 6
    with_exif = encode(noise(), "PNG", exif=exif)
    begin = with_exif.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(with_exif[begin : begin + 4], "big")
    data = with_exif[:begin] + with_exif[end:-12] + with_exif[begin:end]
    data += with_exif[-12:]
    for convert in image_encoding.to_jpeg, image_encoding.to_png:
        encoded = convert(data, "x", apply_exif_orientation=True)
        assert (encoded.height, encoded.width) == noise().size
