"""Formulas of compression, and laws of its codecs."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from resnet.config import compression
from resnet.config.compression import METHODS, CompressionSettings, num_bytes
from tests.reference import compression as reference
from tests.reference.compression import Stream, uniform

STREAM = Stream(seed=5, vector=2, step=7, rank=1)
VECTORS = arrays.arrays(
    np.float32,
    st.integers(0, 300),
    elements=st.floats(-100, 100, width=32, allow_subnormal=False),
)


@pytest.mark.parametrize(
    ("num_values", "ratio", "count"),
    # n - ceil(n (1 - ratio)) + 1, by hand.
    [(100, 0.01, 2), (10, 0.5, 6), (1, 0.01, 1), (1000, 0.001, 2), (7, 1.0, 7)],
)
def test_topk_keeps_as_many_as_its_source(num_values, ratio, count):
    assert compression.topk_count(num_values, ratio) == count


@pytest.mark.parametrize(
    ("more", "shape", "expected"),
    [
        # Exact sizes of messages are those of coded ones in test_compression_ops.
        ({"method": "randomk", "ratio": 0.01}, [25_557_032], 4 * 255_571),
        ({"method": "randomk", "ratio": 0.01}, [1], 4),
        ({"method": "powersgd", "powersgd_rank": 2}, [3, 3, 4, 8], 4 * 2 * (36 + 8)),
        ({"method": "powersgd", "powersgd_rank": 2}, [40], 160),
        ({"method": "qsgd"}, [1000], 20 + 1125),
        ({"method": "qsgd", "dense_below": 1001}, [1000], 4000),
        ({"method": "qsgd", "qsgd_bucket": 1}, [1000], 8 + 4000),  # Dense.
        # Of a threshold, topk's 1 % is assumed: 2 values, and 2 gaps by 5 bits and
        # some unary ones.
        ({"method": "thresholdv"}, [100], 8 + 4 + 2 * 4 + 2 + 1),
    ],
)
def test_a_vector_has_the_bytes_of_its_formula(more, shape, expected):
    assert num_bytes(CompressionSettings(**more), shape) == expected


def test_the_longest_message_is_that_of_the_first_epoch_or_of_all_values():
    dgc = CompressionSettings(method="dgc", ratio=0.01, dgc_warmup_epochs=1)
    topk = CompressionSettings(method="topk", ratio=0.1)
    assert compression.most_bytes(dgc, [10_000]) == num_bytes(topk, [10_000])
    unknown = [name for name, method in METHODS.items() if method.size == "assumed"]
    assert unknown == ["thresholdv", "adaptivethreshold"]
    for name in unknown:
        settings = CompressionSettings(method=name)
        assert compression.most_bytes(settings, [100]) == 408


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
        assert [int(word[0]) for word in reference.philox(words, key)] == expected


def decoded(message: reference.Bytes, num_values: int) -> reference.Values:
    return reference.decode_mean(message, [num_values], 1)[0]


@given(values=VECTORS, threshold=st.floats(0, 100, width=32), is_short=st.booleans())
@example(values=np.float32([1e38, 1, 1e-38]), threshold=0.5, is_short=False)
@example(values=np.zeros(9, np.float32), threshold=0.0, is_short=True)
@example(values=np.float32([1 + 2**-8, 1 + 3 * 2**-8]), threshold=0.0, is_short=True)
def test_a_sparse_message_holds_what_is_kept(values, threshold, is_short):
    message, left = reference.encode_sparse(values, np.float32(threshold), is_short)
    kept = np.where(np.abs(values) >= np.float32(threshold), values, np.float32(0))
    if is_short:
        kept = reference.round_to_bfloat16(kept)
    np.testing.assert_array_equal(decoded(message, values.size), kept)
    np.testing.assert_array_equal(left, values - kept)
    assert len(message) <= 8 + max(values.nbytes, 4)


@given(values=VECTORS, states=st.integers(1, 300), bucket=st.integers(0, 40))
def test_quantized_messages_hold_what_their_formulas_say(values, states, bucket):
    message, left = reference.encode_ternary(values, STREAM)
    sent = decoded(message, values.size)
    largest = np.abs(values).max(initial=np.float32(0))
    if largest:
        is_sent = uniform(STREAM, values.size) < np.abs(values) / largest
        np.testing.assert_array_equal(sent, np.sign(values) * is_sent * largest)
    np.testing.assert_array_equal(left, values - sent)
    for norm in ("l2", "max"):
        message, left = reference.encode_qsgd(values, STREAM, states, bucket, norm)
        sent = decoded(message, values.size)
        np.testing.assert_array_equal(left, values - sent)
        size = bucket or max(values.size, 1)
        for i in range(0, values.size, size):
            part = values[i : i + size].astype(np.float64)
            length = np.sqrt((part**2).sum()) if norm == "l2" else np.abs(part).max()
            if not length:
                assert not sent[i : i + size].any()
                continue
            # One level is norm / s; the drawn level is one of the two neighbours.
            steps = sent[i : i + size] / length * states
            assert np.abs(steps - np.round(steps)).max() < 1e-3
            assert (np.abs(steps - part / length * states) < 1 + 1e-3).all()
