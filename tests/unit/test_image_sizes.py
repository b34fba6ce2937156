"""The median of the shorter sides of a set's images."""

import io

import pytest
from PIL import Image

from data_prep.records import image_sizes, tf_example, tfrecord


def encoded(height: int, width: int, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("L" if height % 2 else "RGB", (width, height)).save(file, kind)
    return file.getvalue()


@pytest.fixture
def median(tmp_path):
    """A function that writes files of images, and returns their median."""

    def median(*files: list[bytes]) -> int:
        names = []
        for number, images in enumerate(files):
            names.append(f"train-{number}")
            examples = [tf_example.encode_example({"it": image}) for image in images]
            (tmp_path / names[-1]).write_bytes(
                b"".join(map(tfrecord.frame_record, examples))
            )
        return image_sizes.median_side(tmp_path, names, "it")

    return median


def test_it_is_the_middle_one_of_the_shorter_sides_of_both_formats(median):
    assert median([encoded(30, 50), encoded(90, 41), encoded(77, 100)]) == 41
    files = [encoded(30, 50, "PNG")], [encoded(90, 40, "PNG"), encoded(64, 64)]
    assert median(*files) == 40
    assert median([encoded(40, 40)], [encoded(20, 90)]) == 20  # The lower of two.


def test_headers_that_cannot_be_read_are_left_out(median):
    assert median([b"\xff\xd8\xff\xe0", encoded(30, 50)]) == 30
    assert median([b"\xff\xd8\xff\xe0"], []) == 0


def test_of_many_images_the_first_of_the_first_files_are_read(median, monkeypatch):
    monkeypatch.setattr(image_sizes, "_NUM_FILES", 2)
    monkeypatch.setattr(image_sizes, "_NUM_IMAGES", 1)
    large, small, other = encoded(90, 90), encoded(10, 10), b"other"
    # What is behind the first ones of two files isn't even an image.
    assert median([large, other], [small, other], [other]) == 10
