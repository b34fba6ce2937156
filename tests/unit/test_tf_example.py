import contextlib

import google.protobuf.message
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records import tf_example

INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.binary() | INTEGERS
LISTS = (
    st.lists(st.binary(), max_size=4)
    | st.lists(INTEGERS, max_size=4)
    | st.lists(st.floats(width=32, allow_nan=False), max_size=4)
)


def test_a_small_example_has_the_bytes_worked_out_by_hand():
    # Example.features > map entry > key "a", Feature.int64_list > packed [300].
    by_hand = bytes.fromhex("0a0d 0a0b 0a0161 1206 1a04 0a02 ac02")
    assert tf_example.encode_example({"a": 300}) == by_hand


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=6))
def test_tensorflow_parses_what_was_encoded(features):
    expected = tf.train.Example()
    for name, value in features.items():
        feature = expected.features.feature[name]
        values = feature.bytes_list if isinstance(value, bytes) else feature.int64_list
        values.value.append(value)
    encoded = tf_example.encode_example(features)
    assert tf.train.Example.FromString(encoded).features == expected.features


def test_the_order_in_which_features_are_given_changes_no_byte():
    forward = tf_example.encode_example({"a": 1, "b": b"2"})
    assert forward == tf_example.encode_example({"b": b"2", "a": 1})


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
    assert tf_example.parse_example(serialized) == features


def test_only_the_wanted_features_are_parsed():
    serialized = tf_example.encode_example({"a": 1, "b": b"2", "c": 3})
    parsed = tf_example.parse_example(serialized, {"b", "c", "d"})
    assert parsed == {"b": [b"2"], "c": [3]}


def test_bytes_are_slices_of_what_was_given():
    serialized = bytearray(tf_example.encode_example({"a": b"before"}))
    (value,) = tf_example.parse_example(memoryview(serialized))["a"]
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
    assert tf_example.parse_example(serialized) == {"k": values}
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
    assert tf_example.parse_example(serialized) == {"k": [7]}


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
                tf_example.parse_example(serialized[:num_bytes])
        else:
            tf_example.parse_example(serialized[:num_bytes])
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
        tf_example.parse_example(bytes.fromhex(serialized))


@given(st.binary(max_size=30))
def test_any_bytes_are_parsed_or_refused(data):
    with contextlib.suppress(ValueError):
        tf_example.parse_example(data)
