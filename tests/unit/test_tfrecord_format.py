import struct

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data_prep import tfrecord_format

VALUES = st.binary() | st.integers(-(2**63), 2**63 - 1)


def test_shard_names_are_those_of_the_tpu_scripts():
    assert tfrecord_format.shard_name("train", 7, 1024) == "train-00007-of-01024"
    name = tfrecord_format.shard_name("validation", 127, 128)
    assert name == "validation-00127-of-00128"


def test_an_example_has_the_features_of_the_tpu_scripts():
    serialized = tfrecord_format.image_example(
        b"jpeg", height=3, width=300, label=1000, class_name="n15", filename="x.JPEG"
    )
    expected = tf.train.Example()
    feature = expected.features.feature
    feature["image/encoded"].bytes_list.value.append(b"jpeg")
    feature["image/height"].int64_list.value.append(3)
    feature["image/width"].int64_list.value.append(300)
    feature["image/channels"].int64_list.value.append(3)
    feature["image/colorspace"].bytes_list.value.append(b"RGB")
    feature["image/format"].bytes_list.value.append(b"JPEG")
    feature["image/filename"].bytes_list.value.append(b"x.JPEG")
    feature["image/class/label"].int64_list.value.append(1000)
    feature["image/class/synset"].bytes_list.value.append(b"n15")
    assert tf.train.Example.FromString(serialized) == expected
    assert serialized == expected.SerializeToString(deterministic=True)


def test_a_file_name_that_is_not_utf8_keeps_its_bytes():
    serialized = tfrecord_format.image_example(
        b"", height=1, width=1, label=1, class_name="a", filename="\udcff.jpg"
    )
    example = tf.train.Example.FromString(serialized)
    assert example.features.feature["image/filename"].bytes_list.value == [b"\xff.jpg"]


def test_a_small_example_has_the_bytes_worked_out_by_hand():
    # Example.features > map entry > key "a", Feature.int64_list > packed [300].
    by_hand = bytes.fromhex("0a0d 0a0b 0a0161 1206 1a04 0a02 ac02")
    assert tfrecord_format.encode_example({"a": 300}) == by_hand


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=6))
def test_tensorflow_parses_what_was_encoded(features):
    expected = tf.train.Example()
    for name, value in features.items():
        feature = expected.features.feature[name]
        values = feature.bytes_list if isinstance(value, bytes) else feature.int64_list
        values.value.append(value)
    encoded = tfrecord_format.encode_example(features)
    assert tf.train.Example.FromString(encoded).features == expected.features


def test_the_order_in_which_features_are_given_changes_no_byte():
    forward = tfrecord_format.encode_example({"a": 1, "b": b"2"})
    assert forward == tfrecord_format.encode_example({"b": b"2", "a": 1})


def test_the_checksum_is_the_masked_crc32c():
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 8a9136aa.
    rotated = 0x8A9136AA >> 15 | (0x8A9136AA << 17) & 0xFFFFFFFF
    expected = (rotated + 0xA282EAD8) % 2**32
    assert tfrecord_format.masked_crc32c(bytes(32)) == expected


@pytest.mark.parametrize("records", [[b""], [b"one", b"", b"x" * 100_000]])
def test_records_are_those_that_tensorflow_writes_and_reads(tmp_path, records):
    ours = b"".join(map(tfrecord_format.frame_record, records))
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    assert path.read_bytes() == ours
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == records


def test_header_and_footer_are_as_long_as_stated():
    record = tfrecord_format.frame_record(b"abc")
    assert struct.unpack("<Q", record[:8]) == (3,)
    header, footer = tfrecord_format.HEADER_BYTES, tfrecord_format.FOOTER_BYTES
    assert record[header:-footer] == b"abc"
