import hashlib
import io
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_prep import shards
from data_prep.errors import UserError
from data_prep.sources import SourceImage


@pytest.fixture
def pictures(tmp_path):
    """Three labelled pictures of different sizes; the second is a PNG."""
    labelled = []
    for index, kind in enumerate(["JPEG", "PNG", "JPEG"]):
        path = tmp_path / f"{index}.JPEG"
        file = io.BytesIO()
        Image.new("RGB", (10 + index, 20), (index, 100, 200)).save(file, kind)
        path.write_bytes(file.getvalue())
        labelled.append((SourceImage(str(path), f"class{index}"), index + 1))
    return labelled


@given(st.integers(0, 5000), st.integers(1, 1100))
def test_every_number_of_examples_splits_evenly_and_completely(n, num_shards):
    parts = shards.split_evenly(n, num_shards)
    assert len(parts) == num_shards
    assert list(itertools.chain.from_iterable(parts)) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_imagenet_splits_as_worked_out_by_hand():
    sizes = [len(part) for part in shards.split_evenly(1_281_167, 1024)]
    # 1,281,167 = 1024 x 1251 + 143.
    assert sizes == [1252] * 143 + [1251] * 881


@pytest.mark.parametrize(
    ("num_examples", "most", "expected"),
    [
        (1_281_167, 1024, 1024),
        (50_000, 128, 128),
        (9_469, 1024, 36),
        (512, 128, 2),
        (511, 128, 1),
        (1, 128, 1),
    ],
)
def test_small_sets_get_fewer_shards(num_examples, most, expected):
    assert shards.default_num_shards(num_examples, most) == expected


def test_a_shard_holds_the_pictures_in_order(tmp_path, pictures):
    written = shards.write_shard(tmp_path, "x-00000-of-00001", pictures)
    path = tmp_path / "x-00000-of-00001"
    data = path.read_bytes()
    assert written.shard.path == "x-00000-of-00001"
    assert written.shard.num_records == 3
    assert written.shard.num_bytes == len(data)
    assert written.shard.sha256 == hashlib.sha256(data).hexdigest()
    assert written.num_converted == 1

    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    ends = np.cumsum([12 + len(record) + 4 for record in records])
    assert written.offsets.dtype == np.int64
    assert written.offsets.tolist() == [0, *ends[:-1]]
    for (source, label), record in zip(pictures, records, strict=True):
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["image/class/label"].int64_list.value == [label]
        assert feature["image/class/synset"].bytes_list.value == [
            source.class_name.encode()
        ]
        assert feature["image/filename"].bytes_list.value == [source.filename.encode()]
        shape = tf.io.decode_jpeg(feature["image/encoded"].bytes_list.value[0]).shape
        assert shape == (
            feature["image/height"].int64_list.value[0],
            feature["image/width"].int64_list.value[0],
            feature["image/channels"].int64_list.value[0],
        )


def test_a_shard_with_a_bad_picture_leaves_nothing(tmp_path, pictures):
    bad = tmp_path / "bad.JPEG"
    bad.write_bytes(b"bad")
    (tmp_path / "out").mkdir()
    images = [*pictures, (SourceImage(str(bad), "a"), 1)]
    with pytest.raises(UserError, match=r"bad\.JPEG"):
        shards.write_shard(tmp_path / "out", "x", images)
    assert os.listdir(tmp_path / "out") == []


def test_processes_return_the_shards_in_the_order_of_the_jobs(tmp_path, pictures):
    jobs = [
        shards.ShardJob(str(tmp_path), f"shard{size}", pictures[:size])
        for size in (3, 1, 2, 1 + 1)
    ]
    jobs[3] = shards.ShardJob(str(tmp_path), "last", pictures[:2])
    reported: list[int] = []
    written = shards.write_shards(jobs, 2, reported.append)
    assert [w.shard.path for w in written] == ["shard3", "shard1", "shard2", "last"]
    assert [w.shard.num_records for w in written] == [3, 1, 2, 2]
    assert sorted(reported) == [1, 2, 2, 3]
    assert written[2].shard.sha256 == written[3].shard.sha256


def test_an_error_in_a_process_is_that_of_the_caller(tmp_path):
    missing = SourceImage(str(tmp_path / "missing.JPEG"), "a")
    job = shards.ShardJob(str(tmp_path), "shard", [(missing, 1)])
    with pytest.raises(FileNotFoundError, match=r"missing\.JPEG"):
        shards.write_shards([job] * 5, 1, lambda _: None)
