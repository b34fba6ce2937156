"""The formulas and wire formats of compression, in NumPy."""

import math
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from resnet.exchange.codecs import qsgd, random_bits, sparse, ternary, wire
from resnet.exchange.codecs.messages import decode, decode_mean_in_numpy
from resnet.exchange.codecs.random_bits import Stream

STREAM = Stream(seed=5, vector=2, step=7, rank=1)
VECTORS = arrays.arrays(
    np.float32,
    st.integers(0, 300),
    elements=st.floats(-100, 100, width=32, allow_subnormal=False),
)


def decoded(message: wire.Bytes, num_values: int) -> wire.Values:
    kind, bit_width, body, rest = wire.split(message)
    assert rest.size == 0
    return decode(kind, bit_width, body, num_values)


def float32(*values: float) -> wire.Values:
    return np.array(values, np.float32)


def test_philox_is_that_of_its_authors():
    # Random123's known answers: counter, key, result.
    for counter, key, expected in (
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ):
        words = [np.array([word], np.uint64) for word in counter]
        assert [int(word[0]) for word in random_bits.philox(words, key)] == expected


def test_each_part_of_a_stream_gives_other_numbers():
    found = {random_bits.uniform(STREAM, 8).tobytes()}
    for name in Stream._fields:
        other = STREAM._replace(**{name: getattr(STREAM, name) + 1})
        found.add(random_bits.uniform(other, 8).tobytes())
    found.add(random_bits.uniform(STREAM._replace(seed=5 + 2**32), 8).tobytes())
    assert len(found) == 6


def test_the_numbers_are_uniform():
    numbers = random_bits.uniform(STREAM, 100_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers * 10).astype(int), minlength=10)
    # Chi-square of 10 classes, 9 degrees of freedom: above 33.7 once in 10,000 draws.
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 33.7


@pytest.mark.parametrize(
    ("num_values", "ratio", "count"),
    [
        # n - ceil(n (1 - ratio)) + 1, by hand.
        (100, 0.01, 2),
        (64, 0.01, 1),
        (10, 0.5, 6),
        (1, 0.01, 1),
        (1000, 0.001, 2),
        (7, 1.0, 7),
    ],
)
def test_topk_keeps_as_many_as_its_source(num_values, ratio, count):
    assert sparse.topk_count(num_values, ratio) == count


def test_topk_keeps_the_largest_and_what_equals_the_smallest_of_them():
    values = float32(1, -5, 2, 3, -3, 0.5)
    threshold = sparse.threshold_of_topk(values, 2)
    assert threshold == 3
    message, left = sparse.encode(values, threshold)
    assert decoded(message, 6).tolist() == [0, -5, 0, 3, -3, 0]
    assert left.tolist() == [1, 0, 2, 0, 0, 0.5]


def test_the_adaptive_threshold_is_half_of_the_largest():
    values = float32(1, -5, 2.5, 2.4, -2.75)
    message, _ = sparse.encode(values, sparse.threshold_of_adaptive(values))
    assert decoded(message, 5).tolist() == [0, -5, 2.5, 0, -2.75]


def test_a_sparse_message_is_as_documented():
    values = np.zeros(100, np.float32)
    values[[3, 50, 51]] = 1, -2, 0.5
    message, _ = sparse.encode(values, np.float32(0.1))
    # b = 4: 2^4 <= ln(2) 100 / 3 = 23.1. Gaps 3, 46, 0: quotients 0, 2, 0 and
    # remainders 3, 14, 0. Bits, from the lowest: 1 001 1.
    body = struct.pack("<I3f", 3, 1, -2, 0.5) + bytes([3 | 14 << 4, 0, 0b11001])
    assert message.tobytes() == struct.pack("<IBBH", 8 + len(body), 1, 4, 0) + body
    message, left = sparse.encode(float32(0, 0, 0, 1 + 2**-9), np.float32(1), True)
    body = struct.pack("<IH", 1, 0x3F80) + bytes([0b1, 0b10])  # Gap 3 is 1 * 2 + 1.
    assert message.tobytes() == struct.pack("<IBBH", 8 + len(body), 2, 1, 0) + body
    assert left.tolist() == [0, 0, 0, 2**-9]


def test_what_would_be_longer_than_all_values_is_sent_dense():
    values = float32(1, 2, 3, 0.5)
    message, left = sparse.encode(values, np.float32(1))
    assert message.tobytes() == struct.pack("<IBBH4f", 24, 0, 0, 0, 1, 2, 3, 0)
    assert left.tolist() == [0, 0, 0, 0.5]
    assert len(sparse.encode(np.zeros(4, np.float32), np.float32(0))[0]) == 8 + 4


@given(values=VECTORS, threshold=st.floats(0, 100, width=32), is_short=st.booleans())
@example(values=float32(1e38, 1, 1e-38), threshold=0.5, is_short=False)
@example(values=np.zeros(9, np.float32), threshold=0.0, is_short=True)
def test_a_sparse_message_holds_what_is_kept(values, threshold, is_short):
    message, left = sparse.encode(values, np.float32(threshold), is_short)
    kept = np.where(np.abs(values) >= np.float32(threshold), values, np.float32(0))
    if is_short:
        kept = sparse.round_to_bfloat16(kept)
    found = decoded(message, values.size)
    np.testing.assert_array_equal(found, kept)
    np.testing.assert_array_equal(left, values - kept)
    assert len(message) <= 8 + max(values.nbytes, 4)


def test_bfloat16_is_the_nearest_with_ties_to_even():
    values = float32(1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.3e38)
    expected = [1, 1, 1 + 2**-6, 1 + 2**-7, -float(np.float32(3.2963e38))]
    found = sparse.round_to_bfloat16(values)
    assert found[:4].tolist() == expected[:4]
    assert found[4] == pytest.approx(expected[4], rel=1e-2)
    assert np.isnan(sparse.round_to_bfloat16(float32(np.nan))).all()


def test_nan_is_always_kept():
    values = float32(1, np.nan, 3)
    for count in (1, 2):
        message, _ = sparse.encode(values, sparse.threshold_of_topk(values, count))
        assert np.isnan(decoded(message, 3)[1])
    for message, _ in (ternary.encode(values, STREAM), qsgd.encode(values, STREAM, 7)):
        assert np.isnan(decoded(message, 3)).all()
    message, _ = qsgd.encode(values, STREAM, 7, bucket=2)
    assert np.isnan(decoded(message, 3)).tolist() == [True, True, False]


def test_a_ternary_message_is_as_documented():
    values = float32(2, 0, -2, 2, -2, -2)  # Zero and the largest leave no choice.
    message, left = ternary.encode(values, STREAM)
    first = 2 * 1 + 1 * 3 + 0 * 9 + 2 * 27 + 0 * 81
    body = struct.pack("<fBB", 2, first, 0)
    assert message.tobytes() == struct.pack("<IBBH", 14, 3, 0, 0) + body
    assert decoded(message, 6).tolist() == values.tolist()
    assert not left.any()


def test_a_qsgd_message_is_as_documented():
    values = float32(3, -4, 0, 6, 8, -0.0)
    message, left = qsgd.encode(values, STREAM, states=5, bucket=3)
    # Norms 5 and 10: 3/5 5 = 3 and so on, whole numbers, so nothing is left to chance.
    levels = [3 + 5, -4 + 5, 5, 3 + 5, 4 + 5, 5]
    bits = sum(level << 4 * i for i, level in enumerate(levels))
    body = struct.pack("<II2f", 5, 3, 5, 10) + bits.to_bytes(3, "little")
    assert message.tobytes() == struct.pack("<IBBH", 27, 4, 4, 0) + body
    assert decoded(message, 6).tolist() == [3, -4, 0, 6, 8, 0]
    assert not left.any()


@given(values=VECTORS, states=st.integers(1, 300), bucket=st.integers(0, 40))
def test_quantized_messages_hold_what_their_formulas_say(values, states, bucket):
    uniform = random_bits.uniform(STREAM, values.size)
    message, left = ternary.encode(values, STREAM)
    found = decoded(message, values.size)
    largest = np.abs(values).max(initial=np.float32(0))
    if largest:
        sent = np.sign(values) * (uniform < np.abs(values) / largest) * largest
        np.testing.assert_array_equal(found, sent)
    np.testing.assert_array_equal(left, values - found)
    for norm in ("l2", "max"):
        message, left = qsgd.encode(values, STREAM, states, bucket, norm)
        found = decoded(message, values.size)
        np.testing.assert_array_equal(left, values - found)
        size = bucket or max(values.size, 1)
        for i in range(0, values.size, size):
            part = values[i : i + size].astype(np.float64)
            length = np.sqrt((part**2).sum()) if norm == "l2" else np.abs(part).max()
            if not length:
                assert not found[i : i + size].any()
                continue
            # One level is norm / s; the drawn level is one of the two neighbours.
            steps = found[i : i + size] / length * states
            assert np.abs(steps - np.round(steps)).max() < 1e-3
            assert (np.abs(steps - part / length * states) < 1 + 1e-3).all()
        width = (2 * states).bit_length()
        expected = 16 + 4 * -(-values.size // size) + -(-values.size * width // 8)
        assert len(message) == expected


def test_quantizers_are_unbiased():
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    draws = 2000
    for encode in (
        ternary.encode,
        lambda one, stream: qsgd.encode(one, stream, 3),
        lambda one, stream: qsgd.encode(one, stream, 3, 16, "max"),
    ):
        sent = np.stack(
            [
                values - encode(values, STREAM._replace(step=step))[1]
                for step in range(draws)
            ]
        ).astype(np.float64)
        deviation = sent.std(axis=0) / math.sqrt(draws)
        # 5 standard errors, which one of 64 values exceeds once in 27,000 draws.
        assert (np.abs(sent.mean(axis=0) - values) <= 5 * deviation + 1e-6).all()


@pytest.mark.parametrize("kind", ["sparse", "ternary", "qsgd", "dense"])
def test_damaged_messages_are_refused(kind):
    values = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    encoded = {
        "sparse": lambda: sparse.encode(values, np.float32(2))[0],
        "ternary": lambda: ternary.encode(values, STREAM)[0],
        "qsgd": lambda: qsgd.encode(values, STREAM, 5, 64)[0],
        "dense": lambda: wire.encode_dense(values),
    }
    message = encoded[kind]()
    for end in range(len(message)):
        with pytest.raises(ValueError):  # noqa: PT011 - Many sentences.
            decode_mean_in_numpy(message[:end], [200], 1)
    with pytest.raises(ValueError, match="behind the last message"):
        decode_mean_in_numpy(np.append(message, np.uint8(0)), [200], 1)
    with pytest.raises(ValueError):  # noqa: PT011
        decode_mean_in_numpy(message, [201 if kind != "sparse" else 100], 1)


def test_the_mean_is_that_of_the_ranks():
    first, second = float32(1, 2, 4), float32(3, 0, -8)
    messages = [
        wire.encode_dense(first),
        wire.encode_dense(float32(7)),
        sparse.encode(np.append(second, np.zeros(0, np.float32)), np.float32(1))[0],
        wire.encode_dense(float32(9)),
    ]
    means = decode_mean_in_numpy(np.concatenate(messages), [3, 1], 2)
    assert [mean.tolist() for mean in means] == [[2, 1, -2], [8]]
