import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.config import Config
from resnet.optim import lookahead
from resnet.optim.lookahead import Lookahead
from resnet.optim.train_state import TrainState


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    config = make_config(train_steps=7)
    return dataclasses.replace(
        config, lookahead_every=2, lookahead_decay=0.5, lookahead_power=3.0
    )


def test_the_decay_grows_with_the_run(config):
    decays = [lookahead.decay(config, steps) for steps in (2, 4, 7)]
    assert decays == pytest.approx([0.5 * (2 / 7) ** 3, 0.5 * (4 / 7) ** 3, 0.5])


def test_weights_return_to_the_slow_ones_and_end_as_these(config):
    variable = tf.Variable([4.0, -2.0])
    slow = Lookahead([variable], config)
    expected, weights = np.array([4.0, -2.0]), np.array([4.0, -2.0])
    for steps in range(1, 8):
        variable.assign_add([1.0, 0.5])  # A step of an optimizer.
        weights = weights + np.array([1.0, 0.5])
        slow.after_step(steps)
        if steps % 2 == 0:
            part = 0.5 * (steps / 7) ** 3
            expected = part * expected + (1 - part) * weights
            weights = expected
        if steps == 7:
            weights = expected
        np.testing.assert_allclose(variable, weights, rtol=1e-6)
        np.testing.assert_allclose(slow.slow[0], expected, rtol=1e-6)


@pytest.mark.usefixtures("one_block")
def test_the_slow_weights_are_a_part_of_the_state(config):
    state = TrainState(config)
    assert state.lookahead is not None
    names = [f"slow/{one.path}" for one in state.model.variables]
    assert [name for name in state.tensors() if name.startswith("slow/")] == names
    plain = TrainState(dataclasses.replace(config, lookahead_every=0))
    num_averages = len(plain.batch_norm_averages)
    assert len(state.batch_norm_averages) == 2 * num_averages > 0
    state.model.variables[0].assign_add(tf.ones_like(state.model.variables[0]))
    state.restart_averages()
    np.testing.assert_array_equal(state.lookahead.slow[0], state.model.variables[0])
