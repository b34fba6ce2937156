import dataclasses
import errno
import logging
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records import manifest, tf_example, tfrecord
from resnet.base.errors import UserError
from resnet.data import record_files
from resnet.data.corrupt_records import (
    CorruptRecords,
    Replacements,
    describe_corruption,
)
from resnet.data.record_files import RecordFiles
from tests.converter_program import encoded_image
from tests.unit.failing_calls import failing

NUM_EXAMPLES = 13


@pytest.fixture(scope="module")
def records(numbered_set) -> RecordFiles:
    return record_files.open_split(manifest.load(str(numbered_set), "train"), "train")


def example(image: bytes = b"", label: int = 1) -> bytes:
    return tf_example.encode_example(
        {
            tf_example.ENCODED: image or encoded_image(25, "JPEG"),
            tf_example.LABEL: label,
        }
    )


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 16]) + content[place:][1:]


WHOLE = tfrecord.frame_record(example())
FLIPPED = flip(WHOLE, 100)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FLIPPED, "the checksum of its data does not match"),
        (WHOLE[:600], f"it is truncated: 600 of its {len(WHOLE):,} bytes are there"),
        *(
            (tfrecord.frame_record(data), words)
            for data, words in (
                (b"\xff" * 20, "it is not a serialized tf.train.Example"),
                (example(label=0), "its label is 0; expected 1 to 4"),
                (example(b"GIF89a..."), "its image is a GIF file; expected JPEG"),
                (
                    example(encoded_image(25, "PNG")),
                    "its image is a PNG file; expected JPEG",
                ),
                (
                    example(encoded_image(25, "JPEG")[:-400]),
                    "its image can't be decoded",
                ),
            )
        ),
    ],
)
def test_corruption_is_described_with_file_and_byte(
    records, put_record, content, words
):
    corrupt = put_record(records, 7, content)
    sentence = describe_corruption(corrupt, 7)
    assert sentence is not None
    assert sentence.startswith(
        f"the record at byte 5 of {corrupt.paths[-1]} is corrupt: {words}"
    )
    with pytest.raises(UserError, match=r"with --on_bad_record=skip\.$") as caught:
        CorruptRecords(corrupt, "fail").detect(np.array([6, 7, 8]))
    assert str(caught.value).startswith(sentence)


def test_whole_records_are_not_corrupt(records, put_record):
    assert describe_corruption(put_record(records, 3, WHOLE), 3) is None
    assert not CorruptRecords(records, "fail").detect(np.arange(NUM_EXAMPLES))
    pngs = put_record(
        records, 3, tfrecord.frame_record(example(encoded_image(25, "PNG")))
    )
    pngs = dataclasses.replace(pngs, image_format="png")
    assert describe_corruption(pngs, 3) is None
    assert "is a JPEG file; expected PNG" in describe_corruption(pngs, 4)


def test_a_file_that_cannot_be_read_now_is_no_mistake_of_the_user(records, monkeypatch):
    monkeypatch.setattr(tfrecord, "read_at", failing(errno.EIO))
    with pytest.raises(RuntimeError) as caught:
        CorruptRecords(records, "skip").detect(np.array([7]))
    path = records.paths[records.file_of_example[7]]
    assert f"{path} can't be read (Input/output error)" in str(caught.value)


def test_a_named_pipe_in_place_of_a_record_file_is_refused_at_once(records, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path / "pipe")] * len(records.paths)
    with pytest.raises(UserError, match=r"can't be read \(not a regular file\)"):
        describe_corruption(dataclasses.replace(records, paths=tuple(paths)), 7)


def corrupted(records: RecordFiles, numbers: set[int], put_record) -> RecordFiles:
    for number in numbers:
        records = put_record(records, number, FLIPPED)
    return records


def test_what_is_skipped_is_logged_counted_and_replaced(records, put_record, caplog):
    known = CorruptRecords(corrupted(records, {3, 4, 12}, put_record), "skip")
    assert known.replacements.corrupt.tolist() == []
    with caplog.at_level(logging.ERROR):
        assert known.detect(np.array([3, 2, 1, 3]))
    (line,) = caplog.messages
    assert line.startswith("skipping a record: the record at byte 5 of ")
    assert known.replacements.corrupt.tolist() == [3]
    assert known.replacements.replacements.tolist() == [4]
    assert not known.detect(np.array([3, 2, 1]))
    assert known.detect(np.arange(NUM_EXAMPLES))
    assert known.replacements.corrupt.tolist() == [3, 4, 12]
    assert known.replacements.replacements.tolist() == [5, 5, 0]
    assert known.count(0, 13) == 3
    assert known.count(4, 12) == 1
    assert known.count(5, 12) == 0


def test_one_record_must_be_left(records, put_record):
    three = corrupted(records, {9, 10, 11}, put_record).only_files([3, 4, 5])
    assert three.num_examples == 3
    with pytest.raises(UserError, match=r"at most 2 corrupt.* but 3 were detected"):
        CorruptRecords(three, "skip").detect(np.arange(3), 3)


@pytest.mark.parametrize(("num_read", "limit"), [(99, 10), (100, 11), (5000, 30)])
def test_a_hundredth_of_what_was_read_is_skipped_in_addition_to_ten(
    records, put_record, num_read, limit
):
    one = put_record(records, 0, FLIPPED)
    files = np.full(2000, 1, np.int32)
    files[: limit + 1] = 3
    index = np.zeros(2000, one.index.dtype)
    index["offset"] = np.where(files == 3, 5, 0)
    large = dataclasses.replace(one, file_of_example=files, index=index)
    known = CorruptRecords(large, "skip")
    assert known.detect(np.arange(limit), num_read)
    with pytest.raises(UserError, match=rf"at most {limit} .* but {limit + 1} were"):
        known.detect(np.array([limit]), num_read)


@st.composite
def some_corrupt(draw) -> tuple[set[int], int]:
    num_examples = draw(st.integers(1, 30))
    numbers = st.integers(0, num_examples - 1)
    return draw(st.sets(numbers, max_size=num_examples - 1)), num_examples


@given(case=some_corrupt(), asked=st.lists(st.integers(0, 29), max_size=20))
def test_the_next_good_one_in_the_order_of_the_files_stands_in(case, asked):
    corrupt, num_examples = case
    asked = [number % num_examples for number in asked]
    expected = []
    for number in asked:
        while number in corrupt:
            number = (number + 1) % num_examples
        expected.append(number)
    examples, mask = Replacements.of(corrupt, num_examples).replace(
        tf.constant(asked, tf.int64)
    )
    assert examples.numpy().tolist() == expected
    assert mask.numpy().tolist() == [number not in corrupt for number in asked]
    assert examples.dtype == tf.int64
