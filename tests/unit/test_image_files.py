"""Which image files are found, and how they are read."""

import io

import pytest
from PIL import Image

from data_prep import image_file
from data_prep.conversion import image_encoding
from eval import image_files
from resnet.base.errors import UserError
from tests.unit.encoded_images import encode, noise


def found(*names) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    paths = list(image_files.find(map(str, names), problems.append))
    return paths, problems


def test_folders_are_searched_in_order_without_hidden_and_other_files(tmp_path):
    for name in (
        *("b/2.PNG", "b/10.jpg", "b/a/1.webp", "z.gif", "a.jpeg"),
        *(".hidden.jpg", ".git/1.jpg", "notes.txt", "b/list.csv"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = ["a.jpeg", "z.gif", "b/10.jpg", "b/2.PNG", "b/a/1.webp"]
    assert found(tmp_path) == ([str(tmp_path / name) for name in expected], [])
    named = [str(tmp_path / name) for name in ("notes.txt", ".hidden.jpg", "z.gif")]
    assert found(*named) == (named, [])  # A file that is named may have any name.


def test_each_path_without_images_is_reported_and_the_others_are_found(tmp_path):
    (tmp_path / "empty").mkdir()
    image, missing = tmp_path / "1.jpg", tmp_path / "missing.jpg"
    image.touch()
    paths, problems = found(tmp_path / "empty", missing, image)
    assert paths == [str(image)]
    assert problems == [
        f"{tmp_path / 'empty'} must contain images"
        " (.jpeg .jpg .jpe .jfif .png .webp .bmp .gif); found none.",
        f"{missing} must be an image or a folder; there is no such file.",
    ]


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
    stored, image_format = image_file.read(str(path), set_format)
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
    stored, _ = image_file.read(path, None, is_applied)
    with Image.open(io.BytesIO(stored)) as image:
        assert image.size == ((32, 48) if is_applied else (48, 32))


def test_files_that_are_no_images_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "x.jpg"
    with pytest.raises(UserError, match=r"x\.jpg can't be read: No such file"):
        image_file.read(str(path), None)
    path.write_bytes(b"no image")
    for set_format in ("jpeg", None):
        with pytest.raises(UserError, match=r"x\.jpg can't be decoded as an image"):
            image_file.read(str(path), set_format)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="can't be read: not a regular file"):
        image_file.read(str(path), None)
