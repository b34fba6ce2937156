"""The op that reads a record against its reference implementation."""

import itertools
import os
import pathlib
import resource
import struct
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records import tf_example, tfrecord
from resnet.data import record_files

IMAGE, LABEL = tf_example.ENCODED, tf_example.LABEL


def varint(value: int) -> bytes:
    value %= 2**64
    encoded = b""
    while value > 127:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(8 * number + 2) + varint(len(content)) + content


def bytes_feature(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def float_feature(*values: float) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def int_feature(*values: int, packed: bool = True) -> bytes:
    numbers = [varint(value) for value in values]
    if packed:
        return field(3, field(1, b"".join(numbers)))
    return field(3, b"".join(varint(8) + number for number in numbers))


def example(features: Sequence[tuple[str, bytes]]) -> bytes:
    entries = [field(1, name.encode()) + field(2, value) for name, value in features]
    return field(1, b"".join(field(1, entry) for entry in entries))


Read = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def reader(read: Callable[..., tuple[tf.Tensor, tf.Tensor]]) -> Read:
    signature = [tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)]
    return tf.function(
        lambda path, offset: read(path, offset, IMAGE, LABEL), input_signature=signature
    )


@pytest.fixture(scope="module")
def compiled() -> Read:
    return reader(record_files.read_example)


@pytest.fixture(scope="module")
def stock() -> Read:
    return reader(record_files.read_with_stock_ops)


def read(read_one: Read, path: pathlib.Path, offset: int = 0) -> tuple[bytes, int]:
    encoded, label = read_one(tf.constant(str(path)), tf.constant(offset, tf.int64))
    return encoded.numpy(), int(label)


# An op keeps a file open, so a new content comes under a new name.
FILE_NUMBERS = itertools.count()


def write_records(folder: pathlib.Path, records: Sequence[bytes]) -> pathlib.Path:
    path = folder / f"records-{next(FILE_NUMBERS)}"
    path.write_bytes(b"".join(map(tfrecord.frame_record, records)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("records")


INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=200), max_size=3).map(lambda v: bytes_feature(*v)),
    st.lists(st.floats(width=32), max_size=3).map(lambda v: float_feature(*v)),
    st.lists(INTS, max_size=3).map(lambda v: int_feature(*v)),
)
NAMES = st.text(max_size=20).filter(lambda name: name not in (IMAGE, LABEL))


@st.composite
def labelled(draw) -> tuple[bytes, bytes, int]:
    """A serialized example with its image and its label."""
    image, label = draw(st.binary(max_size=400)), draw(INTS)
    features = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    features[IMAGE] = bytes_feature(image)
    features[LABEL] = int_feature(label, packed=draw(st.booleans()))
    return example(draw(st.permutations(list(features.items())))), image, label


@settings(max_examples=25)
@given(records=st.lists(labelled(), min_size=1, max_size=3))
def test_any_record_is_read_as_by_stock_ops(folder, compiled, stock, records):
    path = write_records(folder, [serialized for serialized, _, _ in records])
    offset = 0
    for serialized, image, label in records:
        assert read(compiled, path, offset) == (image, label)
        assert read(stock, path, offset) == (image, label)
        offset += len(tfrecord.frame_record(serialized))


ONE_IMAGE, ONE_LABEL = bytes_feature(b"image"), int_feature(7)


@pytest.mark.parametrize(
    "features",
    [
        [(IMAGE, ONE_IMAGE)],
        [(IMAGE, bytes_feature()), (LABEL, ONE_LABEL)],
        [(IMAGE, ONE_IMAGE), (LABEL, bytes_feature(b"7"))],
        [(IMAGE, ONE_LABEL), (LABEL, ONE_LABEL)],
        [(IMAGE, bytes_feature(b"one", b"two")), (LABEL, ONE_LABEL)],
        [(IMAGE, ONE_IMAGE), (LABEL, int_feature(7, 8, packed=False))],
        [(IMAGE[:-1], ONE_IMAGE), (LABEL, ONE_LABEL)],
    ],
)
def test_a_record_without_one_image_and_one_label_is_an_error(
    folder, compiled, stock, features
):
    path = write_records(folder, [example([]), example(features)])
    offset = len(tfrecord.frame_record(example([])))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(compiled, path, offset)
    assert (
        f"the record at byte {offset} of {path} must have one value in each of the"
        f" features {IMAGE} and {LABEL}" in caught.value.message
    )
    with pytest.raises(tf.errors.OpError):
        read(stock, path, offset)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,
        field(1, b"\x0a\x05"),  # An entry of five bytes, of which none is there.
        field(1, field(1, field(1, IMAGE.encode()) + b"\x12\x7f")),
        example([(IMAGE, b"\x0a\x09"), (LABEL, ONE_LABEL)]),
        example([(IMAGE, ONE_IMAGE), (LABEL, field(3, field(1, b"\xff\xff")))]),
        varint(11),  # A group, which examples have not.
    ],
)
def test_data_that_is_no_example_is_an_error(folder, compiled, stock, data):
    path = write_records(folder, [data])
    assert_corrupt(compiled, path, 0, "its data is no tf.train.Example")
    # The latter where the error's message quotes the data and can't be decoded.
    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)):
        read(stock, path)


@pytest.fixture
def three(tmp_path) -> tuple[pathlib.Path, list[int]]:
    """A file of three short records, and where each begins."""
    records = [
        example([(IMAGE, bytes_feature(b"image %d" % i)), (LABEL, int_feature(i))])
        for i in range(3)
    ]
    path = write_records(tmp_path, records)
    lengths = [len(tfrecord.frame_record(record)) for record in records]
    return path, [0, *itertools.accumulate(lengths)]


def assert_corrupt(read_one: Read, path: pathlib.Path, offset: int, what: str) -> None:
    with pytest.raises(tf.errors.DataLossError) as caught:
        read(read_one, path, offset)
    sentence = f"the record at byte {offset} of {path} is corrupt: {what}"
    assert sentence in caught.value.message


def test_a_flipped_bit_and_a_cut_at_each_byte_are_errors_with_file_and_byte(
    three, compiled, stock
):
    path, offsets = three
    whole = path.read_bytes()
    begin, end = offsets[1], offsets[2]
    for place in range(begin, end):
        corrupt = bytearray(whole)
        corrupt[place] ^= 1 << place % 8
        path.write_bytes(corrupt)
        region = "length" if place < begin + 12 else "data"
        what = f"the checksum of its {region} doesn't match"
        assert_corrupt(compiled, path, begin, what)
        for number in (0, 2):  # The neighbours can still be read.
            expected = (b"image %d" % number, number)
            assert read(compiled, path, offsets[number]) == expected
        path.write_bytes(whole[:place])
        region = "before" if place < begin + 12 else "inside"
        assert_corrupt(compiled, path, begin, f"the file ends {region} the record")
    with pytest.raises(tf.errors.OpError):
        read(stock, path, begin)


@pytest.mark.parametrize(
    ("length", "size", "words"),
    [
        *((n, 104, "ends inside the record") for n in (2**64 - 1, 101)),
        # A sparse file, of a few bytes on disk.
        (2**40, 2**40 + 4, "its length exceeds 2 GiB"),
    ],
)
def test_a_length_that_cannot_be_with_its_right_checksum_is_an_error(
    tmp_path, compiled, length, size, words
):
    head = struct.pack("<Q", length)
    checksum = struct.pack("<I", tfrecord.masked_crc32c(head))
    path = tmp_path / "records"
    path.write_bytes(head + checksum)
    os.truncate(path, len(head + checksum) + size)
    with pytest.raises(tf.errors.DataLossError, match=words):
        read(compiled, path, 0)


def test_an_offset_at_which_no_record_begins_is_an_error(three, compiled):
    path, offsets = three
    end = offsets[-1]
    for place in {-2, *range(1, end, 7), end, end + 1, 2**62} - set(offsets[:-1]):
        with pytest.raises(tf.errors.OpError, match=f"at byte {place} of {path}"):
            read(compiled, path, place)


def test_a_file_that_is_not_there_and_a_folder_are_errors(tmp_path, compiled, stock):
    with pytest.raises(tf.errors.NotFoundError, match="No such file") as caught:
        read(compiled, tmp_path / "nothing")
    assert str(tmp_path / "nothing") in caught.value.message
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"{tmp_path} is no regular"
    ):
        read(compiled, tmp_path)
    with pytest.raises(tf.errors.OpError):
        read(stock, tmp_path / "nothing")


def test_a_replaced_file_gives_its_new_record(tmp_path, compiled):
    old, new = (
        write_records(
            tmp_path, [example([(IMAGE, bytes_feature(image)), (LABEL, ONE_LABEL)])]
        )
        for image in (b"old", b"new")
    )
    assert read(compiled, old) == (b"old", 7)
    new.rename(old)
    assert read(compiled, old) == (b"new", 7)
    old.unlink()  # What is open stays readable, as in any program.
    assert read(compiled, old) == (b"new", 7)


def test_more_files_than_a_process_may_open_are_read(tmp_path):
    serialized = [
        example([(IMAGE, bytes_feature(b"%d" % i)), (LABEL, int_feature(i))])
        for i in range(200)
    ]
    paths = [write_records(tmp_path, [record]) for record in serialized]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    lowered = 2 * highest + 64
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
        few_files = reader(record_files.read_example)
        for _ in range(2):
            for number, path in enumerate(paths):
                assert read(few_files, path) == (b"%d" % number, number)
        assert len(os.listdir("/proc/self/fd")) < lowered
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_ops_of_all_phases_share_their_open_files(tmp_path):
    record = example([(IMAGE, bytes_feature(b"x")), (LABEL, ONE_LABEL)])
    paths = [write_records(tmp_path, [record]) for _ in range(30)]
    phases = [reader(record_files.read_example) for _ in range(4)]
    for phase in phases:
        for path in paths:
            assert read(phase, path) == (b"x", 7)
    descriptors = os.listdir("/proc/self/fd")
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in descriptors]
    assert {opened.count(os.path.realpath(path)) for path in paths} == {1}
