import mmap
import struct

import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.records import tfrecord

RECORDS = [b"first", b"", b"the last one"]


def test_the_checksum_is_the_masked_crc32c():
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 8a9136aa.
    rotated = 0x8A9136AA >> 15 | (0x8A9136AA << 17) & 0xFFFFFFFF
    expected = (rotated + 0xA282EAD8) % 2**32
    assert tfrecord.masked_crc32c(bytes(32)) == expected


@pytest.mark.parametrize("records", [[b""], [b"one", b"", b"x" * 100_000]])
def test_records_are_those_that_tensorflow_writes_and_reads(tmp_path, records):
    ours = b"".join(map(tfrecord.frame_record, records))
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    assert path.read_bytes() == ours
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == records


def test_header_and_footer_are_as_long_as_stated():
    record = tfrecord.frame_record(b"abc")
    assert struct.unpack("<Q", record[:8]) == (3,)
    header, footer = tfrecord.HEADER_BYTES, tfrecord.FOOTER_BYTES
    assert record[header:-footer] == b"abc"


def test_each_record_is_read_at_its_offset(tmp_path):
    content = b"".join(map(tfrecord.frame_record, RECORDS))
    path = tmp_path / "records"
    path.write_bytes(content)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    offset = 0
    for record in RECORDS:
        for data in (content, memoryview(content), mapped):
            assert tfrecord.read_record(data, offset) == record
        header = content[offset : offset + 12]
        assert tfrecord.record_length(header, offset) == len(record)
        offset += 16 + len(record)
    with pytest.raises(tfrecord.CorruptRecord, match="0 of the 12 bytes of its header"):
        tfrecord.read_record(content, offset)


@given(st.integers(0, 8 * (16 + 5) - 1))
@example(0)
@example(8 * 8)
@example(8 * 12)
@example(8 * 17)
def test_a_flipped_bit_is_found_wherever_it_is(bit):
    content = bytearray(b"".join(map(tfrecord.frame_record, [b"", b"first", b"last"])))
    begin = 16
    content[begin + bit // 8] ^= 1 << bit % 8
    with pytest.raises(tfrecord.CorruptRecord) as caught:
        tfrecord.read_record(bytes(content), begin)
    region = "length" if bit < 8 * 12 else "data"
    assert str(caught.value) == f"the checksum of its {region} does not match"
    assert caught.value.offset == begin
    assert tfrecord.read_record(bytes(content), 0) == b""


def test_a_record_that_is_cut_anywhere_is_found():
    content = tfrecord.frame_record(b"data")
    for num_bytes in range(len(content)):
        with pytest.raises(tfrecord.CorruptRecord, match="truncated") as caught:
            tfrecord.read_record(b"x" * 7 + content[:num_bytes], 7)
        assert caught.value.offset == 7
