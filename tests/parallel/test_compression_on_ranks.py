"""Compressed gradients of several ranks: their means, what is left, non-finite ones."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.compression import CompressionSettings, randomk_count
from resnet.config.phases import StepSettings
from resnet.distributed.communicator import AgreedError
from resnet.exchange import transports
from resnet.exchange.codecs import CODECS, randomk
from resnet.exchange.compressed import CompressedExchange
from tests.reference import compression as reference
from tests.reference.compression import Stream

IN_3 = pytest.mark.ranks(3)
on_2_and_3_ranks = pytest.mark.parametrize(
    "num_ranks", [2, pytest.param(3, marks=IN_3)]
)
SEED = 11
# The last vector of SHAPES is a bucket by itself then, and the others are the next one.
SEVERAL_BUCKETS = 300
SHAPES = {"first/kernel": [3, 3, 4, 8], "first/bias": [8], "last/kernel": [50, 40]}
METHODS = [
    CompressionSettings(method="topk", ratio=0.05, error_feedback=True),
    CompressionSettings(method="topk", ratio=0.2, kept_values="bfloat16"),
    CompressionSettings(method="thresholdv", threshold=1.0, error_feedback=True),
    CompressionSettings(method="adaptivethreshold", error_feedback=True),
    CompressionSettings(method="terngrad"),
    CompressionSettings(method="qsgd", qstates=7),
    CompressionSettings(
        method="qsgd", qstates=7, qsgd_bucket=64, qsgd_norm="max", error_feedback=True
    ),
    CompressionSettings(method="randomk", ratio=0.1, error_feedback=True),
    CompressionSettings(method="fp16"),
    CompressionSettings(method="bf16", error_feedback=True),
]
# Those of DGC are in test_dgc_on_ranks.
MESSAGES = [method for method in METHODS if method.method != "randomk"]


def settings_of(step: int) -> StepSettings:
    rates = (tf.constant(one) for one in (0.1, 0.9, 0.9))
    return StepSettings(*rates, 0.0, 0.0, tf.constant(step, tf.int64))


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    draw = np.random.default_rng([rank, step])
    return [draw.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def sent(
    values: np.ndarray, method: CompressionSettings, stream: Stream
) -> tuple[np.ndarray, int]:
    """Returns the values that the others get of a vector, and the bytes, in NumPy."""
    if method.method == "randomk":
        count = randomk_count(values.size, method.ratio)
        indices = randomk.draw(values.size, count, tf.constant(stream, tf.int64))
        kept = np.zeros_like(values)
        kept[indices.numpy()] = values[indices.numpy()]
        return kept, 4 * count
    message, _ = reference.encode(values, method, stream)
    return reference.decode_mean(message, [values.size], 1)[0], message.size


def reference_step(
    vectors: list[list[np.ndarray]],
    method: CompressionSettings,
    step: int,
    slices_left: list[np.ndarray] | None,
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Returns the means over ranks of an exchange, and what each rank has not sent.

    Args:
        vectors: The vectors of each rank, all in one bucket.
        method: The settings of compression.
        step: Number of the step.
        slices_left: What the message of each rank's slice lacked, which is replaced;
            None for an exchange without slices.
    """
    num_ranks, sizes = len(vectors), [vector.size for vector in vectors[0]]
    received = [
        [
            sent(vector, method, Stream(SEED, number, step, rank))[0]
            for number, vector in enumerate(of_rank)
        ]
        for rank, of_rank in enumerate(vectors)
    ]
    factor = np.float32(1) / np.float32(num_ranks)
    means = [np.zeros(size, np.float32) for size in sizes]
    for of_rank in received:
        for mean, values in zip(means, of_rank, strict=True):
            mean += values * factor
    left = [
        [vector - one for vector, one in zip(of_rank, other, strict=True)]
        for of_rank, other in zip(vectors, received, strict=True)
    ]
    if slices_left is None:
        return means, left
    order = list(reversed(range(len(sizes))))  # The last vector comes first.
    bucket = np.concatenate([means[number] for number in order])
    alignment = CODECS[method.method].alignment(method, max(sizes))
    cut = transports.slices_of(
        [sizes[number] for number in order], num_ranks, alignment
    )
    ends = np.cumsum([sum(piece.size for piece in one) for one in cut])
    parts = []
    for rank, part in enumerate(np.split(bucket, ends[:-1])):
        whole = part + slices_left[rank]
        stream = Stream(SEED, len(sizes), step, rank)
        parts.append(sent(whole, method, stream)[0] if whole.size else whole)
        if method.error_feedback:
            slices_left[rank] = whole - parts[-1]
    in_order = np.split(
        np.concatenate(parts), np.cumsum([sizes[number] for number in order])[:-1]
    )
    return [in_order[order.index(number)] for number in range(len(sizes))], left


@on_2_and_3_ranks
@pytest.mark.parametrize("compress", ["layerwise", "entiremodel"])
@pytest.mark.parametrize(
    "method",
    [
        *METHODS,
        *(dataclasses.replace(method, exchange="sliced") for method in MESSAGES),
    ],
    ids=lambda one: f"{one.method}-{one.exchange}",
)
def test_all_ranks_have_the_mean_of_what_the_ranks_sent(
    communicator, compress, method, num_ranks
):
    assert communicator.num_ranks == num_ranks
    method = dataclasses.replace(method, compress=compress)
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    if compress == "entiremodel":
        sizes = [sum(sizes)]
    names = ["model"] if len(sizes) == 1 else list(SHAPES)
    exchange = CompressedExchange(communicator, SHAPES, method, SEED)
    traced = tf.function(exchange, autograph=False)
    expected_left = [[np.zeros(size, np.float32) for size in sizes]] * num_ranks
    is_sliced = method.exchange == "sliced"
    slices_left = [np.float32(0)] * num_ranks if is_sliced else None
    for step in range(3):
        loss = tf.constant(float(communicator.rank))
        flags = tf.constant([0.0, float(communicator.rank == 1)])
        own = [tf.constant(one) for one in gradients_of(communicator.rank, step)]
        result = traced(own, loss, flags, settings_of(step))
        assert result.local_loss == communicator.rank
        assert float(result.loss) == pytest.approx((num_ranks - 1) / 2)
        assert result.flags.numpy() == pytest.approx([0, 1 / num_ranks])

        vectors = []
        for rank in range(num_ranks):
            flat = [one.ravel() for one in gradients_of(rank, step)]
            flat = flat if len(sizes) > 1 else [np.concatenate(flat)]
            pairs = zip(flat, expected_left[rank], strict=True)
            vectors.append([vector + rest for vector, rest in pairs])
        means, left = reference_step(vectors, method, step, slices_left)
        found = np.concatenate([one.numpy().ravel() for one in result.gradients])
        np.testing.assert_allclose(found, np.concatenate(means), rtol=1e-6, atol=2e-6)
        assert [one.shape for one in result.gradients] == list(SHAPES.values())
        assert result.account.message_bytes == sum(
            sent(vector, method, Stream(SEED, number, step, communicator.rank))[1]
            for number, vector in enumerate(vectors[communicator.rank])
        )
        bits = communicator.allgather(found.tobytes())
        assert bits == bits[:1] * num_ranks
        if method.error_feedback:
            expected_left = left
            for name, rest in zip(names, left[communicator.rank], strict=True):
                residual = exchange.rank_variables[f"residual/{name}"]
                np.testing.assert_array_equal(residual.numpy(), rest)
        else:
            assert not exchange.rank_variables


@pytest.mark.parametrize("method", MESSAGES, ids=lambda one: one.method)
def test_the_means_do_not_depend_on_the_buckets(communicator, monkeypatch, method):
    method = dataclasses.replace(method, compress="layerwise", exchange="allgather")

    def exchanged(bucket_values: int) -> list[bytes]:
        monkeypatch.setattr(transports, "BUCKET_VALUES", bucket_values)
        exchange = CompressedExchange(communicator, SHAPES, method, SEED)
        own = [tf.constant(one) for one in gradients_of(communicator.rank, 0)]
        traced = tf.function(exchange, autograph=False)
        result = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(0))
        return [one.numpy().tobytes() for one in result.gradients]

    assert len(transports.buckets([288, 8, 2000])) == 1
    in_one = exchanged(transports.BUCKET_VALUES)
    assert exchanged(SEVERAL_BUCKETS) == in_one
    assert transports.buckets([288, 8, 2000]) == [[2], [1, 0]]


@on_2_and_3_ranks
@pytest.mark.parametrize("exchange", ["allgather", "sliced"])
@pytest.mark.parametrize(
    ("name", "bucket_values"),
    [
        *(
            (name, transports.BUCKET_VALUES)
            for name in ("topk", "qsgd", "bf16", "powersgd", "randomk")
        ),
        *((name, SEVERAL_BUCKETS) for name in ("topk", "qsgd")),
    ],
)
def test_nothing_is_lost_but_what_is_left_over(
    communicator, monkeypatch, name, bucket_values, exchange, num_ranks
):
    """Sums of all steps: what arrived and what is left over are all gradients."""
    assert communicator.num_ranks == num_ranks
    monkeypatch.setattr(transports, "BUCKET_VALUES", bucket_values)
    method = CompressionSettings(
        compress="layerwise",
        method=name,
        ratio=0.1,
        qstates=7,
        qsgd_norm="max",
        powersgd_rank=2,
        exchange=exchange,
        error_feedback=True,
    )
    one = CompressedExchange(communicator, SHAPES, method, SEED)
    traced = tf.function(one, autograph=False)
    total = np.zeros(sum(int(np.prod(shape)) for shape in SHAPES.values()))
    for step in range(10):
        own = [tf.constant(one) for one in gradients_of(communicator.rank, step)]
        arrived = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(step))
        total += np.concatenate([each.numpy().ravel() for each in arrived.gradients])
        for rank in range(num_ranks):
            flat = [each.ravel() for each in gradients_of(rank, step)]
            total -= np.concatenate(flat).astype(np.float64) / num_ranks
    own = {key: value.numpy() for key, value in one.rank_variables.items()}
    left = left_to_send(communicator.allgather(own))
    np.testing.assert_allclose(total + np.concatenate(left), 0, atol=2e-5)


def left_to_send(of_ranks: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Returns the mean over ranks of what is left of each vector, slices included."""
    left = [
        np.mean([own[f"residual/{name}"] for own in of_ranks], axis=0)
        for name in SHAPES
    ]
    if "slice_residual/0" in of_ranks[0]:
        for number, bucket in enumerate(transports.buckets([len(one) for one in left])):
            parts = [own[f"slice_residual/{number}"] for own in of_ranks]
            ends = np.cumsum([len(left[vector]) for vector in bucket])
            lacked = np.split(np.concatenate(parts), ends[:-1])
            for vector, values in zip(bucket, lacked, strict=True):
                left[vector] = left[vector] + values
    return left


@on_2_and_3_ranks
def test_powersgd_is_an_iteration_of_the_power_method(communicator, num_ranks):
    method = CompressionSettings(
        compress="layerwise", method="powersgd", powersgd_rank=3, error_feedback=True
    )
    exchange = CompressedExchange(communicator, SHAPES, method, SEED)
    traced = tf.function(exchange, autograph=False)
    matrices = {"first/kernel": (36, 8), "last/kernel": (50, 40)}
    right = {
        name: exchange.rank_variables[f"powersgd/{name}"].numpy() for name in matrices
    }
    left = {name: [np.zeros(shape)] * num_ranks for name, shape in matrices.items()}
    for step in range(3):
        own = [tf.constant(one) for one in gradients_of(communicator.rank, step)]
        result = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(step))
        of_ranks = [
            dict(zip(SHAPES, gradients_of(rank, step), strict=True))
            for rank in range(num_ranks)
        ]
        found = dict(zip(SHAPES, result.gradients, strict=True))
        bias = np.mean([one["first/bias"] for one in of_ranks], axis=0)
        np.testing.assert_allclose(found["first/bias"], bias, rtol=1e-6, atol=1e-6)
        for name, shape in matrices.items():
            own = [
                one[name].reshape(shape).astype(np.float64) + rest
                for one, rest in zip(of_ranks, left[name], strict=True)
            ]
            basis, _ = np.linalg.qr(np.mean(own, axis=0) @ right[name])
            expected = basis @ (basis.T @ np.mean(own, axis=0))
            np.testing.assert_allclose(
                found[name].numpy().reshape(shape), expected, atol=1e-4
            )
            left[name] = [one - basis @ (basis.T @ one) for one in own]
            right[name] = exchange.rank_variables[f"powersgd/{name}"].numpy()
            residual = exchange.rank_variables[f"residual/{name}"].numpy()
            expected = left[name][communicator.rank].ravel()
            np.testing.assert_allclose(residual, expected, atol=1e-4)


def test_powersgd_of_too_high_a_rank_is_refused(communicator):
    method = CompressionSettings(
        compress="layerwise", method="powersgd", powersgd_rank=9
    )
    with pytest.raises(AgreedError, match=r"at most 8, the smaller side of .* 36 x 8"):
        CompressedExchange(communicator, SHAPES, method, SEED)


@pytest.mark.parametrize(
    "method",
    [
        *METHODS,
        CompressionSettings(method="powersgd"),
        CompressionSettings(method="topk", ratio=0.01, exchange="sliced"),
    ],
    ids=lambda one: f"{one.method}-{one.exchange}",
)
def test_a_gradient_that_is_not_finite_is_told_to_all_ranks(communicator, method):
    method = dataclasses.replace(method, compress="layerwise", error_feedback=False)
    exchange = CompressedExchange(communicator, SHAPES, method, SEED)
    gradients = gradients_of(communicator.rank, 0)
    if communicator.rank == 1:
        gradients[0][0, 0, 0, 3] = np.nan
    traced = tf.function(exchange, autograph=False)
    own = [tf.constant(gradient) for gradient in gradients]
    result = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(0))
    assert np.isnan(result.loss)
    assert np.isnan(result.local_loss) == (communicator.rank == 1)


@on_2_and_3_ranks
@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        ("topk", "allgather"),
        ("topk", "sliced"),
        ("qsgd", "sliced"),
        ("randomk", "auto"),
    ],
)
def test_short_vectors_are_sent_whole(communicator, num_ranks, method, exchange):
    compression = CompressionSettings(
        compress="layerwise",
        method=method,
        exchange=exchange,
        ratio=0.05,
        error_feedback=method != "qsgd",
        dense_below=100,
    )
    kernels = {name: shape for name, shape in SHAPES.items() if "kernel" in name}
    both = CompressedExchange(communicator, SHAPES, compression, SEED)
    alone = CompressedExchange(communicator, kernels, compression, SEED)
    with_bias = tf.function(both, autograph=False)
    without = tf.function(alone, autograph=False)
    for step in range(3):
        own = gradients_of(communicator.rank, step)
        first, bias, last = (tf.constant(one) for one in own)
        rest = (tf.constant(1.0), tf.zeros([2]), settings_of(step))
        found = with_bias([first, bias, last], *rest)
        expected = without([first, last], *rest)
        for number, one in ((0, 0), (2, 1)):
            np.testing.assert_array_equal(
                found.gradients[number], expected.gradients[one]
            )
        biases = [gradients_of(rank, step)[1] for rank in range(num_ranks)]
        np.testing.assert_allclose(found.gradients[1], np.mean(biases, 0), rtol=1e-5)
        of_biases = 4 * 8 * 2 * (num_ranks - 1) / num_ranks
        sent = found.account.bytes_sent - expected.account.bytes_sent
        assert abs(float(sent) - of_biases) <= 1
        assert float(found.account.message_bytes - expected.account.message_bytes) == 32
    if compression.error_feedback:
        assert not np.any(both.rank_variables["residual/first/bias"])
        np.testing.assert_array_equal(
            both.rank_variables["residual/last/kernel"],
            alone.rank_variables["residual/last/kernel"],
        )
