"""Images that are read in place: their batches, damage and refusals."""

import dataclasses
import os
import pathlib
import re

import numpy as np
import pytest

from data_prep.records import manifest, verification
from resnet import native
from resnet.base.errors import UserError
from resnet.data import record_files
from resnet.data.corrupt_records import describe_corruption
from tests.converter_program import convert_here, encoded_image, write
from tests.unit.read_batches import assert_equal, evaluate, open_train, train

NUM_CLASSES, NUM_OF_CLASS = 3, 7


@pytest.fixture(params=["JPEG", "PNG"])
def folders(tmp_path, request) -> pathlib.Path:
    """A folder of image files, beside which the sets are."""
    for label in range(NUM_CLASSES):
        for index in range(NUM_OF_CLASS):
            name = f"n{label}/{index} \u00e4.{request.param.lower()}"
            write(
                tmp_path / "raw" / "train" / name,
                encoded_image(10 * label + index, request.param),
            )
    return tmp_path


@pytest.fixture
def indexed(folders) -> pathlib.Path:
    done = convert_here(
        folders / "raw", folders / "index", "--in_place", "--num_processes=1"
    )
    assert done.returncode == 0, done.stderr
    return folders / "index"


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (1, 2), (2, 3)])
def test_batches_are_those_of_converted_records(
    folders, indexed, make_config, rank, num_ranks
):
    done = convert_here(folders / "raw", folders / "records", "--num_processes=1")
    assert done.returncode == 0, done.stderr
    config = make_config(21, "abc", global_batch_size=6, train_steps=9, seed=5)
    ours, expected = open_train(indexed), open_train(folders / "records")
    assert [ours.is_in_place, expected.is_in_place] == [True, False]
    for start in (0, 4):
        assert_equal(
            train(ours, config, rank, num_ranks, start),
            train(expected, config, rank, num_ranks, start),
        )
    assert_equal(evaluate(ours, config), evaluate(expected, config))
    sets = [
        manifest.load(str(folders / name), "train").manifest
        for name in ("index", "records")
    ]
    assert sets[0].median_side == sets[1].median_side
    assert sets[0].splits["train"].label_counts == sets[1].splits["train"].label_counts


def image_of(records: record_files.RecordFiles, example: int) -> pathlib.Path:
    folder = records.paths[records.file_of_example[example]]
    return pathlib.Path(folder, os.fsdecode(records.index["name"][example]))


DAMAGES = {
    "checksum of the image": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "file ends inside": lambda data: data[:-1],
}


@pytest.mark.parametrize("fault", DAMAGES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_damage_is_found_at_every_read(
    indexed, make_config, monkeypatch, fault, is_compiled
):
    if not is_compiled:
        monkeypatch.setattr(native, "ops", lambda: None)
    records = open_train(indexed)
    config = make_config(21, "abc", global_batch_size=3, train_steps=7, seed=5)
    path = image_of(records, 8)
    path.write_bytes(DAMAGES[fault](path.read_bytes()))
    with pytest.raises(
        UserError, match=f"{re.escape(str(path))} is corrupt: the {fault}"
    ):
        train(records, config)
    assert describe_corruption(records, 7) is None
    skipping = dataclasses.replace(config, on_bad_record="skip")
    batches = train(records, skipping)
    read = np.concatenate([batch.examples[batch.mask] for batch in batches])
    assert sorted(read.tolist()) == [n for n in range(21) if n != 8]


def test_verification_names_the_damaged_file(indexed):
    done = convert_here("", indexed, "--verify", "--num_processes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    records = open_train(indexed)
    path = image_of(records, 3)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    record_set = manifest.load(str(indexed), "train")
    (problem,) = verification.verify(record_set, 1, lambda _: None)
    assert path.name in problem.what


def test_a_finished_index_is_kept_and_another_source_refused(folders, indexed):
    before = (indexed / "train-index.npy").read_bytes()
    again = convert_here(folders / "raw", indexed, "--in_place", "--num_processes=1")
    assert again.returncode == 0
    assert "already converted" in again.stdout
    refused = convert_here(folders / "raw", indexed, "--num_processes=1")
    assert refused.returncode == 2
    assert "in_place is False, was True" in refused.stderr
    assert (indexed / "train-index.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("RGB", "PNG"), ("RGB", "WEBP")]
)
def test_images_that_records_hold_re_encoded_are_refused(tmp_path, mode, kind):
    write(tmp_path / "raw/train/a/1.jpg", encoded_image(1))
    write(tmp_path / "raw/train/b/2.jpg", encoded_image(2, kind, mode))
    done = convert_here(
        tmp_path / "raw", tmp_path / "index", "--in_place", "--num_processes=1"
    )
    refused = done
    assert refused.returncode == 2
    assert "2.jpg would be re-encoded" in refused.stderr


def test_bad_images_can_be_left_out(tmp_path):
    for label, name in enumerate("ab"):
        for index in range(3):
            write(
                tmp_path / "raw/train" / name / f"{index}.jpg",
                encoded_image(10 * label + index),
            )
    bad = tmp_path / "raw/train/a/1.jpg"
    bad.write_bytes(bad.read_bytes()[:-20])
    words = tmp_path / "raw", tmp_path / "index", "--in_place", "--num_processes=1"
    refused = convert_here(*words)
    assert refused.returncode == 2
    assert "--on_bad_image=skip" in refused.stderr
    assert not (tmp_path / "index" / "manifest.json").exists()
    assert convert_here(*words, "--on_bad_image=skip").returncode == 0
    split = manifest.load(str(tmp_path / "index"), "train").manifest.splits["train"]
    assert split.label_counts == (2, 3)
    assert [image.name for image in split.skipped_images] == [str(bad)]


def test_a_reordered_or_swapped_index_is_another_data_set(folders, indexed):
    first = manifest.load(str(indexed), "train").manifest.splits["train"]
    paths = sorted((folders / "raw/train/n0").iterdir())[:2]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    done = convert_here(
        folders / "raw", folders / "other", "--in_place", "--num_processes=1"
    )
    assert done.returncode == 0
    other = manifest.load(str(folders / "other"), "train").manifest.splits["train"]
    assert other.records_sha256 != first.records_sha256
