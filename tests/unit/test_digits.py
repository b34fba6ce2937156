import os
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep import digits
from data_prep.sources import raw_data
from tests.converter_program import content
from tests.in_process import assert_refused, run, succeeded


def load_digits() -> Any:
    from sklearn import datasets  # Slow, and each worker of xdist imports this file.

    return datasets.load_digits()


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    assert digits.write_digits(folder) == (1437, 360)
    return folder


def test_each_digit_is_there_once_with_its_class_and_held_out_in_proportion(digits_dir):
    source = raw_data.open_raw_data(digits_dir)
    assert source.class_names == tuple("0123456789")
    assert {name: len(images) for name, images in source.splits.items()} == {
        "train": 1437,
        "validation": 360,
    }
    assert source.num_ignored_files == 0
    found = {
        int(pathlib.Path(image.path).stem): int(image.class_name)
        for images in source.splits.values()
        for image in images
    }
    targets = load_digits().target
    assert [found[index] for index in range(1797)] == targets.tolist()
    held_out = [int(image.class_name) for image in source.splits["validation"]]
    shares = np.bincount(held_out) / np.bincount(targets)
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


def test_the_program_writes_the_same_bytes_into_an_empty_folder_alone(
    digits_dir, tmp_path, monkeypatch
):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    first = succeeded(run(digits, "--digits_dir=out"))
    assert "train: 1,437 images, validation: 360 images" in first.stdout
    assert os.listdir(tmp_path) == ["out"]
    assert content(tmp_path / "out") == content(digits_dir)
    second = run(digits, "--digits_dir=out")
    assert_refused(second, "error: digits_dir must be a new or empty folder")
    assert_refused(run(digits), "--digits_dir is required")
