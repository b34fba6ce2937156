"""Compressed gradients of several ranks: their means, what is left, non-finite ones."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.compression import messages, qsgd, random_coordinates, sparse, ternary
from resnet.compression.random_bits import Stream
from resnet.config.compression import CompressionSettings
from resnet.distributed.compressed_exchange import CompressedExchange

IN_3 = pytest.mark.ranks(3)
on_2_and_3_ranks = pytest.mark.parametrize(
    "num_ranks", [2, pytest.param(3, marks=IN_3)]
)
SEED = 11
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
]


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    draw = np.random.default_rng([rank, step])
    return [draw.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def encode(values: np.ndarray, method: CompressionSettings, stream: Stream):
    """Returns what a rank sends of a vector, in NumPy."""
    if method.method == "terngrad":
        return ternary.encode(values, stream)[0]
    if method.method == "qsgd":
        parameters = (method.qstates, method.qsgd_bucket, method.qsgd_norm)
        return qsgd.encode(values, stream, *parameters)[0]
    if method.method == "topk":
        count = sparse.topk_count(values.size, method.ratio)
        threshold = sparse.threshold_of_topk(values, count)
    elif method.method == "thresholdv":
        threshold = np.float32(method.threshold)
    else:
        threshold = sparse.threshold_of_adaptive(values)
    return sparse.encode(values, threshold, method.kept_values == "bfloat16")[0]


def sent(values: np.ndarray, method: CompressionSettings, stream: Stream) -> np.ndarray:
    """Returns the values that the others get of a vector, in NumPy."""
    if method.method == "randomk":
        indices = random_coordinates.draw(
            values.size,
            *(method.ratio, stream.seed, stream.vector),
            tf.constant(stream.step, tf.int64),
        ).numpy()
        kept = np.zeros_like(values)
        kept[indices] = values[indices]
        return kept
    message = encode(values, method, stream)
    return messages.decode_mean_in_numpy(message, [values.size], 1)[0]


@on_2_and_3_ranks
@pytest.mark.parametrize("compress", ["layerwise", "entiremodel"])
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.method)
def test_all_ranks_have_the_mean_of_what_the_ranks_sent(
    communicator, compress, method, num_ranks
):
    assert communicator.num_ranks == num_ranks
    method = dataclasses.replace(method, compress=compress)
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    if compress == "entiremodel":
        sizes = [sum(sizes)]
    names = ["model"] if len(sizes) == 1 else list(SHAPES)
    residuals = {
        name: tf.Variable(tf.zeros([size]))
        for name, size in zip(names, sizes, strict=True)
        if method.error_feedback
    }
    exchange = CompressedExchange(communicator, list(SHAPES), method, SEED, residuals)
    traced = tf.function(exchange, autograph=False)
    expected_left = [[np.zeros(size, np.float32) for size in sizes]] * num_ranks
    for step in range(3):
        loss = tf.constant(float(communicator.rank))
        flags = tf.constant([0.0, float(communicator.rank == 1)])
        own = [tf.constant(one) for one in gradients_of(communicator.rank, step)]
        result = traced(own, loss, flags, tf.constant(step, tf.int64))
        assert result.local_loss == communicator.rank
        assert float(result.loss) == pytest.approx((num_ranks - 1) / 2)
        assert result.flags.numpy() == pytest.approx([0, 1 / num_ranks])

        total, left, num_bytes = [np.zeros(size) for size in sizes], [], []
        for rank in range(num_ranks):
            flat = [one.ravel() for one in gradients_of(rank, step)]
            flat = flat if len(sizes) > 1 else [np.concatenate(flat)]
            rest = []
            num_bytes.append(0)
            for number, vector in enumerate(flat):
                values = vector + expected_left[rank][number]
                received = sent(values, method, Stream(SEED, number, step, rank))
                num_bytes[-1] += (
                    4 * sparse.randomk_count(values.size, method.ratio)
                    if method.method == "randomk"
                    else encode(values, method, Stream(SEED, number, step, rank)).size
                )
                total[number] += received
                rest.append(values - received)
            left.append(rest)
        means = np.concatenate([one / num_ranks for one in total])
        found = np.concatenate([one.numpy().ravel() for one in result.gradients])
        np.testing.assert_allclose(found, means, rtol=1e-6, atol=2e-6)
        assert [one.shape for one in result.gradients] == list(SHAPES.values())
        assert result.account.message_bytes == num_bytes[communicator.rank]
        bits = communicator.allgather(found.tobytes())
        assert bits == bits[:1] * num_ranks
        if method.error_feedback:
            expected_left = left
            for name, rest in zip(names, left[communicator.rank], strict=True):
                np.testing.assert_array_equal(residuals[name].numpy(), rest)


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.method)
def test_a_gradient_that_is_not_finite_is_told_to_all_ranks(communicator, method):
    method = dataclasses.replace(method, compress="layerwise", error_feedback=False)
    exchange = CompressedExchange(communicator, list(SHAPES), method, SEED, {})
    gradients = gradients_of(communicator.rank, 0)
    if communicator.rank == 1:
        gradients[0][0, 0, 0, 3] = np.nan
    traced = tf.function(exchange, autograph=False)
    step, flags = tf.constant(0, tf.int64), tf.zeros([2])
    result = traced([tf.constant(g) for g in gradients], tf.constant(1.0), flags, step)
    assert np.isnan(result.loss)
    assert np.isnan(result.local_loss) == (communicator.rank == 1)
