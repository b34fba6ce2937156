import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from data_prep.records import tfrecord


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
