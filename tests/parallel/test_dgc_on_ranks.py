"""Deep gradient compression on several ranks, against NumPy."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.compression import topk_count
from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.exchange.codecs.dgc import ratio_at
from resnet.exchange.compressed import make_exchange
from resnet.optim.momentum import Momentum
from resnet.training.train_step import apply_directions

on_2_and_3_ranks = pytest.mark.parametrize(
    "num_ranks", [2, pytest.param(3, marks=pytest.mark.ranks(3))]
)
SHAPES = {"first/kernel": [3, 3, 4, 8], "last/bias": [40]}


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    draw = np.random.default_rng([rank, step])
    return [draw.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def settings_of(step: int, momentum: float = 0.9) -> StepSettings:
    rates = (tf.constant(one) for one in (0.1, momentum, momentum))
    return StepSettings(*rates, 0.01, 0.0, tf.constant(step, tf.int64))


@pytest.fixture
def config() -> Config:
    settings = {
        "compress": "layerwise",
        "method": "dgc",
        "ratio": 0.05,
        "dgc_warmup_epochs": 2,
        "clip_norm": 5.0,
        "global_batch_size": 8,
        "train_steps": 100,
        "warmup_steps": 0,
    }
    return resolve(digits.DIGITS, settings, 24, ("a", "b", "c"))  # 3 steps an epoch.


@on_2_and_3_ranks
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("exchange", ["allgather", "sliced"])
def test_the_largest_accumulated_velocities_are_sent(
    communicator, config, num_ranks, nesterov, exchange
):
    config = dataclasses.replace(config, nesterov=nesterov, exchange=exchange)
    one = make_exchange(config, SHAPES, communicator)
    assert one.has_momentum
    traced = tf.function(one, autograph=False)
    steps_per_epoch = config.num_train_examples / 8
    zeros = [np.zeros(int(np.prod(shape))) for shape in SHAPES.values()]
    velocities = [[np.copy(z) for z in zeros] for _ in range(num_ranks)]
    waiting = [[np.copy(z) for z in zeros] for _ in range(num_ranks)]
    total_sent, total_arrived = np.zeros(328), np.zeros(328)
    for step in range(0, 12, 2):
        if step == 8:
            one.reset_momentum()
            velocities = [[np.copy(z) for z in zeros] for _ in range(num_ranks)]
        own = [tf.constant(each) for each in gradients_of(communicator.rank, step)]
        result = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(step))
        epoch = step // steps_per_epoch
        ratio = 0.05 ** min((epoch + 1) / 3, 1)
        means = [np.zeros_like(z) for z in zeros]
        for rank in range(num_ranks):
            gradients = [each.ravel() for each in gradients_of(rank, step)]
            norm = np.sqrt(sum(np.square(each).sum() for each in gradients))
            factor = min(1, 5 / num_ranks**0.5 / norm)
            for number, gradient in enumerate(gradients):
                velocity = 0.9 * velocities[rank][number] + factor * gradient
                added = factor * gradient + 0.9 * velocity if nesterov else velocity
                values = waiting[rank][number] + added
                count = topk_count(values.size, ratio)
                is_sent = np.abs(values) >= np.sort(np.abs(values))[-count]
                means[number] += np.where(is_sent, values, 0) / num_ranks
                velocities[rank][number] = np.where(is_sent, 0, velocity)
                waiting[rank][number] = np.where(is_sent, 0, values)
        found = np.concatenate([each.numpy().ravel() for each in result.gradients])
        if exchange == "allgather":
            np.testing.assert_allclose(found, np.concatenate(means), atol=1e-5)
        total_sent += np.concatenate(means)
        total_arrived += found
        for number, name in enumerate(SHAPES):
            for prefix, expected in (("velocity", velocities), ("residual", waiting)):
                variable = one.rank_variables[f"{prefix}/{name}"].numpy()
                expected_values = expected[communicator.rank][number]
                np.testing.assert_allclose(variable, expected_values, atol=1e-5)
    if exchange == "sliced":  # What didn't arrive is with the owners of the slices.
        slices = communicator.allgather(one.rank_variables["slice_residual/0"].numpy())
        left = np.concatenate(slices)  # The last variable comes first.
        left = np.concatenate([left[40:], left[:40]])
        np.testing.assert_allclose(total_arrived + left, total_sent, atol=1e-5)


@on_2_and_3_ranks
@pytest.mark.parametrize("nesterov", [False, True])
def test_short_vectors_have_plain_momentum(communicator, config, num_ranks, nesterov):
    config = dataclasses.replace(config, nesterov=nesterov, dense_below=50, clip_norm=0)
    one = make_exchange(config, SHAPES, communicator)
    traced = tf.function(one, autograph=False)
    velocity = np.zeros(40)
    for step in range(4):
        own = [tf.constant(each) for each in gradients_of(communicator.rank, step)]
        result = traced(own, tf.constant(1.0), tf.zeros([2]), settings_of(step))
        biases = [gradients_of(rank, step)[1] for rank in range(num_ranks)]
        velocity = 0.9 * velocity + np.mean(biases, 0)
        expected = np.mean(biases, 0) + 0.9 * velocity if nesterov else velocity
        np.testing.assert_allclose(result.gradients[1], expected, atol=1e-5)
        assert not np.any(one.rank_variables["residual/last/bias"])


def test_more_values_are_sent_in_the_first_epochs():
    found = [
        float(ratio_at(tf.constant(step, tf.int64), 0.001, 10.5, 4))
        for step in (0, 10, 11, 21, 32, 42, 100)
    ]
    expected = [0.2512, 0.2512, 0.0631, 0.01585, 0.00398, 0.001, 0.001]
    assert found == pytest.approx(expected, rel=1e-3)
    assert float(ratio_at(tf.constant(0, tf.int64), 0.01, 10, 0)) == 0.01


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_weight_decay_has_a_velocity_of_its_own(nesterov):
    variables = [tf.Variable([1.0, -2.0]), tf.Variable([4.0])]
    optimizer = Momentum(variables, [True, False], nesterov)
    expected, velocity = np.array([1.0, -2.0]), np.zeros(2)
    for step in range(3):
        directions = [tf.constant([0.5, 1.0]), tf.constant([2.0])]
        apply_directions(optimizer, directions, settings_of(step))
        decay = 0.01 * expected
        velocity = 0.9 * velocity + decay
        expected = expected - 0.1 * (
            np.array([0.5, 1.0]) + (decay + 0.9 * velocity if nesterov else velocity)
        )
    np.testing.assert_allclose(variables[0].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(variables[1].numpy(), [4 - 3 * 0.1 * 2], rtol=1e-6)
