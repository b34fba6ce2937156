"""Conversions of lossless images, and how their records are read."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.conversion import output_folder
from data_prep.conversion.plan import Options, make_plan
from data_prep.records import indexing, manifest, verification
from data_prep.sources import raw_data
from resnet.base import errors
from resnet.data import record_files
from tests.converter_program import convert_here
from tests.record_reader import read_examples

pytestmark = pytest.mark.usefixtures("one_process_is_this")


def pixels_of(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (9, 8, 3), np.uint8)


def write_image(path: pathlib.Path, index: int, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_of(index)).save(path, kind)


@pytest.fixture
def raw(tmp_path) -> pathlib.Path:
    """A raw folder: 6 PNGs to train on, 3 BMPs for validation, 2 classes."""
    for index in range(9):
        split, kind = ("train", "PNG") if index < 6 else ("val", "BMP")
        path = tmp_path / "raw" / split / f"c{index % 2}" / f"{index}.{kind.lower()}"
        write_image(path, index, kind)
    return tmp_path / "raw"


def image_format(records: pathlib.Path) -> str:
    return manifest.load(str(records), "train").manifest.image_format


def test_lossless_images_are_stored_as_png_bit_for_bit(raw, tmp_path):
    records = tmp_path / "records"
    done = convert_here(raw, records, "--num_processes=1", "--train_shards=2")
    assert done.returncode == 0, done.stderr
    assert "re-encoded as RGB PNG: 3 (3 BMP)\n" in done.stdout
    assert image_format(records) == "png"
    source = manifest.load(str(records), "train").manifest.source
    assert source["image_format"] == "png"
    assert "jpeg_quality" not in source
    for example in read_examples(records, "train"):
        (path,) = raw.rglob(example["file"])
        assert example["encoded"] == path.read_bytes()
    for split in ("train", "validation"):
        for example in read_examples(records, split):
            index = int(pathlib.Path(example["file"]).stem)
            decoded = tf.io.decode_png(example["encoded"], channels=3)
            np.testing.assert_array_equal(decoded, pixels_of(index))
            assert example["size"] == (8, 9)


def test_a_set_of_png_is_verified_read_and_indexed_again(raw, tmp_path):
    records = tmp_path / "records"
    assert convert_here(raw, records, "--num_processes=1").returncode == 0
    record_set = manifest.load(str(records), "train")
    assert verification.verify(record_set, 1, lambda _: None) == []
    split = record_files.open_split(record_set, "train")
    assert split.image_format == "png"
    for record in tf.data.TFRecordDataset(list(split.paths)).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["image/format"].bytes_list.value[0] == b"PNG"
    (records / manifest.FILE_NAME).unlink()
    indexing.make_if_missing(str(records))
    assert image_format(records) == "png"


@pytest.mark.parametrize(("split", "kind"), [("train", "JPEG"), ("val", "WEBP")])
def test_one_lossy_image_makes_a_set_of_jpeg(raw, tmp_path, split, kind):
    write_image(raw / split / "c1" / "z.png", 9, kind)
    records = tmp_path / "records"
    done = convert_here(raw, records, "--num_processes=1")
    assert done.returncode == 0, done.stderr
    assert image_format(records) == "jpeg"
    for name in ("train", "validation"):
        for example in read_examples(records, name):
            assert example["encoded"].startswith(b"\xff\xd8\xff")


def test_a_conversion_does_not_resume_with_another_format(raw, tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    options = Options()
    first = make_plan(root, raw_data.open_raw_data(raw), options)
    output_folder.begin(first)
    output_folder.begin(make_plan(root, raw_data.open_raw_data(raw), options))
    path = raw / "train" / "c0" / "0.png"
    write_image(path, 0, "JPEG")
    plan = make_plan(root, raw_data.open_raw_data(raw), options)
    assert (first.image_format, plan.image_format) == ("png", "jpeg")
    with pytest.raises(errors.UserError, match="image_format is missing, was 'png'"):
        output_folder.begin(plan)
