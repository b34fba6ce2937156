import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data_prep.conversion import plan, shards
from data_prep.images.image_encoding import Encoding
from data_prep.records import manifest, tf_example
from data_prep.sources.image_list import SourceImage
from resnet.base.errors import UserError
from tests.converter_program import encoded_image


def shard_job(root: str, path: str, images, labels, **options) -> shards.ShardJob:
    names = tuple(f"class{label}" for label in range(10))
    indices = [(label,) for label in labels]
    encoding = Encoding("jpeg")
    return shards.ShardJob(root, path, images, indices, names, encoding, **options)


def source_image(path: pathlib.Path, class_name: str = "a") -> SourceImage:
    return SourceImage(str(path), path.name, class_name)


@pytest.fixture
def images(tmp_path):
    """Three images of different sizes and classes; the second is a PNG."""
    images = []
    for index, kind in enumerate(["JPEG", "PNG", "JPEG"]):
        path = tmp_path / f"{index}.JPEG"
        path.write_bytes(encoded_image(index, kind))
        images.append(source_image(path, f"class{index}"))
    return images


@pytest.fixture
def root(tmp_path):
    """The folder of a set, ready for shards without a folder of their own."""
    (tmp_path / "set" / manifest.CONVERSION_FOLDER).mkdir(parents=True)
    return tmp_path / "set"


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.JPEG"
    path.write_bytes(b"bad")
    return source_image(path)


@given(st.integers(0, 5000), st.integers(1, 1100))
def test_every_number_of_examples_splits_evenly_and_completely(n, num_shards):
    parts = plan.split_evenly(n, num_shards)
    assert len(parts) == num_shards
    assert list(itertools.chain.from_iterable(parts)) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_imagenet_splits_as_worked_out_by_hand_and_small_sets_get_fewer_shards():
    sizes = [len(part) for part in plan.split_evenly(1_281_167, 1024)]
    # 1,281,167 = 1024 x 1251 + 143.
    assert sizes == [1252] * 143 + [1251] * 881
    for num_examples, most, expected in (
        *((1_281_167, 1024, 1024), (9_469, 1024, 36)),
        *((512, 128, 2), (511, 128, 1), (1, 128, 1)),
    ):
        assert plan.default_num_shards(num_examples, most) == expected


def test_a_shard_holds_the_images_in_order(root, images):
    job = shard_job(str(root), "x-00000-of-00001", images, [5, 7, 5])
    report = shards.write_shard(job)
    path = root / "x-00000-of-00001"
    data = path.read_bytes()
    assert report.path == "x-00000-of-00001"
    assert len(report.offsets) == report.num_images == 3
    assert report.num_bytes == len(data)
    assert report.sha256 == hashlib.sha256(data).hexdigest()
    assert report.stored == (0, 1, 2)
    assert report.converted_counts == {"PNG": 1}
    assert report.skipped_images == ()
    assert shards.read_report(root, "x-00000-of-00001") == report

    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    ends = np.cumsum([12 + len(record) + 4 for record in records])
    assert report.offsets == (0, *ends[:-1])
    for source, label, record in zip(images, [6, 8, 6], records, strict=True):
        features = tf_example.parse_example(record)
        numbers = functools.partial(tf_example.integer_of, features)
        assert numbers("image/class/label") == label
        name = tf_example.text_of(features, "image/class/synset")
        assert name == f"class{label - 1}"
        assert tf_example.text_of(features, "image/filename") == source.filename
        image = tf.io.decode_jpeg(tf_example.bytes_of(features, "image/encoded"))
        sides = ("image/height", "image/width", "image/channels")
        assert image.shape == tuple(map(numbers, sides))


def test_a_shard_with_a_bad_image_leaves_nothing(root, images, bad):
    words = r"bad\.JPEG .* Replace it\. Or skip .*=skip\. If one is removed instead, "
    with pytest.raises(UserError, match=words):
        shards.write_shard(shard_job(str(root), "x", [*images, bad], [0] * 4))
    job = shard_job(str(root), "x", [bad, bad], [0, 0], skip_bad_images=True)
    words = r"none of the 2 images of shard x can .*bad\.JPEG .* with fewer shards into"
    with pytest.raises(UserError, match=words):
        shards.write_shard(job)
    assert os.listdir(root) == [manifest.CONVERSION_FOLDER]
    assert os.listdir(root / manifest.CONVERSION_FOLDER) == []


def test_bad_images_can_be_left_out_but_not_those_that_cannot_be_read(
    root, images, bad, tmp_path
):
    sources = [bad, images[0], bad, images[2]]
    job = shard_job(str(root), "x", sources, [9, 0, 9, 2], skip_bad_images=True)
    report = shards.write_shard(job)
    assert (len(report.offsets), report.num_images) == (2, 4)
    assert report.stored == (1, 3)
    assert [image.name for image in report.skipped_images] == [bad.path] * 2
    assert "can't be decoded" in report.skipped_images[0].reason
    assert shards.check_shard(job) == report
    assert shards.check_shard(dataclasses.replace(job, skip_bad_images=False)) is None
    shards.write_shard(shard_job(str(root), "y", sources[1::2], [0, 2]))
    assert (root / "x").read_bytes() == (root / "y").read_bytes()

    job = dataclasses.replace(job, images=[source_image(tmp_path / "gone.JPEG")])
    with pytest.raises(FileNotFoundError, match=r"gone\.JPEG"):
        shards.write_shard(dataclasses.replace(job, class_indices=[[0]]))
    huge = source_image(tmp_path / "huge.JPEG")
    with open(huge.path, "wb") as file:
        file.truncate(2**31 + 1)  # Of holes: it takes no room.
    with pytest.raises(UserError, match=r"huge\.JPEG must be an image; it has 2,147,"):
        shards.write_shard(shard_job(str(root), "x", [huge], [0]))


def test_a_finished_shard_is_known_again_unless_it_or_an_image_has_changed(
    root, images
):
    job = shard_job(str(root), "x", images, [0, 1, 2])
    report = shards.write_shard(job)
    assert shards.check_shard(job) == report
    fewer = shard_job(str(root), "x", images[:2], [0, 1])
    assert shards.check_shard(fewer) is None
    path = pathlib.Path(images[1].path)
    whole, image, status = (root / "x").read_bytes(), path.read_bytes(), path.stat()
    times = status.st_atime_ns, status.st_mtime_ns
    for damaged in (whole[:-1], whole + b"x", whole[:99] + b"?" + whole[100:], None):
        (root / "x").write_bytes(damaged or b"")
        if damaged is None:
            (root / "x").unlink()
        assert shards.check_shard(job) is None
    (root / "x").write_bytes(whole)
    for content, later in ((image + b"x", 0), (image, 1), (None, 0)):
        path.write_bytes(content or b"")
        os.utime(path, ns=(times[0], times[1] + later))
        if content is None:
            path.unlink()
        assert shards.check_shard(job) is None
    path.write_bytes(image)
    os.utime(path, ns=times)
    assert shards.check_shard(job) == report


@pytest.mark.parametrize("content", ["", "[]", "{}", None])
def test_a_damaged_report_counts_as_none(root, images, content):
    job = shard_job(str(root), "x", images, [0, 1, 2])
    report = shards.write_shard(job)
    path = shards.report_path(root, "x")
    text = path.read_text()
    changed = text.replace(str(report.num_bytes), str(report.num_bytes + 1), 1)
    path.write_text(changed if content is None else content)
    assert shards.read_report(root, "x") is None
    path.write_text(text)
    assert shards.read_report(root, "x") == report
    path.rename(shards.report_path(root, "y"))
    assert shards.read_report(root, "y") is None
