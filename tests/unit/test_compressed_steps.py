"""The order of compression, accumulation, clipping and the optimizer in a step."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.compression import topk_count
from resnet.distributed.communicator import Communicator
from resnet.exchange.codecs.dgc import Velocities
from resnet.exchange.gradients import GradientExchange, make_exchange
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from resnet.training.train_step import TrainStep, apply_directions
from tests.unit import one_optimizer
from tests.unit.one_step import SETTINGS, batch, gradients_of, in_parts, parts_of

pytestmark = pytest.mark.usefixtures("one_block")

ALONE = Communicator(ProcessInfo())
RATIO = 0.3


def kept(gradient: np.ndarray) -> np.ndarray:
    """Returns what topk keeps of the gradient of a variable."""
    flat = gradient.ravel()
    threshold = np.sort(np.abs(flat))[-topk_count(flat.size, RATIO)]
    return np.where(np.abs(gradient) >= threshold, gradient, 0)


@pytest.mark.parametrize("optimizer", ["momentum", "muon"])
def test_the_mean_of_all_micro_batches_is_compressed_then_clipped_then_applied(
    make_config, optimizer
):
    settings = {"seed": 3, "global_batch_size": 8, "accumulation_steps": 2}
    settings |= {"weight_decay": 0.01, "clip_norm": 0.1, "optimizer": optimizer}
    settings |= {"compress": "layerwise", "method": "topk", "ratio": RATIO}
    config = make_config(**settings)
    state, reference = TrainState(config), TrainState(config)
    parts = parts_of(batch(), 2)
    exchange = make_exchange(config, state.shapes, ALONE)
    of_step = config.settings_at(50)
    in_parts(TrainStep(state, config.phases[0], exchange), parts, of_step, 50)

    of_parts = [gradients_of(reference, part)[1] for part in parts]
    means = [(one + other) / 2 for one, other in zip(*of_parts, strict=True)]
    sent = [tf.constant(kept(mean)) for mean in means]
    assert any((one.numpy() == 0).any() for one in sent)
    clipped, norm = tf.clip_by_global_norm(sent, config.clip_norm)
    assert norm > config.clip_norm
    reference.optimizer.apply(clipped, of_step)
    for name, found, expected in zip(
        state.names,
        state.trainable_variables,
        reference.trainable_variables,
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


def test_each_phase_has_the_residuals_of_the_phase_before(make_config):
    config = make_config(
        global_batch_size=8, compress="layerwise", method="topk", error_feedback=True
    )
    state = TrainState(config)
    exchange = make_exchange(config, state.shapes, ALONE)
    for phase in (config.phases[0], dataclasses.replace(config.phases[0], name="b")):
        before = {name: one.numpy() for name, one in exchange.rank_variables.items()}
        step = TrainStep(state, phase, exchange)
        in_parts(step, [batch()], config.settings_at(0))
        name = "residual/classifier/kernel"
        assert np.abs(exchange.rank_variables[name] - before[name]).max() > 0
    assert np.abs(before[name]).max() > 0


def test_dgc_sends_more_values_in_the_first_epochs(make_config):
    sizes = {"num_train_examples": 84, "global_batch_size": 8}  # 10.5 steps an epoch.
    config = make_config(
        compress="layerwise", method="dgc", ratio=0.001, dgc_warmup_epochs=4
    )
    memory = Velocities(dataclasses.replace(config, **sizes), {}, 1)
    steps = (0, 10, 11, 21, 32, 42, 100)
    ratios = [float(memory.ratio_at(tf.constant(step, tf.int64))) for step in steps]
    expected = [0.2512, 0.2512, 0.0631, 0.01585, 0.00398, 0.001, 0.001]
    assert ratios == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_weight_decay_of_dgc_has_a_velocity_of_its_own(nesterov):
    variables = [tf.Variable([1.0, -2.0]), tf.Variable([4.0])]
    optimizer = one_optimizer.make("momentum", variables, [True, False], nesterov)
    weights, velocity = np.array([1.0, -2.0]), np.zeros(2)
    for _ in range(3):
        directions = [tf.constant([0.5, 1.0]), tf.constant([2.0])]
        apply_directions(optimizer, directions, SETTINGS)
        decay = 0.01 * weights
        velocity = 0.9 * velocity + decay
        weights = weights - 0.1 * (
            np.array([0.5, 1.0]) + (decay + 0.9 * velocity if nesterov else velocity)
        )
    np.testing.assert_allclose(variables[0].numpy(), weights, rtol=1e-6)
    np.testing.assert_allclose(variables[1].numpy(), [4 - 3 * 0.1 * 2], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_shows_where_it_is_computed_last(bad):
    exchange = GradientExchange(ALONE.collectives, ["frozen", "trained"])
    gradients = [tf.zeros([2]), tf.constant([1.0, bad])]
    for last, is_seen in ((0, False), (1, True)):
        found = exchange(gradients, tf.constant(1.0), tf.zeros([2]), SETTINGS, last)
        assert np.isnan(found.local_loss) == is_seen
        assert np.isnan(found.loss) == is_seen


def test_the_gradient_of_the_first_variable_that_is_trained_is_the_last_one(
    make_config,
):
    class Recording(GradientExchange):
        def __call__(self, *arguments, last=0):
            self.last = state.names[last]
            return super().__call__(*arguments, last=last)

    for rates, first in (("", "stem"), ("stem:0", "stage")):
        config = make_config(seed=3, global_batch_size=8, layer_rates=rates)
        state = TrainState(config)
        exchange = Recording(ALONE.collectives, state.names)
        step = TrainStep(state, config.phases[0], exchange)
        step(batch(), config.settings_at(0))
        assert exchange.last.startswith(first), exchange.last
