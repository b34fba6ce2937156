"""Compression in a job of one rank: settings, vectors, buckets, training, resuming."""

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.config.compression import CompressionSettings
from resnet.config.step_settings import StepSettings
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.exchange import gathered
from resnet.exchange.codecs import random_coordinates, vectors
from resnet.exchange.compressed import CompressedExchange
from resnet.hardware.placement import ProcessInfo

ALONE = Communicator(ProcessInfo())


@pytest.mark.parametrize(
    ("method", "most_ranks"),
    [
        ({"method": "fp16"}, 42),  # 51 MB a rank.
        # dgc keeps 0.01^(1/5) = 39.8 % in its first epoch: 10,174,557 values of 4 bytes
        # with gaps of some 11 bits would be longer than 45 MB.
        ({"method": "dgc", "ratio": 0.01, "dgc_warmup_epochs": 4}, 48),
        ({"method": "dgc", "ratio": 0.01, "dgc_warmup_epochs": 0}, 1675),
        ({"method": "thresholdv"}, 21),  # All values may reach the threshold.
    ],
)
def test_more_bytes_than_an_all_gather_can_count_are_refused(method, most_ranks):
    def make(exchange: str, num_ranks: int) -> CompressedExchange:
        """Returns the exchange of ResNet-50's 25,557,032 values as one vector."""
        return CompressedExchange(
            Communicator(ProcessInfo(num_ranks=num_ranks)),
            {"model": [25_557_032]},
            CompressionSettings(compress="entiremodel", exchange=exchange, **method),
            0,
        )

    make("sliced", most_ranks + 1)
    make("allgather", most_ranks)
    with pytest.raises(AgreedError, match="Set --exchange=sliced or --compress"):
        make("allgather", most_ranks + 1)


def test_a_vector_is_that_of_a_variable_or_of_all():
    shapes = {"a": [2, 4], "b": [3]}
    assert vectors.shapes(shapes, "layerwise") == shapes
    assert vectors.shapes(shapes, "entiremodel") == {"model": [11]}


def test_messages_of_some_megabytes_of_gradients_travel_together():
    million = 1 << 20
    assert gathered.buckets([1, 2 * million, 5, million, 7, 8]) == [
        [5, 4, 3],
        [2, 1],
        [0],
    ]
    assert gathered.buckets([4]) == [[0]]


def test_random_coordinates_are_all_different_and_as_many_as_asked_for():
    for size, ratio, expected in (
        (1000, 0.01, 10),
        (7, 0.5, 4),
        (1, 0.1, 1),
        (5, 1, 5),
    ):
        found = set()
        for step in range(20):
            indices = random_coordinates.draw(
                size, ratio, 3, 1, tf.constant(step, tf.int64)
            ).numpy()
            assert len(set(indices)) == len(indices) == expected
            assert indices.min() >= 0
            assert indices.max() < size
            found.add(tuple(indices))
        assert len(found) > 1 or size == 1


def test_random_coordinates_are_unbiased_when_they_are_scaled():
    values = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    total, draws = np.zeros(40), 2000
    for step in range(draws):
        indices = random_coordinates.draw(40, 0.25, 9, 0, tf.constant(step, tf.int64))
        total[indices.numpy()] += 4 * values[indices.numpy()]
    # Kept with probability 1/4, the mean has the standard deviation |v| sqrt(3 / n).
    deviations = np.abs(values) * (3 / draws) ** 0.5
    assert (np.abs(total / draws - values) < 5 * deviations).all()


@pytest.mark.parametrize("method", ["topk", "terngrad", "qsgd"])
def test_without_compiled_ops_the_step_is_the_same(monkeypatch, method):
    settings = CompressionSettings(compress="layerwise", method=method, ratio=0.1)
    gradients = [
        tf.constant(np.random.default_rng(i).standard_normal([9, 20 + i]), tf.float32)
        for i in range(3)
    ]

    def exchanged() -> list[np.ndarray]:
        shapes = {name: [9, 20 + i] for i, name in enumerate("abc")}
        exchange = CompressedExchange(ALONE, shapes, settings, 4)
        traced = tf.function(exchange, autograph=False)
        settings_of_step = StepSettings(
            0.1, 0.9, 0.9, 0.0, 0.0, tf.constant(2, tf.int64)
        )
        result = traced(gradients, tf.constant(1.0), tf.zeros([2]), settings_of_step)
        return [one.numpy() for one in result.gradients]

    expected = exchanged()
    monkeypatch.setattr(native, "ops", lambda: None)
    for found, one in zip(exchanged(), expected, strict=True):
        np.testing.assert_array_equal(found, one)
