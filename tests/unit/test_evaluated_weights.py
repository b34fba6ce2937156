import numpy as np
import pytest
import tensorflow as tf

from resnet.evaluation import evaluations
from resnet.optim.train_state import TrainState


class PreciseBN:
    """Sets all statistics to a number that counts its calls."""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.asked: list[tuple[int, int]] = []
        self.kernels: list[float] = []

    def apply(self, step: int, num_ranks: int) -> None:
        self.asked.append((step, num_ranks))
        self.kernels.append(float(kernel(self.state)[0]))
        for variable in self.state.model.non_trainable_variables:
            variable.assign(tf.fill(variable.shape, float(len(self.asked))))


def kernel(state: TrainState) -> np.ndarray:
    return state.trainable_variables[0].numpy().ravel()


def statistics(state: TrainState) -> set[float]:
    return set(state.model.non_trainable_variables[0].numpy().tolist())


@pytest.fixture
def state(make_config) -> TrainState:
    """All of the run's own variables 5, all averages 7, after step 30."""
    state = TrainState(make_config(ema_decay=0.9))
    state.step = 30
    for variable in state.model.variables:
        variable.assign(tf.fill(variable.shape, 5.0))
    for average in state.ema:
        average.assign(tf.fill(average.shape, 7.0))
    return state


def test_the_network_has_each_in_turn_and_then_its_own(state):
    seen = {}
    for name in evaluations.weights_in_turn(state, ["raw", "ema"], None, 2):
        seen[name] = kernel(state)[0], statistics(state)
    assert seen == {"raw": (5, {5}), "ema": (7, {7})}
    assert set(kernel(state)) == {5}


def test_each_is_recalibrated_while_the_network_has_it(state):
    precise_bn = PreciseBN(state)
    seen = [
        statistics(state)
        for _ in evaluations.weights_in_turn(state, ["raw", "ema"], precise_bn, 3)
    ]
    assert seen == [{1}, {2}]
    assert precise_bn.asked == [(30, 3)] * 2
    assert precise_bn.kernels == [5, 7]
    assert set(kernel(state)) == {5}


def test_one_alone_can_be_chosen(state):
    assert list(evaluations.weights_in_turn(state, ["ema"], None, 1)) == ["ema"]


def test_a_run_without_an_average_has_only_its_own(state, make_config):
    assert evaluations.weights_of(state) == ["raw", "ema"]
    assert evaluations.weights_of(TrainState(make_config())) == ["raw"]
