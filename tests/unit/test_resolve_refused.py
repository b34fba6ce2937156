"""What the resolution of a recipe and flags refuses."""

import dataclasses

import pytest

from resnet.base.errors import UserError
from resnet.config.recipe import RecipePhase
from resnet.config.schedules import Schedule
from tests.unit.resolved_phases import COLLAPSE, TWO_PHASES, fit, schedule_of

TRIAL = (
    "To run only the first steps of the recipe, unchanged, give --stop_after_steps"
    " instead of --train_steps."
)


@pytest.mark.parametrize("train_steps", [1, 4])
def test_fewer_steps_than_phases_are_refused(train_steps):
    with pytest.raises(UserError) as caught:
        fit(COLLAPSE, train_steps=train_steps)
    assert str(caught.value) == (
        "--train_steps must be at least 5, one for each phase of collapse_72ep_4k; got"
        f" {train_steps}. {TRIAL}"
    )


def test_a_warm_up_as_long_as_the_training_is_refused():
    with pytest.raises(UserError) as caught:
        fit(train_steps=260)
    assert str(caught.value) == (
        "the warmup must end before the training; got warmup_steps=260, 260 steps in"
        " all of phase 'train'. Shorten it (--warmup_steps, or a recipe file if each"
        f" phase has a schedule of its own), or train longer. {TRIAL}"
    )
    assert schedule_of(train_steps=261).warmup_length == 260


def test_a_warm_up_must_end_within_its_phase():
    part = RecipePhase(
        epochs=2, schedule=Schedule(peak_value=1.0, warmup_length=2.0), name="slow"
    )
    recipe = dataclasses.replace(TWO_PHASES, phases=(*TWO_PHASES.phases, part))
    with pytest.raises(UserError, match=r"=20, 20 steps in all of phase 'slow'\."):
        fit(recipe)


def test_a_decay_must_end_behind_its_beginning():
    part = RecipePhase(
        epochs=4,
        schedule=Schedule(peak_value=1.0, warmup_length=2.0, decay_end=2.0),
        name="short",
    )
    recipe = dataclasses.replace(TWO_PHASES, phases=(part,))
    with pytest.raises(UserError) as caught:
        fit(recipe)
    assert str(caught.value) == (
        "a decay must end after its beginning and after the warmup; got the end 20 and"
        " 20 in steps of phase 'short'. Change it in a recipe file, or train longer."
    )


def test_a_decay_that_begins_early_must_end_after_the_warmup_too():
    schedule = Schedule(
        peak_value=1.0, warmup_length=2.0, decay_start=0.0, decay_end=1.0
    )
    part = RecipePhase(epochs=4, schedule=schedule, name="short")
    recipe = dataclasses.replace(TWO_PHASES, phases=(part,))
    with pytest.raises(UserError, match="got the end 10 and 20 in steps of phase"):
        fit(recipe)


def test_a_given_warm_up_does_not_fall():
    given = {"batch": 64, "base_learning_rate": 0.2, "peak_learning_rate": 0.1}
    with pytest.raises(UserError) as caught:
        fit(**given)
    assert str(caught.value) == (
        "the learning rate can't fall in a warmup: --base_learning_rate must be at most"
        " the peak; got 0.2 and 0.1. Lower it, or raise --peak_learning_rate."
    )
    assert schedule_of(**given, warmup_steps=0).peak_value == 0.1
