import numpy as np
import pytest

from resnet.config.config import Config
from resnet.optim.train_state import TrainState
from tests.unit.changed_settings import changed
from tests.unit.one_step import (
    SETTINGS,
    batch,
    config_of,
    in_parts,
    parts_of,
    step_of,
    values_of,
)

pytestmark = pytest.mark.usefixtures("one_block")


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return config_of(make_config)


def assert_same_sums(
    ours: list[np.ndarray], expected: list[np.ndarray], names: list[str]
) -> None:
    """Checks float32 sums in another order, through all layers.

    They differ by some roundings of the largest: by up to 7e-6 of it where this was
    tried.
    """
    for name, value, other in zip(names, ours, expected, strict=True):
        atol = 1e-4 * abs(other).max()
        np.testing.assert_allclose(value, other, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("num_parts", [2, 4])
def test_accumulated_parts_are_the_whole_batch(config, num_parts):
    whole, accumulated = (
        TrainState(changed(config, accumulation_steps=number))
        for number in (1, num_parts)
    )
    before = values_of(whole.trainable_variables)
    step, step_of_parts = (
        step_of(one, freeze_batch_norm=True) for one in (whole, accumulated)
    )
    # While the weights stay, a rounding can't make a unit fall silent. The second step
    # must see nothing of the first one's parts.
    for number, rate in enumerate((0.0, 0.0, 0.1)):
        one = batch(seed=number)
        settings = SETTINGS._replace(learning_rate=rate)
        expected = step(one, settings, save_requested=True)
        outcome = in_parts(step_of_parts, parts_of(one, num_parts), settings)
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-5)
        assert outcome.local_loss == outcome.loss
        assert (expected.stop_requested, expected.save_requested) == (False, True)
        assert (outcome.stop_requested, outcome.save_requested) == (False, False)
        assert_same_sums(
            values_of(accumulated.optimizer.velocities.values()),
            values_of(whole.optimizer.velocities.values()),
            whole.names,
        )
    for name, ours, other, old in zip(
        whole.names,
        values_of(accumulated.trainable_variables),
        values_of(whole.trainable_variables),
        before,
        strict=True,
    ):
        # As above, and the rounding of the weights themselves.
        atol = 1e-4 * abs(other - old).max() + 2e-7 * abs(old).max()
        np.testing.assert_allclose(ours, other, rtol=0, atol=atol, err_msg=name)


def test_the_comparison_would_see_a_part_that_counts_twice(config):
    whole, parted = (
        TrainState(changed(config, accumulation_steps=number)) for number in (1, 4)
    )
    step_of(whole, freeze_batch_norm=True)(batch(), SETTINGS)
    first, _, third, fourth = parts_of(batch(), 4)
    wrong = [first, first, third, fourth]
    in_parts(step_of(parted, freeze_batch_norm=True), wrong, SETTINGS)
    with pytest.raises(AssertionError):
        assert_same_sums(
            values_of(parted.optimizer.velocities.values()),
            values_of(whole.optimizer.velocities.values()),
            whole.names,
        )
