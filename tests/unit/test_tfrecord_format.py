import contextlib
import mmap
import struct

import google.protobuf.message
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.records import tfrecord_format

INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.binary() | INTEGERS
LISTS = (
    st.lists(st.binary(), max_size=4)
    | st.lists(INTEGERS, max_size=4)
    | st.lists(st.floats(width=32, allow_nan=False), max_size=4)
)
RECORDS = [b"first", b"", b"the last one"]


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


def tensorflow_example(features):
    """Makes an Example of lists; an empty list becomes a feature of no kind."""
    made = tf.train.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif values:
            feature.float_list.value.extend(values)
    return made


@given(st.dictionaries(st.text(max_size=5), LISTS, max_size=6))
def test_what_tensorflow_serialized_is_parsed(features):
    serialized = tensorflow_example(features).SerializeToString()
    assert tfrecord_format.parse_example(serialized) == features


def test_only_the_wanted_features_are_parsed():
    serialized = tfrecord_format.encode_example({"a": 1, "b": b"2", "c": 3})
    parsed = tfrecord_format.parse_example(serialized, {"b", "c", "d"})
    assert parsed == {"b": [b"2"], "c": [3]}


def test_bytes_are_slices_of_what_was_given():
    serialized = bytearray(tfrecord_format.encode_example({"a": b"before"}))
    (value,) = tfrecord_format.parse_example(memoryview(serialized))["a"]
    place = serialized.index(b"before")
    serialized[place : place + 6] = b"after!"
    assert value == b"after!"


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("1a04 0801 0802", [1, 2]),  # Two integers, each with its own tag.
        ("1a05 0801 0a01 02", [1, 2]),  # One alone and one packed.
        ("120a 0d 0000803f 0d 00000040", [1.0, 2.0]),
        ("0a05 0a0161 0a00", [b"a", b""]),
        ("1a00", []),
        ("", []),
    ],
)
def test_values_are_parsed_in_every_form_that_protobuf_allows(feature, values):
    content = bytes.fromhex(feature)
    entry = b"\x0a\x01k" + b"\x12" + bytes([len(content)]) + content
    features = b"\x0a" + bytes([len(entry)]) + entry
    serialized = b"\x0a" + bytes([len(features)]) + features
    assert tfrecord_format.parse_example(serialized) == {"k": values}
    parsed = tf.train.Example.FromString(serialized).features.feature["k"]
    kind = parsed.WhichOneof("kind")
    assert list(getattr(parsed, kind).value if kind else []) == values


@pytest.mark.parametrize(
    "unknown",
    ["f80105", "f901" + "00" * 8, "fa0103616263", "fd01" + "00" * 4],
    ids=["varint", "64 bits", "bytes", "32 bits"],
)
def test_unknown_fields_are_skipped_everywhere(unknown):
    field = bytes.fromhex(unknown)  # Number 31.

    def message(*parts):
        content = b"".join(parts)
        return bytes([len(content)]) + content

    values = message(field, b"\x08\x07", field)
    feature = message(field, b"\x1a" + values, field)
    # Protobuf itself takes no field but these in an entry; the value can come first.
    entry = message(b"\x12" + feature, b"\x0a\x01k")
    features = message(field, b"\x0a" + entry, field)
    serialized = field + b"\x0a" + features + field
    parsed = tf.train.Example.FromString(serialized).features.feature["k"]
    assert parsed.int64_list.value == [7]
    assert tfrecord_format.parse_example(serialized) == {"k": [7]}


def test_a_cut_example_is_refused_where_protobuf_refuses_it():
    whole = tensorflow_example({"a": [b"x" * 200], "b": [2**62], "c": [1.5, 2.5]})
    serialized = whole.SerializeToString()
    refused = 0
    for num_bytes in range(len(serialized)):
        try:
            tf.train.Example.FromString(serialized[:num_bytes])
        except google.protobuf.message.DecodeError:
            refused += 1
            with pytest.raises(ValueError, match="truncated"):
                tfrecord_format.parse_example(serialized[:num_bytes])
        else:
            tfrecord_format.parse_example(serialized[:num_bytes])
    assert refused == len(serialized) - 1  # Nothing at all is an empty example.


@pytest.mark.parametrize(
    "serialized",
    [
        "0b",
        "0f",
        "0a02 0a",
        "02 00",
        "0a80808080808080808080 01",
        "0a06 0a04 0a02 ff31",
    ],
)
def test_what_is_no_example_is_refused(serialized):
    with pytest.raises(ValueError, match=r"."):
        tfrecord_format.parse_example(bytes.fromhex(serialized))


@given(st.binary(max_size=30))
def test_any_bytes_are_parsed_or_refused(data):
    with contextlib.suppress(ValueError):
        tfrecord_format.parse_example(data)


def test_each_record_is_read_at_its_offset(tmp_path):
    content = b"".join(map(tfrecord_format.frame_record, RECORDS))
    path = tmp_path / "records"
    path.write_bytes(content)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    offset = 0
    for record in RECORDS:
        for data in (content, memoryview(content), mapped):
            assert tfrecord_format.read_record(data, offset) == record
        header = content[offset : offset + 12]
        assert tfrecord_format.record_length(header, offset) == len(record)
        offset += 16 + len(record)
    with pytest.raises(
        tfrecord_format.CorruptRecord, match="0 of the 12 bytes of its header"
    ):
        tfrecord_format.read_record(content, offset)


@given(st.integers(0, 8 * (16 + 5) - 1))
@example(0)
@example(8 * 8)
@example(8 * 12)
@example(8 * 17)
def test_a_flipped_bit_is_found_wherever_it_is(bit):
    content = bytearray(
        b"".join(map(tfrecord_format.frame_record, [b"", b"first", b"last"]))
    )
    begin = 16
    content[begin + bit // 8] ^= 1 << bit % 8
    with pytest.raises(tfrecord_format.CorruptRecord) as caught:
        tfrecord_format.read_record(bytes(content), begin)
    region = "length" if bit < 8 * 12 else "data"
    assert str(caught.value) == f"the checksum of its {region} does not match"
    assert caught.value.offset == begin
    assert tfrecord_format.read_record(bytes(content), 0) == b""


def test_a_record_that_is_cut_anywhere_is_found():
    content = tfrecord_format.frame_record(b"data")
    for num_bytes in range(len(content)):
        with pytest.raises(tfrecord_format.CorruptRecord, match="truncated") as caught:
            tfrecord_format.read_record(b"x" * 7 + content[:num_bytes], 7)
        assert caught.value.offset == 7
