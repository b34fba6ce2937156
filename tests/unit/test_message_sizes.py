"""The bytes of messages that are computed beforehand, against coded messages."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.compression import METHODS, CompressionSettings
from resnet.exchange.codecs import message_sizes, messages
from resnet.exchange.codecs.random_bits import Stream

QSGD = CompressionSettings(method="qsgd")


def coded(compression: CompressionSettings, size: int) -> tf.Tensor:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    stream = tf.constant(Stream(1, 2, 3, 0), tf.int64)
    return messages.encode(tf.constant(values), compression, stream)[0]


@pytest.mark.parametrize(
    "compression",
    [
        CompressionSettings(method="terngrad"),
        QSGD,
        CompressionSettings(method="qsgd", qstates=7, qsgd_bucket=64, qsgd_norm="max"),
        CompressionSettings(method="qsgd", qstates=2**23, qsgd_bucket=2),
        CompressionSettings(method="qsgd", qstates=1, qsgd_bucket=1),
    ],
    ids=str,
)
def test_quantized_messages_have_the_bytes_of_the_formula(compression):
    for size in (1, 2, 4, 5, 6, 64, 65, 1000, 70_001):
        message = coded(compression, size)
        assert len(message) == message_sizes.of_vector(compression, size)
        assert len(message) <= message_sizes.dense(size)
        is_dense = message_sizes.is_always_dense(compression, size)
        assert is_dense == bool(messages.is_dense(message))


@pytest.mark.parametrize("kept_values", ["float32", "bfloat16"])
def test_sparse_messages_have_about_the_bytes_of_the_formula(kept_values):
    for ratio, size in itertools.product(
        (1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0), (1, 10, 100, 100_000)
    ):
        compression = CompressionSettings(ratio=ratio, kept_values=kept_values)
        expected = message_sizes.of_vector(compression, size)
        assert not message_sizes.is_always_dense(compression, size)
        # The positions decide one or two bits a value: by chance, with few of them.
        found = len(coded(compression, size))
        assert found == pytest.approx(expected, rel=0.01, abs=3)
        assert found <= message_sizes.dense(size)


def test_random_coordinates_travel_alone():
    compression = CompressionSettings(method="randomk", ratio=0.01)
    assert message_sizes.of_vector(compression, 25_557_032) == 4 * 255_571
    assert message_sizes.of_vector(compression, 1) == 4


def test_a_step_has_the_messages_of_all_vectors_unless_the_gradients_decide():
    assert message_sizes.of_step(QSGD, [1000, 10]) == (20 + 1125) + (20 + 12)
    unknown = [
        method
        for method in METHODS
        if message_sizes.of_step(CompressionSettings(method=method), [5]) is None
    ]
    assert unknown == ["thresholdv", "adaptivethreshold"]


def test_a_dense_message_holds_the_values_themselves():
    values = tf.constant([1.5, -2.0, 3.25])
    compression = CompressionSettings(method="qsgd", qstates=3, qsgd_bucket=1)
    stream = tf.constant(Stream(1, 2, 3, 0), tf.int64)
    message, left = messages.encode(values, compression, stream)
    assert bool(messages.is_dense(message))
    assert left.numpy().tolist() == [0, 0, 0]
    (mean,) = messages.decode_mean(message, [3], 1)
    assert mean.numpy().tolist() == [1.5, -2.0, 3.25]
