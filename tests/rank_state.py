"""The state of a tiny network, to which each rank adds a variable of its own."""

from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from resnet import models
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.models import layers
from resnet.models.options import NormOptions
from resnet.optim.train_state import TrainState

NAME = "residual/stem/kernel"
_NUM_VALUES = 100_000


def make(model_dir: Path, **changes: float) -> TrainState:
    """Returns the state of a new run, with changed settings."""
    inputs = keras.Input((32, 32, 3))
    x = layers.ConvNorm(2, 1, 8, 0, "one", NormOptions(momentum=0.9))(inputs)
    network = keras.Model(inputs, layers.Classifier(3, 0, "classifier")(x))
    settings = {
        "model_dir": str(model_dir),
        "keep_checkpoints": 100,
        "checkpoint_every": "1000steps",
        "train_steps": 100,
        "warmup_steps": 0,
        **changes,
    }
    with mock.patch.object(models, "build", return_value=network):
        state = TrainState(resolve(digits.DIGITS, settings, 500, ("a", "b", "c")))
    state.rank_variables[NAME] = tf.Variable(np.zeros(_NUM_VALUES, np.float32))
    return state


def own_values(rank: int, step: int) -> np.ndarray:
    """Returns the values of a rank's own variable after a step."""
    values = np.random.default_rng([rank, step]).normal(size=_NUM_VALUES)
    return values.astype(np.float32)


def _values(number: int, shape: tuple[int, ...], step: int) -> np.ndarray:
    """Returns the values after a step of a variable that all ranks have in common."""
    values = np.random.default_rng([number, step]).normal(size=shape)
    return values.astype(np.float32)


def set_to(state: TrainState, step: int, rank: int) -> None:
    """Gives all variables the values that they have on a rank after a step."""
    state.step = step
    for number, variable in enumerate(state.tensors().values()):
        variable.assign(_values(number, variable.shape, step))
    for number, variable in enumerate(state.batch_norm_averages):
        variable.assign(np.full(variable.shape, rank + number, np.float32))
    state.rank_variables[NAME].assign(own_values(rank, step))


def assert_is_of(state: TrainState, step: int, rank: int) -> None:
    """Checks that a state is bit for bit what it is on a rank after a step."""
    assert_common_is_of(state, step)
    assert_averages_are(state, rank)
    np.testing.assert_array_equal(state.rank_variables[NAME], own_values(rank, step))


def assert_common_is_of(state: TrainState, step: int) -> None:
    """Checks the step, and all that is the same on all ranks, bit for bit."""
    assert state.step == step
    for number, (name, variable) in enumerate(state.tensors().items()):
        if "moving" not in name:  # BatchNorm's averages.
            expected = _values(number, variable.shape, step)
            np.testing.assert_array_equal(variable, expected, err_msg=name)


def assert_averages_are(state: TrainState, rank: float) -> None:
    """Checks that BatchNorm's averages are a rank's, or the mean of some ranks'."""
    assert state.batch_norm_averages
    for number, variable in enumerate(state.batch_norm_averages):
        expected = np.full(variable.shape, rank + number, np.float32)
        np.testing.assert_array_equal(variable, expected)
