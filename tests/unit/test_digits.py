import os
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep import digits
from data_prep.sources import raw_data
from resnet.base.errors import UserError
from tests.in_process import assert_refused, run


def load_digits() -> Any:
    from sklearn import datasets  # Slow, and each worker of xdist imports this file.

    return datasets.load_digits()


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    assert digits.write_digits(folder) == (1437, 360)
    return folder


def test_the_folder_is_a_raw_data_folder_of_ten_classes(digits_dir):
    raw = raw_data.open_raw_data(digits_dir)
    assert raw.class_names == tuple("0123456789")
    assert len(raw.splits["train"]) == 1437
    assert len(raw.splits["validation"]) == 360
    assert raw.num_ignored_files == 0


def test_each_digit_is_there_once_with_its_class(digits_dir):
    raw = raw_data.open_raw_data(digits_dir)
    found = {
        int(pathlib.Path(image.path).stem): int(image.class_name)
        for images in raw.splits.values()
        for image in images
    }
    targets = load_digits().target
    assert [found[index] for index in range(1797)] == targets.tolist()


def test_the_held_out_digits_are_in_proportion(digits_dir):
    raw = raw_data.open_raw_data(digits_dir)
    held_out = [int(image.class_name) for image in raw.splits["validation"]]
    shares = np.bincount(held_out) / np.bincount(load_digits().target)
    # One image more or less of about 180.
    np.testing.assert_allclose(shares, 360 / 1797, atol=1 / 170)


def test_an_image_shows_the_digit(digits_dir):
    (path,) = digits_dir.glob("*/0/0000.jpg")
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "L", (32, 32))
        shrunk = np.asarray(image.resize((8, 8), Image.Resampling.BOX), float)
    original = load_digits().images[0] * 255 / 16
    # Bicubic interpolation blurs and JPEG loses a little; the strokes stay.
    assert np.corrcoef(shrunk.ravel(), original.ravel())[0, 1] > 0.95


def test_two_runs_write_the_same_bytes(digits_dir, tmp_path):
    digits.write_digits(tmp_path / "again")
    for path in digits_dir.rglob("*.jpg"):
        again = tmp_path / "again" / path.relative_to(digits_dir)
        assert again.read_bytes() == path.read_bytes()


def test_a_folder_that_is_not_empty_is_refused(digits_dir):
    with pytest.raises(UserError, match="must be a new or empty folder"):
        digits.write_digits(digits_dir)


def test_the_program_writes_into_an_empty_folder_alone(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    first = run(digits, "--digits_dir=out")
    assert first.returncode == 0, first.stderr
    assert "train: 1,437 images, validation: 360 images" in first.stdout
    assert os.listdir(tmp_path) == ["out"]
    second = run(digits, "--digits_dir=out")
    assert_refused(second, "error: digits_dir must be a new or empty folder")
