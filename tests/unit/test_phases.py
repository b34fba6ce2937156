import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.config import phases
from resnet.config.phases import Phase
from resnet.config.schedules import Schedule


def falling(peak: float, decay_end: int) -> Schedule:
    """From the peak to zero in a straight line."""
    return Schedule(init_value=0.0, peak_value=peak, decay_end=decay_end)


# Steps 0 to 2, 3 and 4 to 7; the second continues along the rates of the first.
FIRST = Phase(name="first", num_steps=3, schedule=falling(8.0, 4), reset_momentum=True)
SECOND = Phase(name="second", num_steps=1, schedule=None)
THIRD = Phase(
    name="third",
    num_steps=4,
    schedule=falling(1.0, 4),
    reset_momentum=True,
    momentum=0.5,
)
THREE = (FIRST, SECOND, THIRD)


def test_each_phase_begins_where_the_one_before_ends():
    assert phases.num_steps(THREE) == 8
    assert phases.first_steps(THREE) == [0, 3, 4]
    names = {"": 0, "first": 0, "third": 4}
    assert {name: phases.first_step(THREE, name) for name in names} == names
    # A step is of one phase, and past the end of the last.
    indices = [phases.index_of(THREE, step) for step in range(10)]
    assert indices == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    assert phases.at(THREE, 3) is SECOND


def test_velocities_are_forgotten_before_a_fresh_phase_only():
    resets = [step for step in range(10) if phases.resets_momentum_at(THREE, step)]
    assert resets == [0, 4]


def test_batch_norm_is_frozen_by_a_phase_that_follows_one_in_which_it_is_not():
    frozen = [dataclasses.replace(one, freeze_batch_norm=True) for one in THREE]

    def found(*parts: Phase) -> list[int]:
        return [step for step in range(10) if phases.freezes_batch_norm_at(parts, step)]

    assert found(*THREE) == []
    assert found(FIRST, frozen[1], frozen[2]) == [3]
    assert found(FIRST, SECOND, frozen[2]) == [4]
    assert found(*frozen) == []


def test_rates_are_counted_from_the_first_step_of_their_phase():
    found = [phases.learning_rate(THREE, step) for step in range(9)]
    # 8 * (4 - step) / 4 over the first two phases; then (8 - step) / 4.
    assert found == [8.0, 6.0, 4.0, 2.0, 1.0, 0.75, 0.5, 0.25, 0.0]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_the_phases_split_the_steps_without_gaps(lengths, data):
    parts = [
        Phase(name=str(i), num_steps=n, schedule=falling(1.0, n))
        for i, n in enumerate(lengths)
    ]
    step = data.draw(st.integers(0, sum(lengths) - 1))
    index = phases.index_of(parts, step)
    assert sum(lengths[:index]) <= step < sum(lengths[: index + 1])
    ends = [n for n in range(1, sum(lengths) + 1) if phases.ended_by(parts, n)]
    assert ends == [sum(lengths[:end]) for end in range(1, len(lengths) + 1)]


WEIGHT_DECAY, START = 0.01, np.arange(5.0)


def weights_with_rate_in_velocity(
    parts: tuple[Phase, ...], gradients: np.ndarray, is_corrected: bool
) -> list[np.ndarray]:
    """Those of momentum whose velocity has the learning rate in it.

    velocity = momentum * velocity + rate * (gradient + decay * weights)
    weights = weights - velocity

    It is Caffe's SGDSolver, in one run after the other for each phase that resets the
    velocity. Goyal et al. correct the momentum by the ratio of two successive rates.
    """
    weights, found, before = START, [], 1.0
    for step, gradient in enumerate(gradients):
        phase, rate = phases.at(parts, step), phases.learning_rate(parts, step)
        if step == 0 or (phase.reset_momentum and step in phases.first_steps(parts)):
            velocity = np.zeros_like(START)
        momentum = phase.momentum * (rate / before if is_corrected else 1)
        velocity = momentum * velocity + rate * (gradient + WEIGHT_DECAY * weights)
        weights, before = weights - velocity, rate
        found.append(weights)
    return found


def our_weights(
    parts: tuple[Phase, ...], gradients: np.ndarray, learning_rate_in_velocity: bool
) -> list[np.ndarray]:
    """Those of the rule "momentum", whose velocity has no learning rate in it."""
    weights, found = START, []
    velocity = np.zeros_like(START)
    for step, gradient in enumerate(gradients):
        if phases.resets_momentum_at(parts, step):
            velocity = np.zeros_like(START)
        momentum = phases.velocity_factor(parts, step, learning_rate_in_velocity)
        velocity = momentum * velocity + gradient + WEIGHT_DECAY * weights
        weights = weights - phases.learning_rate(parts, step) * velocity
        found.append(weights)
    return found


# Rates of 0, 0.2 and 0.4 and then, where Caffe's is counted from the start, a drop.
WARMING = Schedule(
    peak_value=0.6, warmup_length=3, decay_start=0, decay_end=8, power=2.0
)
TENTHS = Schedule(peak_value=0.3, decay="steps", boundaries=(2, 3))
CHANGING = Schedule(
    init_value=0.1, peak_value=0.4, warmup_length=3, decay="steps", boundaries=(6, 9)
)
CAFFE_RUNS = (
    Phase(name="warming", num_steps=6, schedule=WARMING, reset_momentum=True),
    Phase(name="on", num_steps=1, schedule=None, momentum=0.7),
    Phase(
        name="tenths", num_steps=5, schedule=TENTHS, reset_momentum=True, momentum=0.8
    ),
)


@pytest.mark.parametrize(
    ("parts", "in_velocity"),
    [(CAFFE_RUNS, True), ((Phase(num_steps=12, schedule=CHANGING),), False)],
)
def test_momentum_is_that_of_caffe_or_corrected_as_by_goyal(parts, in_velocity):
    gradients = np.random.default_rng(0).normal(size=(12, 5))
    ours = our_weights(parts, gradients, in_velocity)
    expected = weights_with_rate_in_velocity(parts, gradients, not in_velocity)
    # The same sums in another order, of float64.
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)
    others = our_weights(parts, gradients, not in_velocity)
    assert np.abs(others[-1] - expected[-1]).max() > 0.01
