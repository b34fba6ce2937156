import io
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep import manifest, shards, sources, tfrecord_format
from data_prep.errors import UserError
from resnet.data import record_files

CLASSES = ("ant", "bee", "cat")
SHARD_SIZES = (5, 4, 4)


def write_set(folder: pathlib.Path) -> list[bytes]:
    """Writes a set of 13 train examples in 3 files; returns their pictures.

    Example i is of class i % 3 and has i + 1 rows.
    """
    pictures = []
    labelled = []
    for index in range(sum(SHARD_SIZES)):
        file = io.BytesIO()
        Image.new("RGB", (8, index + 1), (index, 0, 0)).save(file, "JPEG")
        path = folder / f"{index}.jpg"
        path.write_bytes(file.getvalue())
        pictures.append(file.getvalue())
        source = sources.SourceImage(str(path), CLASSES[index % 3])
        labelled.append((source, tfrecord_format.FIRST_LABEL + index % 3))
    (folder / "train").mkdir()
    remaining = iter(labelled)
    written = [
        shards.write_shard(
            folder,
            f"train/{tfrecord_format.shard_name('train', number, len(SHARD_SIZES))}",
            [next(remaining) for _ in range(size)],
        )
        for number, size in enumerate(SHARD_SIZES)
    ]
    offsets_path, offsets_sha256 = manifest.write_offsets(
        folder, "train", np.concatenate([one.offsets for one in written])
    )
    split = manifest.Split(
        "train",
        tuple(one.shard for one in written),
        (5, 4, 4),
        offsets_path,
        offsets_sha256,
    )
    manifest.write(manifest.Manifest(CLASSES, 1, {"train": split}, {}), folder)
    return pictures


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> tuple[pathlib.Path, list[bytes]]:
    """The set's folder and its pictures; not to be changed."""
    folder = tmp_path_factory.mktemp("records")
    return folder, write_set(folder)


def read(path: str, offset: int) -> tuple[bytes, int]:
    """Reads one record the way that a pipeline does."""
    dataset = tf.data.Dataset.from_tensors(
        (tf.constant(path), tf.constant(offset, tf.int64))
    ).map(record_files.read_example)
    (found,) = dataset
    return found[0].numpy(), int(found[1])


def test_a_split_knows_where_its_examples_lie(converted):
    folder, _ = converted
    records = record_files.open_split(str(folder), "train")
    assert records.num_examples == 13
    assert records.paths == tuple(
        str(folder / "train" / f"train-0000{number}-of-00003") for number in range(3)
    )
    assert records.file_of_example.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert records.offset_of_example[[0, 5, 9]].tolist() == [0, 0, 0]
    assert records.first_label == 1
    assert records.class_names == CLASSES


def test_the_folder_of_a_split_names_the_set_too(converted):
    folder, _ = converted
    records = record_files.open_split(str(folder / "train"), "train")
    assert records.num_examples == 13


def test_each_example_is_read_at_its_place_in_any_order(converted):
    folder, pictures = converted
    records = record_files.open_split(str(folder), "train")
    for example in (12, 0, 5, 4, 8, 9, 1):
        path = records.paths[records.file_of_example[example]]
        encoded, label = read(path, records.offset_of_example[example])
        assert encoded == pictures[example]
        assert label == 1 + example % 3


def test_an_offset_at_or_past_the_end_raises(converted):
    folder, _ = converted
    path = folder / "train" / "train-00000-of-00003"
    for offset in (path.stat().st_size, path.stat().st_size + 1000):
        with pytest.raises(tf.errors.OpError):
            read(str(path), offset)


def test_an_offset_inside_a_record_raises(converted):
    folder, _ = converted
    path = folder / "train" / "train-00000-of-00003"
    with pytest.raises(tf.errors.DataLossError):
        read(str(path), 1)


# Of the first record: its length, the length's checksum, the data, the data's checksum.
@pytest.mark.parametrize("place", [0, 8, 12, 200, "last"])
def test_a_flipped_byte_is_a_data_loss_error(tmp_path, place):
    write_set(tmp_path)
    records = record_files.open_split(str(tmp_path), "train")
    path = pathlib.Path(records.paths[0])
    data = bytearray(path.read_bytes())
    data[int(records.offset_of_example[1]) - 1 if place == "last" else place] ^= 1
    path.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        read(str(path), 0)
    assert read(str(path), records.offset_of_example[2])[1] == 3


@pytest.mark.parametrize("num_bytes", [0, 5, 12, 100])
def test_a_cut_record_raises(tmp_path, num_bytes):
    write_set(tmp_path)
    path = tmp_path / "train" / "train-00001-of-00003"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(tf.errors.OpError):
        read(str(path), 0)


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(tf.errors.NotFoundError):
        read(str(tmp_path / "train-00000-of-00001"), 0)


def test_a_record_without_a_label_raises(tmp_path):
    example = tfrecord_format.encode_example({tfrecord_format.ENCODED: b"x"})
    path = tmp_path / "record"
    path.write_bytes(tfrecord_format.frame_record(example))
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/class/label"):
        read(str(path), 0)


def test_a_missing_set_or_split_is_a_users_mistake(tmp_path, converted):
    with pytest.raises(UserError, match="expected a converted set"):
        record_files.open_split(str(tmp_path), "train")
    with pytest.raises(UserError, match="no split 'validation'"):
        record_files.open_split(str(converted[0]), "validation")


def test_damaged_offsets_are_refused(tmp_path):
    write_set(tmp_path)
    path = tmp_path / "train-offsets.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="SHA-256"):
        record_files.open_split(str(tmp_path), "train")
