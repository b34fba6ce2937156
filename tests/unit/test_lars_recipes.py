"""The recipes that train with LARS, against MLPerf's reference."""

import pytest

from resnet.config.config import Config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve

CLASSES = ("a", "b")


def run_of(name: str) -> Config:
    """Returns the run that a recipe is published for."""
    recipe = RECIPES[name]
    return resolve(recipe, {}, recipe.num_train_examples, CLASSES)


@pytest.mark.parametrize(
    ("name", "momentum"),
    [
        ("lars_35ep_1632", 0.9),
        ("lars_35ep_3264", 0.9),
        ("lars_40ep_4k", 0.9),
        ("lars_42ep_8k", 0.9),
        ("lars_45ep_13k", 0.9),
        ("lars_56ep_32k", 0.94),
    ],
)
def test_the_runs_of_lars_are_those_of_mlperf(name, momentum):
    recipe, config = RECIPES[name], run_of(name)
    assert recipe.scaling == "none"
    assert config.optimizer == "lars"
    assert config.trust_coefficient == 0.001
    assert not config.nesterov
    assert config.learning_rate_in_velocity
    assert config.batch_norm_momentum == 0.9
    assert config.eval_crop == "resize_then_crop"  # 256, then the center.
    assert not config.zero_last_gamma
    (phase,) = config.phases
    assert phase.momentum == momentum
    assert phase.label_smoothing == 0.1
    assert phase.schedule.power == 2
    assert phase.schedule.end_value == 1e-4


@pytest.mark.parametrize(
    ("name", "begin", "epochs"),
    [
        ("lars_35ep_1632", "27,476 are counted from the end of the warmup", "37.0"),
        ("lars_35ep_3264", "14,523 are counted from the start of the run", "37.0"),
        ("lars_40ep_4k", "13,137 are counted from the start of the run", "42.0"),
        ("lars_42ep_8k", "6,095 are counted from the end of the warmup", "44.0"),
        ("lars_45ep_13k", "4,710 are counted from the start of the run", "48.0"),
        ("lars_56ep_32k", "2,267 are counted from the start of the run", "58.0"),
    ],
)
def test_each_run_of_lars_says_how_the_decay_was_read_and_why(name, begin, epochs):
    text = RECIPES[name].deviations[0]
    assert f"here its {begin}, so that the run has {epochs} epochs: " in text
    assert RECIPES[name].epochs == pytest.approx(float(epochs), abs=0.05)


def test_the_runs_of_lars_name_what_differs_from_the_reference():
    for name in ("lars_35ep_1632", "lars_56ep_32k"):
        text = " ".join(RECIPES[name].deviations)
        for words in (
            "he_normal",
            "padding 'same'",
            "bilinear",
            "100 times, from 5 %",
            "only subtracts the mean",
            "the printed loss contains the weight penalty",
        ):
            assert words in text
