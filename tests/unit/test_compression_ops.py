"""The compiled ops of compression against their reference implementations."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.config.compression import METHODS as METHODS_OF_RUNS
from resnet.config.compression import SUMMED_METHODS, CompressionSettings
from resnet.exchange.codecs import messages, pieces, qsgd, slices, sparse, ternary, wire
from resnet.exchange.codecs.random_bits import Stream

STREAM = Stream(seed=2**40 + 3, vector=2, step=2**31, rank=1)
# Around the ends of a strip of random numbers (240) and of a task (65,520 values).
SIZES = (1, 4, 5, 63, 64, 65, 239, 240, 241, 1000, 65_519, 65_521, 200_001)
METHODS = [
    CompressionSettings(method="topk", ratio=0.01),
    CompressionSettings(method="topk", ratio=0.3, kept_values="bfloat16"),
    CompressionSettings(method="topk", ratio=1.0),
    CompressionSettings(method="thresholdv", threshold=1.5),
    CompressionSettings(method="adaptivethreshold"),
    CompressionSettings(method="terngrad"),
    CompressionSettings(method="qsgd"),
    CompressionSettings(method="qsgd", qstates=7, qsgd_bucket=1024, qsgd_norm="max"),
    CompressionSettings(method="qsgd", qstates=1, qsgd_bucket=100),
    CompressionSettings(method="fp16"),
    CompressionSettings(method="bf16"),
]


def vector(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def encode(
    values: np.ndarray, compression: CompressionSettings
) -> tuple[np.ndarray, ...]:
    stream = tf.constant(STREAM, tf.int64)
    message, left = messages.encode_by_method(tf.constant(values), compression, stream)
    return message.numpy(), left.numpy()


def encode_in_numpy(values: np.ndarray, compression: CompressionSettings):
    if compression.method == "terngrad":
        return ternary.encode(values, STREAM)
    if compression.method == "qsgd":
        parameters = (compression.qstates, compression.qsgd_bucket)
        return qsgd.encode(values, STREAM, *parameters, compression.qsgd_norm)
    if compression.method == "fp16":
        largest = np.float32(65_504)
        clipped = np.where(np.isinf(values), values, np.clip(values, -largest, largest))
        nearest = clipped.astype(np.float16)
        return wire.join(wire.FLOAT16, 0, nearest), values - nearest.astype(np.float32)
    if compression.method == "bf16":
        rounded = sparse.round_to_bfloat16(values)
        upper = (rounded.view(np.uint32) >> 16).astype(np.uint16)
        return wire.join(wire.BFLOAT16, 0, upper), values - rounded
    threshold = {
        "topk": lambda: sparse.threshold_of_topk(
            values, sparse.topk_count(values.size, compression.ratio)
        ),
        "thresholdv": lambda: np.float32(compression.threshold),
        "adaptivethreshold": lambda: sparse.threshold_of_adaptive(values),
    }[compression.method]()
    return sparse.encode(values, threshold, compression.kept_values == "bfloat16")


@pytest.fixture(autouse=True)
def _with_ops():
    assert native.ops() is not None


@pytest.mark.parametrize("compression", METHODS, ids=str)
def test_the_op_gives_the_bytes_of_the_reference(compression):
    own = {one.method for one in METHODS}
    # DGC sends the messages of topk.
    assert own | {*SUMMED_METHODS, "dgc"} == set(METHODS_OF_RUNS)
    for size in SIZES:
        values = vector(size) * np.float32(1e-3 if size % 2 else 1)
        message, left = encode(values, compression)
        expected, expected_left = encode_in_numpy(values, compression)
        assert message.tobytes() == expected.tobytes()
        assert left.tobytes() == expected_left.tobytes()
        (mean,) = messages.decode_mean(tf.constant(message), [size], 1)
        (expected_mean,) = messages.decode_mean_in_numpy(message, [size], 1)
        assert mean.numpy().tobytes() == expected_mean.tobytes()


@pytest.mark.parametrize("sampled", [None, 1e-6, 1e6])
@pytest.mark.parametrize("size", [262_145, 600_000])
def test_the_sample_of_topk_only_saves_time(size, sampled):
    # Of more than 4 x 65,536 values, every (size // 65,536)-th is in the sample. Where
    # all of these are small or large, it misleads.
    values = vector(size)
    if sampled is not None:
        values[:: size // 65_536] *= np.float32(sampled)
    compression = CompressionSettings(method="topk", ratio=0.01)
    message, left = encode(values, compression)
    expected, expected_left = encode_in_numpy(values, compression)
    assert message.tobytes() == expected.tobytes()
    assert left.tobytes() == expected_left.tobytes()


def test_a_bucket_may_be_one_value():
    compression = CompressionSettings(method="qsgd", qstates=3, qsgd_bucket=1)
    message, left = encode(vector(1000), compression)
    assert message.tobytes() == encode_in_numpy(vector(1000), compression)[0].tobytes()
    np.testing.assert_allclose(left, 0, atol=1e-6)  # Each value is its own norm.


def test_the_values_may_be_all_zero_huge_or_equal():
    for values in (
        np.zeros(1000, np.float32),
        np.full(1000, -2.5, np.float32),
        np.append(vector(999), np.float32(3e38)),
        np.append(vector(999) * np.float32(1e-30), np.float32(1)),
    ):
        for compression in METHODS:
            message, _ = encode(values, compression)
            expected, _ = encode_in_numpy(values, compression)
            assert message.tobytes() == expected.tobytes()


def test_what_is_not_a_number_reaches_the_mean():
    for bad in (np.nan, np.inf):
        values = np.append(vector(999), np.float32(bad))
        for compression in METHODS:
            message, _ = encode(values, compression)
            (mean,) = messages.decode_mean(tf.constant(message), [1000], 1)
            assert not np.isfinite(mean[999])


def test_the_mean_is_that_of_the_messages_of_all_ranks_and_vectors():
    sizes = [70_000, 1, 333]
    for compression in METHODS:
        parts = [
            encode(vector(size, 10 * rank + size % 7), compression)[0]
            for rank, size in itertools.product(range(3), sizes)
        ]
        joined = np.concatenate(parts)
        means = messages.decode_mean(tf.constant(joined), sizes, 3)
        expected = messages.decode_mean_in_numpy(joined, sizes, 3)
        for one, other in zip(means, expected, strict=True):
            assert one.numpy().tobytes() == other.tobytes()


def test_damaged_messages_are_an_error_and_nothing_is_read_behind_them():
    draw = np.random.default_rng(3)
    sizes = [300, 40]
    for compression in METHODS:
        parts = [encode(vector(size), compression)[0] for size in sizes]
        whole = np.concatenate(parts)
        for end in (0, 3, 8, len(parts[0]), len(whole) - 1):
            with pytest.raises(tf.errors.DataLossError, match="is corrupt"):
                messages.decode_mean(tf.constant(whole[:end]), sizes, 1)
        for _ in range(100):
            damaged = whole.copy()
            place = draw.integers(min(len(whole), 40))
            damaged[place] ^= np.uint8(1 << draw.integers(8))
            found, expected = outcome_of_op(damaged, sizes), in_numpy(damaged, sizes)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                # TensorFlow's threads take subnormal numbers for zero.
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)


def test_pieces_of_a_message_hold_what_the_message_holds():
    for compression, size in itertools.product(METHODS, (41, 5_000, 70_001)):
        alignment = slices.alignment(compression, size)
        cut = slices.cut([size], 3, alignment)
        sizes = [piece.size for of_slice in cut for piece in of_slice]
        message, _ = encode(vector(size), compression)
        (whole,) = messages.decode_mean_in_numpy(message, [size], 1)
        found, lengths = messages.cut(tf.constant(message), sizes)
        expected = pieces.cut(message, sizes)
        assert found.numpy().tobytes() == b"".join(one.tobytes() for one in expected)
        assert lengths.numpy().tolist() == [one.size for one in expected]
        decoded = messages.decode_mean_in_numpy(found.numpy(), sizes, 1)
        np.testing.assert_array_equal(np.concatenate(decoded), whole)


def test_a_piece_that_would_be_longer_than_its_values_is_dense():
    values = np.zeros(1000, np.float32)
    values[:10] = 1  # All in the first piece.
    message, _ = sparse.encode(values, np.float32(1))
    found, lengths = messages.cut(tf.constant(message), [10, 990])
    assert lengths.numpy().tolist() == [8 + 4 * 10, 8 + 4]
    assert found.numpy()[4] == wire.DENSE
    assert found.numpy().tobytes() == b"".join(
        one.tobytes() for one in pieces.cut(message, [10, 990])
    )


@pytest.mark.parametrize(
    ("compression", "sizes"),
    [
        (CompressionSettings(method="terngrad"), [7, 93]),
        (CompressionSettings(method="qsgd"), [12, 88]),
        (CompressionSettings(method="qsgd", qstates=3, qsgd_bucket=16), [24, 76]),
    ],
)
def test_a_message_is_not_cut_inside_of_a_byte_or_a_bucket(compression, sizes):
    message, _ = encode(vector(100), compression)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have a multiple of"):
        messages.cut(tf.constant(message), sizes)
    with pytest.raises(ValueError, match="can be cut behind multiples"):
        pieces.cut(message, sizes)


def test_damaged_messages_are_not_cut():
    draw = np.random.default_rng(4)
    for compression in METHODS:
        whole, _ = encode(vector(320), compression)
        sizes = [160, 160] if compression.qsgd_bucket != 100 else [320]
        for end in (0, 3, 8, len(whole) - 1):
            with pytest.raises(tf.errors.DataLossError, match="is corrupt"):
                messages.cut(tf.constant(whole[:end]), sizes)
        for _ in range(100):
            damaged = whole.copy()
            damaged[draw.integers(len(whole))] ^= np.uint8(1 << draw.integers(8))
            try:
                expected = np.concatenate(pieces.cut(damaged, sizes))
            except ValueError:
                expected = None
            try:
                found = messages.cut(tf.constant(damaged), sizes)[0].numpy()
            except tf.errors.OpError:
                found = None
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found.tobytes() == expected.tobytes()


def outcome_of_op(given: np.ndarray, sizes: list[int]) -> np.ndarray | None:
    try:
        means = messages.decode_mean(tf.constant(given), sizes, 1)
        return np.concatenate([mean.numpy() for mean in means])
    except tf.errors.DataLossError:
        return None


def in_numpy(given: np.ndarray, sizes: list[int]) -> np.ndarray | None:
    try:
        return np.concatenate(messages.decode_mean_in_numpy(given, sizes, 1))
    except ValueError:
        return None
