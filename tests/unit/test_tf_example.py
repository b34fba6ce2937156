import gzip

import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.records import tf_example, tfrecord
from resnet.base.errors import UserError

INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.binary() | INTEGERS
LISTS = st.lists(INTEGERS, max_size=3) | st.lists(st.binary(), max_size=3)


def example_of(**lists) -> tf.train.Example:
    """Returns TensorFlow's example of features, each a list of values."""
    example = tf.train.Example()
    for name, values in lists.items():
        feature = example.features.feature[name]
        kind = {bytes: "bytes_list", int: "int64_list", float: "float_list"}
        if values:
            getattr(feature, kind[type(values[0])]).value.extend(values)
    return example


@given(st.dictionaries(st.text(max_size=5), st.one_of(VALUES, LISTS), max_size=6))
def test_tensorflow_parses_what_was_encoded_and_order_changes_no_byte(features):
    encoded = tf_example.encode_example(features)
    backwards = dict(reversed(features.items()))
    assert tf_example.encode_example(backwards) == encoded
    lists = {n: v if isinstance(v, list) else [v] for n, v in features.items()}
    expected = example_of(**lists)
    assert tf.train.Example.FromString(encoded) == expected
    assert encoded == expected.SerializeToString(deterministic=True)


def test_an_image_has_the_features_of_the_tpu_scripts_and_keeps_bytes_of_names():
    options = {"height": 3, "width": 300, "labels": [1000], "class_names": ["n15"]}
    serialized = tf_example.image_example(b"jpeg", filename="\udcff.JPEG", **options)
    features = {
        "image/encoded": [b"jpeg"],
        "image/height": [3],
        "image/width": [300],
        "image/channels": [3],
        "image/colorspace": [b"RGB"],
        "image/format": [b"JPEG"],
        "image/filename": [b"\xff.JPEG"],
        "image/class/label": [1000],
        "image/class/synset": [b"n15"],
    }
    assert tf.train.Example.FromString(serialized) == example_of(**features)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "it has no feature x"),
        ([], "its feature x has 0 values; expected one"),
        ([1, 2], "its feature x has 2 values; expected one"),
        ([b"1"], "its feature x is not an integer"),
        ([1.5], "its feature x is not an integer"),
    ],
)
def test_anything_but_one_value_of_the_kind_is_named(values, message):
    example = example_of() if values is None else example_of(x=values)
    features = tf_example.parse_example(example.SerializeToString())
    with pytest.raises(ValueError, match=message):
        tf_example.integer_of(features, "x")


@given(st.binary(max_size=30))
def test_bytes_are_parsed_as_by_tensorflow_or_refused(data):
    try:
        expected = dict(tf.train.Example.FromString(data).features.feature)
    except Exception:  # DecodeError has another class in each implementation.
        with pytest.raises(ValueError, match="not a serialized"):
            tf_example.parse_example(data)
    else:
        assert tf_example.parse_example(data).keys() == expected.keys()


def test_a_scan_gives_place_and_value_of_each_record(tmp_path):
    path = tmp_path / "records"
    examples = [tf_example.encode_example({"x": 10**n}) for n in (0, 9, 3)]
    records = [tfrecord.frame_record(example) for example in examples]
    content = b"".join(records)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # No data is checked.
    offsets = (0, len(records[0]), len(records[0]) + len(records[1]))
    assert list(
        tf_example.scan_file(path, lambda f: tf_example.integer_of(f, "x"))
    ) == [
        (offset, len(record), 10**n)
        for offset, record, n in zip(offsets, records, (0, 9, 3), strict=True)
    ]
    path.write_bytes(b"")
    assert list(tf_example.scan_file(path, dict)) == []


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b"x", "it is truncated: 1 of the 12 bytes"),
        (b"x" * 20, "the checksum of its length does not match"),
        (tfrecord.frame_record(b"\x0b"), "not a serialized"),
        (tfrecord.frame_record(b""), "it has no feature x"),
    ],
)
def test_a_record_that_a_scan_cannot_use_is_named(tmp_path, end, message):
    good = tfrecord.frame_record(tf_example.encode_example({"x": 1}))
    path = tmp_path / "records"
    path.write_bytes(good + end)
    with pytest.raises(UserError, match=message) as caught:
        list(tf_example.scan_file(path, lambda f: tf_example.integer_of(f, "x")))
    assert f"record at byte {len(good)} of {path} can't be used" in str(caught.value)


def test_compressed_records_are_recognized(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(gzip.compress(tfrecord.frame_record(b"")))
    with pytest.raises(UserError, match="it is compressed with gzip"):
        list(tf_example.scan_file(path, dict))


def test_the_checksum_is_the_masked_crc32c():
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 8a9136aa.
    rotated = 0x8A9136AA >> 15 | (0x8A9136AA << 17) & 0xFFFFFFFF
    expected = (rotated + 0xA282EAD8) % 2**32
    assert tfrecord.masked_crc32c(bytes(32)) == expected


@pytest.mark.parametrize("records", [[b""], [b"one", b"", b"x" * 100_000]])
def test_records_are_those_that_tensorflow_writes_and_reads(tmp_path, records):
    content = b"".join(map(tfrecord.frame_record, records))
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    assert path.read_bytes() == content
    offset = 0
    for record in records:
        assert tfrecord.read_record(content, offset) == record
        assert tfrecord.read_at(path, offset) == record
        offset += tfrecord.HEADER_BYTES + len(record) + tfrecord.FOOTER_BYTES
    with pytest.raises(ValueError, match="0 of the 12 bytes of its header"):
        tfrecord.read_at(path, offset)


@given(st.integers(0, 8 * (16 + 5) - 1))
@example(0)
@example(8 * 8)
@example(8 * 12)
@example(8 * 17)
def test_a_flipped_bit_is_found_wherever_it_is(bit):
    content = bytearray(b"".join(map(tfrecord.frame_record, [b"", b"first", b"last"])))
    content[16 + bit // 8] ^= 1 << bit % 8
    region = "length" if bit < 8 * 12 else "data"
    with pytest.raises(
        ValueError, match=f"^the checksum of its {region} does not match$"
    ):
        tfrecord.read_record(bytes(content), 16)
    assert tfrecord.read_record(bytes(content), 0) == b""


def test_a_record_that_is_cut_anywhere_is_found(tmp_path):
    content = b"x" * 7 + tfrecord.frame_record(b"data")
    for num_bytes in range(7, len(content)):
        (tmp_path / "cut").write_bytes(content[:num_bytes])
        with pytest.raises(ValueError, match="truncated"):
            tfrecord.read_at(tmp_path / "cut", 7)
        with pytest.raises(ValueError, match="truncated"):
            tfrecord.read_record(content[:num_bytes], 7, check_data=False)
