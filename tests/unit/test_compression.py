"""Formulas of compression, and laws of its codecs."""

import itertools
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from resnet import native
from resnet.config import compression
from resnet.config.compression import (
    METHODS,
    CompressionSettings,
    dense_bytes,
    num_bytes,
)
from resnet.exchange.codecs import CODECS, messages, summed
from resnet.exchange.codecs.codec import Context
from resnet.exchange.transports import slices_of
from tests.reference import compression as reference
from tests.reference.compression import Stream, uniform

STREAM = Stream(seed=2**40 + 3, vector=2, step=2**31, rank=1)
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
        # Exact sizes of messages are those of coded ones below.
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


KEPT = st.sampled_from(["float32", "bfloat16", "2bit"])


@given(values=VECTORS, threshold=st.floats(0, 100, width=32), how=KEPT)
@example(values=np.float32([1e38, 1, 1e-38]), threshold=0.5, how="float32")
@example(values=np.zeros(9, np.float32), threshold=0.0, how="bfloat16")
@example(values=np.float32([1 + 2**-8, 1 + 3 * 2**-8]), threshold=0.0, how="bfloat16")
def test_a_sparse_message_holds_what_is_kept(values, threshold, how):
    message, left = reference.encode_sparse(values, np.float32(threshold), how)
    is_kept = (np.abs(values) >= np.float32(threshold)) & (values != 0)
    kept = np.where(is_kept, values, np.float32(0))
    if how == "bfloat16":
        kept = reference.round_to_bfloat16(kept)
    if how == "2bit":
        kept[is_kept] = reference.round_to_levels(kept[is_kept])
        assert np.unique(kept[is_kept]).size <= 4
        square = np.square(left.astype(np.float64)).sum()
        assert square <= np.square(values.astype(np.float64)).sum() * 1.001
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


# Around the ends of a strip of random numbers (240) and of a task (65,520 values).
SIZES = (1, 4, 5, 63, 64, 65, 239, 240, 241, 1000, 65_519, 65_521, 200_001)
CASES = [
    CompressionSettings(method="topk", ratio=0.01),
    CompressionSettings(method="topk", ratio=0.3, kept_values="bfloat16"),
    CompressionSettings(method="topk", ratio=0.1, kept_values="2bit"),
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
    values: np.ndarray, settings: CompressionSettings, stream: Stream = STREAM
) -> tuple[np.ndarray, ...]:
    context = Context(
        settings,
        values.shape,
        tf.constant(stream, tf.int64),
        settings.ratio,
        state=None,
        mean=lambda *_: None,
    )
    message, left = CODECS[settings.method].encode(tf.constant(values), context)
    return message.numpy(), left.numpy()


def decode(message: np.ndarray, size: int) -> np.ndarray:
    (mean,) = messages.decode_mean(tf.constant(message), [size], 1)
    return mean.numpy()


def joined(parts) -> bytes:
    return b"".join(part.tobytes() for part in parts)


@pytest.fixture(autouse=True)
def _with_ops():
    assert native.ops() is not None


ONE_A_BUCKET = CompressionSettings(method="qsgd", qstates=3, qsgd_bucket=1)


@pytest.mark.parametrize("compression", [*CASES, ONE_A_BUCKET], ids=str)
def test_the_op_gives_the_bytes_of_the_reference(compression):
    # DGC sends the messages of topk.
    summed = {name for name, method in METHODS.items() if method.is_summed}
    assert {one.method for one in CASES} | summed | {"dgc"} == set(CODECS)
    for values in (
        *(vector(size) * np.float32(1e-3 if size % 2 else 1) for size in SIZES),
        np.zeros(1000, np.float32),
        np.full(1000, -2.5, np.float32),
        np.append(vector(999), np.float32(3e38)),
        np.append(vector(999) * np.float32(1e-20), np.float32(1)),
    ):
        size = values.size
        message, left = encode(values, compression)
        expected, expected_left = reference.encode(values, compression, STREAM)
        assert message.tobytes() == expected.tobytes()
        assert left.tobytes() == expected_left.tobytes()
        (mean,) = reference.decode_mean(message, [size], 1)
        assert decode(message, size).tobytes() == mean.tobytes()


THREE_OF_100 = np.zeros(100, np.float32)
THREE_OF_100[[3, 50, 51]] = 1, -2, 0.5
DOCUMENTED = {
    # b = 4: 2^4 <= ln(2) 100 / 3 = 23.1. Gaps 3, 46, 0: quotients 0, 2, 0 and
    # remainders 3, 14, 0. Bits, from the lowest: 1 001 1.
    "sparse": (
        {"method": "thresholdv", "threshold": 0.1},
        THREE_OF_100,
        (1, 4, struct.pack("<I3f3B", 3, 1, -2, 0.5, 3 | 14 << 4, 0, 0b11001)),
        [0] * 100,
    ),
    # The mean magnitude of the kept values is 2. Levels in the order of the values: -1,
    # 1.5 of 1 and 2, and 4; codes 0, 1, 2, 1.
    "2bit": (
        {"method": "thresholdv", "threshold": 0.1, "kept_values": "2bit"},
        [*[0] * 96, -1, 1, 4, 2],
        (7, 4, struct.pack("<I4f5B", 4, -1, 1.5, 4, 0, 0b01100100, 0, 0, 0xC0, 3)),
        [*[0] * 97, -0.5, 0, 0.5],
    ),
    # Zero and the largest leave no choice.
    "ternary": (
        {"method": "terngrad"},
        [2, 0, -2, 2, -2, -2],
        (3, 0, struct.pack("<fBB", 2, 2 * 1 + 1 * 3 + 0 * 9 + 2 * 27 + 0 * 81, 0)),
        [0] * 6,
    ),
    # Norms 5 and 10; 3/5 5 = 3 and so on are whole numbers.
    "qsgd": (
        {"method": "qsgd", "qstates": 5, "qsgd_bucket": 3},
        [3, -4, 0, 6, 8, -0.0],
        (4, 4, struct.pack("<II2f3B", 5, 3, 5, 10, 0x18, 0x85, 0x59)),
        [0] * 6,
    ),
    # At most 65,504.
    "fp16": (
        {"method": "fp16"},
        [1, -70_000],
        (5, 0, struct.pack("<2H", 0x3C00, 0xFBFF)),
        [0, -4496],
    ),
    # Ties to even.
    "bf16": (
        {"method": "bf16"},
        [1 + 2**-8, 1 + 3 * 2**-8],
        (6, 0, struct.pack("<2H", 0x3F80, 0x3F82)),
        [2**-8, -(2**-8)],
    ),
}


@pytest.mark.parametrize("case", DOCUMENTED)
def test_a_message_is_as_documented(case):
    settings, vector_of_case, (kind, bit_width, body), left = DOCUMENTED[case]
    values = np.array(vector_of_case, np.float32)
    message, lacks = encode(values, CompressionSettings(**settings))
    header = struct.pack("<IBBH", 8 + len(body), kind, bit_width, 0)
    assert message.tobytes() == header + body
    assert lacks.tolist() == left
    assert (values - decode(message, values.size)).tolist() == left


@pytest.mark.parametrize("sampled", [None, 1e-6, 1e6])
@pytest.mark.parametrize("size", [262_145, 600_000])
def test_the_sample_of_topk_only_saves_time(size, sampled):
    # Of more than 4 x 65,536 values, every (size // 65,536)-th is in the sample. Where
    # all of these are small or large, it misleads.
    values = vector(size)
    if sampled is not None:
        values[:: size // 65_536] *= np.float32(sampled)
    settings = CompressionSettings(method="topk", ratio=0.01)
    for own, expected in zip(
        encode(values, settings),
        reference.encode(values, settings, STREAM),
        strict=True,
    ):
        assert own.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_mean(bad):
    values = np.append(vector(999), np.float32(bad))
    whole_bucket = CompressionSettings(method="qsgd", qsgd_bucket=100)
    for settings in (*CASES, whole_bucket):
        message, _ = encode(values, settings)
        is_finite = np.isfinite(decode(message, 1000))
        assert not is_finite[999]
        if settings.method == "terngrad":
            assert not is_finite.any()
    assert is_finite.tolist() == [True] * 900 + [False] * 100


def test_quantizers_are_unbiased():
    values, draws = vector(64), 2000
    for settings in (
        CompressionSettings(method="terngrad"),
        CompressionSettings(method="qsgd", qstates=3),
        CompressionSettings(method="qsgd", qstates=3, qsgd_bucket=16, qsgd_norm="max"),
    ):
        sent = np.stack(
            [
                values - encode(values, settings, STREAM._replace(step=step))[1]
                for step in range(draws)
            ]
        ).astype(np.float64)
        deviation = sent.std(axis=0) / draws**0.5
        # 5 standard errors, which one of 64 values exceeds once in 27,000 draws.
        assert (np.abs(sent.mean(axis=0) - values) <= 5 * deviation + 1e-6).all()


@tf.function(autograph=False)
def coordinates(size: int, count: int, num_steps: int) -> tf.Tensor:
    """Returns what randomk keeps in each step, `[num_steps, count]`."""

    def of_step(step: tf.Tensor) -> tf.Tensor:
        return summed.draw_coordinates(size, count, tf.stack([9, 1, step, 0]))

    return tf.map_fn(of_step, tf.range(num_steps, dtype=tf.int64))


def test_random_coordinates_are_all_different_and_unbiased_when_they_are_scaled():
    for size, count in ((1000, 10), (7, 4), (1, 1), (5, 5)):
        draws = coordinates(size, count, 20).numpy().tolist()
        for indices in draws:
            assert len(set(indices)) == len(indices) == count
            assert set(indices) <= set(range(size))
        assert len(set(map(tuple, draws))) > 1 or size == 1
    values, total, num_draws = vector(40), np.zeros(40), 2000
    for indices in coordinates(40, 10, num_draws).numpy():
        total[indices] += 4 * values[indices]
    # Kept with probability 1/4, the mean has the standard deviation |v| sqrt(3 / n).
    deviations = np.abs(values) * (3 / num_draws) ** 0.5
    assert (np.abs(total / num_draws - values) < 5 * deviations).all()


def test_the_mean_is_that_of_the_messages_of_all_ranks_and_vectors():
    sizes = [70_000, 1, 333]
    for settings in CASES:
        parts = [
            encode(vector(size, 10 * rank + size % 7), settings)[0]
            for rank, size in itertools.product(range(3), sizes)
        ]
        whole = np.concatenate(parts)
        means = messages.decode_mean(tf.constant(whole), sizes, 3)
        expected = reference.decode_mean(whole, sizes, 3)
        assert joined(mean.numpy() for mean in means) == joined(expected)


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_damaged_messages_are_an_error_and_nothing_is_read_behind_them(settings):
    draw = np.random.default_rng(3)
    message, _ = encode(vector(320), settings)
    sizes = [160, 160] if settings.qsgd_bucket != 100 else [320]

    def of_pieces(given: tf.Tensor, *_) -> list[tf.Tensor]:
        return messages.decode_mean(messages.cut(given, sizes)[0], sizes, 1)

    for op, whole, num_ranks in (
        (messages.decode_mean, np.tile(message, 2), 2),
        (of_pieces, message, 1),
    ):
        for damaged in (
            *(whole[:end] for end in (0, 3, 8, len(message) - 1, len(whole) - 1)),
            np.append(whole, np.uint8(0)),
        ):
            with pytest.raises(tf.errors.DataLossError, match="is corrupt"):
                op(tf.constant(damaged), [320], num_ranks)
        for _ in range(100):
            damaged = whole.copy()
            damaged[draw.integers(min(len(whole), 80))] ^= 1 << draw.integers(8)
            ours = outcome(op, tf.constant(damaged), [320], num_ranks)
            expected = outcome(reference.decode_mean, damaged, [320], num_ranks)
            assert (ours is None) == (expected is None)
            if ours is not None:
                # TensorFlow's threads take subnormal numbers for zero.
                np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-37)


def outcome(call, *arguments) -> np.ndarray | None:
    """Returns the arrays of a call as one; None if the message is corrupt."""
    try:
        return np.concatenate([np.asarray(part) for part in call(*arguments)])
    except (ValueError, tf.errors.OpError):
        return None


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_pieces_of_a_message_hold_what_the_message_holds(settings):
    for size in (41, 5_000, 70_001):
        alignment = CODECS[settings.method].alignment(settings, size)
        pieces = itertools.chain(*slices_of([size], 3, alignment))
        sizes = [piece.size for piece in pieces]
        message, _ = encode(vector(size), settings)
        cut, lengths = messages.cut(tf.constant(message), sizes)
        assert (lengths.numpy() <= [dense_bytes(size) for size in sizes]).all()
        for piece, piece_size in zip(tf.split(cut, lengths), sizes, strict=True):
            assert messages.decode_mean(piece, [piece_size], 1)
        decoded = reference.decode_mean(cut.numpy(), sizes, 1)
        np.testing.assert_array_equal(np.concatenate(decoded), decode(message, size))


def test_a_piece_that_would_be_longer_than_its_values_is_dense():
    values = np.zeros(1000, np.float32)
    values[:10] = 1  # All in the first piece.
    settings = CompressionSettings(method="thresholdv", threshold=1.0)
    message, _ = encode(values, settings)
    cut, lengths = messages.cut(tf.constant(message), [10, 990])
    assert lengths.numpy().tolist() == [8 + 4 * 10, 8 + 4]
    assert messages.is_dense(cut)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"method": "terngrad"}, [7, 93]),
        ({"method": "qsgd"}, [12, 88]),
        ({"method": "qsgd", "qstates": 3, "qsgd_bucket": 16}, [24, 76]),
    ],
)
def test_a_message_is_not_cut_inside_of_a_byte_or_a_bucket(settings, sizes):
    message, _ = encode(vector(100), CompressionSettings(**settings))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have a multiple of"):
        messages.cut(tf.constant(message), sizes)


@pytest.mark.parametrize(
    "settings", [one for one in CASES if one.method in ("terngrad", "qsgd", "fp16")]
)
def test_exact_messages_have_the_bytes_of_the_formula(settings):
    method = METHODS[settings.method]
    for size in (16, 64, 65, 1000, 70_001):
        message, _ = encode(vector(size), settings)
        assert num_bytes(settings, [size]) == min(len(message), dense_bytes(size))
        if len(message) != dense_bytes(size):
            assert len(message) == method.coded_bytes(settings, [size])


@pytest.mark.parametrize("kept_values", ["float32", "bfloat16", "2bit"])
def test_sparse_messages_have_about_the_bytes_of_the_formula(kept_values):
    for ratio, size in itertools.product(
        (1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0), (1, 10, 100, 100_000)
    ):
        settings = CompressionSettings(ratio=ratio, kept_values=kept_values)
        # The positions decide one or two bits a value: by chance, with few of them.
        length = len(encode(vector(size, seed=size), settings)[0])
        assert length == pytest.approx(num_bytes(settings, [size]), rel=0.01, abs=3)
        assert length <= dense_bytes(size)
