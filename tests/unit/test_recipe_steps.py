"""One step of each phase of each recipe, with few small images."""

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from resnet.config import phases
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.optim.train_state import TrainState
from tests import smallest
from tests.unit.narrow_networks import NARROW, having
from tests.unit.one_step import batch, step_of_phase, values_of

pytestmark = pytest.mark.usefixtures("one_block")

# Networks that take long to build, and what stands for them.
SMALLER = {
    "resnet50": smallest.NETWORK,
    "resnet50d": smallest.NETWORK,
    "inception_bn": "inception_bn_28",
}
RESNET_OF_ALL_PARTS = "resnet18"  # The smallest one to have `blur_pool`.


@pytest.fixture(autouse=True, scope="module")
def narrow() -> Iterator[None]:
    with having(NARROW):
        yield


@pytest.fixture(autouse=True)
def without_graphs() -> Iterator[None]:
    """Has steps be computed op by op, since a graph takes longer to be traced."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


# Those of `own` are the phases of imagenette_best or cifar10.
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "own"])
def test_each_phase_of_a_recipe_trains(name):
    recipe = RECIPES[name]
    model = SMALLER.get(recipe.model, recipe.model)
    if recipe.blur_pool != "none":
        model = RESNET_OF_ALL_PARTS
    settings = {"model": model, "sync_mode": "bsp"}
    config = resolve(recipe, settings, recipe.num_train_examples, ("a", "b", "c"))
    state = TrainState(config)
    images = batch(2, size=min(config.image_size, 32))
    for phase in config.phases:
        before = values_of(state.trainable_variables)
        number = phases.first_step(config.phases, phase.name) + phase.num_steps // 2
        step = step_of_phase(state, phase)
        result = step(images, config.settings_at(number))
        assert np.isfinite(result.loss)
        after = values_of(state.trainable_variables)
        assert all(np.isfinite(value).all() for value in after)
        assert any(np.any(old != new) for old, new in zip(before, after, strict=True))
