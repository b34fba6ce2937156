"""How the image files that a user names are read."""

import io

import pytest
from PIL import Image

from data_prep.records import image_encoding
from resnet.base.errors import UserError
from tests.unit.encoded_images import encode, noise


@pytest.mark.parametrize(
    ("data", "alone"),
    [
        (encode(noise(), "PNG"), "png"),
        (encode(noise(), "BMP"), "png"),
        (encode(noise(), "WEBP", lossless=True), "png"),
        (encode(noise(), "WEBP"), "jpeg"),
        (encode(noise("CMYK"), "JPEG"), "jpeg"),
        (encode(noise(), "JPEG"), "jpeg"),
    ],
    ids=["png", "bmp", "lossless webp", "webp", "cmyk", "jpeg"],
)
@pytest.mark.parametrize("set_format", ["jpeg", "png", None])
def test_an_image_is_read_as_the_converter_stores_it(tmp_path, data, alone, set_format):
    path = tmp_path / "image"
    path.write_bytes(data)
    expected = "jpeg" if set_format == "jpeg" else alone
    convert = {"jpeg": image_encoding.to_jpeg, "png": image_encoding.to_png}[expected]
    stored, image_format = image_encoding.read_as_stored(str(path), set_format)
    assert (stored, image_format) == (convert(data, "name").data, expected)
    with Image.open(io.BytesIO(stored)) as image:
        assert (image.format, image.mode) == (expected.upper(), "RGB")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("is_applied", [False, True])
def test_an_image_is_turned_as_those_of_the_set_are(tmp_path, kind, is_applied):
    exif = Image.Exif()
    exif[0x0112] = 6  # The orientation: a quarter turn.
    path = tmp_path / "image"
    path.write_bytes(encode(Image.new("RGB", (48, 32)), kind, exif=exif))
    stored, _ = image_encoding.read_as_stored(path, None, is_applied)
    with Image.open(io.BytesIO(stored)) as image:
        assert image.size == ((32, 48) if is_applied else (48, 32))


def test_files_that_are_no_images_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "x.jpg"
    with pytest.raises(UserError, match=r"x\.jpg can't be read: No such file"):
        image_encoding.read_as_stored(str(path), None)
    path.write_bytes(b"no image")
    for set_format in ("jpeg", None):
        with pytest.raises(UserError, match=r"x\.jpg can't be decoded as an image"):
            image_encoding.read_as_stored(str(path), set_format)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="can't be read: not a regular file"):
        image_encoding.read_as_stored(str(path), None)
