import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest, tf_example, tfrecord
from resnet import native
from resnet.base.errors import UserError
from resnet.data import record_files
from resnet.data.record_files import RecordFiles

CLASSES = ("ant", "bee", "cat")
SHARD_SIZES = (5, 4, 4)


def image(index: int) -> bytes:
    """Example i is of class i % 3 and has i + 1 rows."""
    file = io.BytesIO()
    Image.new("RGB", (8, index + 1), (index, 0, 0)).save(file, "JPEG")
    return file.getvalue()


IMAGES = [image(index) for index in range(13)]
LABELS = [index % 3 for index in range(13)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory, write_tiny_set) -> pathlib.Path:
    """The folder of a set; not to be changed."""
    folder = tmp_path_factory.mktemp("records")
    write_tiny_set(folder, IMAGES, LABELS, CLASSES, SHARD_SIZES)
    return folder


@pytest.fixture
def own(tmp_path, write_tiny_set) -> pathlib.Path:
    """The folder of a set that may be changed."""
    write_tiny_set(tmp_path, IMAGES, LABELS, CLASSES, SHARD_SIZES)
    return tmp_path


@pytest.fixture(params=["compiled op", "stock ops"])
def way(request, monkeypatch) -> None:
    """Both ways to read a record."""
    if request.param == "stock ops":
        monkeypatch.setattr(native, "ops", lambda: None)


def open_train(folder: pathlib.Path) -> RecordFiles:
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


def read(
    path: str,
    offset: int,
    image_key: str = tf_example.ENCODED,
    label_key: str = tf_example.LABEL,
) -> tuple[bytes, int]:
    """Reads one record the way that a pipeline does."""
    dataset = tf.data.Dataset.from_tensors(
        (tf.constant(path), tf.constant(offset, tf.int64))
    ).map(
        lambda path, offset: record_files.read_example(
            path, offset, image_key, label_key
        )
    )
    (found,) = dataset
    return found[0].numpy(), int(found[1])


def test_a_split_knows_where_its_examples_lie(converted):
    records = open_train(converted)
    assert records.num_examples == 13
    assert records.paths == tuple(
        str(converted / "train" / f"train-0000{number}-of-00003") for number in range(3)
    )
    assert records.file_of_example.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert records.offset_of_example[[0, 5, 9]].tolist() == [0, 0, 0]
    assert records.number_of_example.tolist() == list(range(13))
    assert records.first_label == 1
    assert records.class_names == CLASSES
    assert records.image_format == "jpeg"


def test_the_folder_of_a_split_names_the_set_too(converted):
    assert open_train(converted / "train").num_examples == 13


def test_an_index_may_lie_in_another_folder_than_the_records(converted):
    found = manifest.load(str(converted), "train")
    elsewhere = manifest.RecordSet(
        found.manifest, pathlib.Path("/records"), found.index_dir
    )
    records = record_files.open_split(elsewhere, "train")
    assert records.paths[0] == "/records/train/train-00000-of-00003"
    np.testing.assert_array_equal(
        records.offset_of_example, open_train(converted).offset_of_example
    )


def test_some_of_the_files_hold_a_part_that_keeps_its_numbers(converted):
    whole = open_train(converted)
    part = whole.only_files([2, 0])
    kept = [0, 1, 2, 3, 4, 9, 10, 11, 12]
    assert part.num_examples == 9
    assert part.number_of_example.tolist() == kept
    assert part.file_of_example.tolist() == [0] * 5 + [2] * 4
    assert part.offset_of_example.tolist() == whole.offset_of_example[kept].tolist()
    assert part.paths == whole.paths
    assert whole.only_files([]).num_examples == 0


def test_each_example_is_read_at_its_place_in_any_order(converted, way):
    records = open_train(converted)
    for example in (12, 0, 5, 4, 8, 9, 1):
        path = records.paths[records.file_of_example[example]]
        encoded, label = read(path, records.offset_of_example[example])
        assert encoded == IMAGES[example]
        assert label == 1 + example % 3


def test_features_of_other_names_are_read(tmp_path, way):
    example = tf_example.encode_example({"image": b"x", "label": -3, "id": 5})
    path = tmp_path / "record"
    path.write_bytes(tfrecord.frame_record(example))
    assert read(str(path), 0, "image", "label") == (b"x", -3)
    assert read(str(path), 0, "image", "id") == (b"x", 5)


def test_an_offset_at_or_past_the_end_raises(converted, way):
    path = converted / "train" / "train-00000-of-00003"
    for offset in (path.stat().st_size, path.stat().st_size + 1000):
        with pytest.raises(tf.errors.OpError):
            read(str(path), offset)


def test_an_offset_inside_a_record_raises(converted, way):
    path = converted / "train" / "train-00000-of-00003"
    with pytest.raises(tf.errors.DataLossError):
        read(str(path), 1)


# Of the first record: its length, the length's checksum, the data, the data's checksum.
@pytest.mark.parametrize("place", [0, 8, 12, 200, "last"])
def test_a_flipped_byte_is_a_data_loss_error(own, way, place):
    records = open_train(own)
    path = pathlib.Path(records.paths[0])
    data = bytearray(path.read_bytes())
    data[int(records.offset_of_example[1]) - 1 if place == "last" else place] ^= 1
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError):
        read(str(path), 0)
    assert read(str(path), records.offset_of_example[2])[1] == 3


@pytest.mark.parametrize("num_bytes", [0, 5, 12, 100])
def test_a_cut_record_raises(own, way, num_bytes):
    path = own / "train" / "train-00001-of-00003"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(tf.errors.OpError):
        read(str(path), 0)


def test_a_missing_file_raises(tmp_path, way):
    with pytest.raises(tf.errors.NotFoundError):
        read(str(tmp_path / "train-00000-of-00001"), 0)


def test_a_record_without_a_label_raises(tmp_path, way):
    example = tf_example.encode_example({tf_example.ENCODED: b"x"})
    path = tmp_path / "record"
    path.write_bytes(tfrecord.frame_record(example))
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/class/label"):
        read(str(path), 0)


def test_corrupt_offsets_are_refused(own):
    path = own / "train-offsets.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="SHA-256"):
        open_train(own)
