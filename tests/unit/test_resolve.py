"""Recipes in the steps of a run: lengths, rates, and what is refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.errors import UserError
from resnet.config.phases import Phase
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import RECIPES, cifar10, digits, imagenet, imagenette
from resnet.config.schedules import Schedule
from tests.unit.resolved_phases import COLLAPSE, TPU, TWO_PHASES, fit, schedule_of

NUM_IMAGENET = 1_281_167


def lengths(phases: tuple[Phase, ...]) -> list[int]:
    return [phase.num_steps for phase in phases]


def warmups(phases: tuple[Phase, ...]) -> list[float]:
    return [phase.schedule.warmup_length for phase in phases]


def one_phase(rates: Schedule) -> Recipe:
    return dataclasses.replace(
        TWO_PHASES, phases=(RecipePhase(epochs=4, schedule=rates),)
    )


# An epoch of ImageNet has 52.1308 steps of 24,576, and 156.3925 of 8192.
GOYAL, LARS = imagenet.GOYAL_90EP_8K, RECIPES["lars_42ep_8k"]
SCALING = one_phase(Schedule(peak_value=0.1, init_value=0.01, warmup_length=1))
ENDING = one_phase(Schedule(peak_value=0.5, end_value=0.01))


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        # A third of the batch: three times the steps, a third of the rate. The start is
        # 0.1 whatever the batch.
        (TPU, {"batch": 8192}, {"num_steps": 14_040, "decay_end": 14_040}),
        (TPU, {"batch": 8192}, {"init_value": 0.1, "peak_value": 1.6}),
        # 4.8 * 64 / 24,576; a warm-up doesn't fall.
        (TPU, {"batch": 64}, {"init_value": 0.0125, "peak_value": 0.0125}),
        # Twice 6877 steps; 1563.9.
        (LARS, {"batch": 4096}, {"num_steps": 13_754, "warmup_length": 1564}),
        (imagenette.IMAGENETTE_LARS, {"batch": 16}, {"peak_value": 0.05}),  # The root.
        # Epochs 30, 60 and 80 in steps: 9383.5, 18,767.1 and 25,022.8.
        (GOYAL, {"batch": 4096}, {"boundaries": (9384, 18_767, 25_023)}),
        (GOYAL, {"train_epochs": 45.0}, {"num_steps": 7038, "warmup_length": 782}),
        # A longer run of one phase keeps its warm-up.
        (TPU, {"train_epochs": 18.0}, {"decay_end": 938, "warmup_length": 260}),
        (TPU, {"warmup_steps": 10}, {"warmup_length": 10, "decay_start": 10}),
        (TPU, {"warmup_epochs": 2.5}, {"warmup_length": 130}),
        # 100 * 29 / 100 is 29 steps; 29 / 100 is a little less than 0.29 in a float.
        (
            digits.DIGITS,
            {"batch": 100, "num_train_examples": 29, "train_epochs": 100.0},
            {"num_steps": 29},
        ),
        (
            digits.DIGITS,
            {"num_train_examples": 5, "train_epochs": 0.1, "warmup_steps": 0},
            {"num_steps": 1},
        ),
        # A given peak is taken as it is, and a given start moves the peak with it,
        # unless it or the recipe's is 0.
        (TPU, {"batch": 8192, "peak_learning_rate": 2.5}, {"peak_value": 2.5}),
        (TPU, {"peak_learning_rate": 0.05}, {"init_value": 0.05, "peak_value": 0.05}),
        (TPU, {"batch": 8192, "base_learning_rate": 0.2}, {"peak_value": 3.2}),
        (TPU, {"base_learning_rate": 0.0}, {"init_value": 0.0, "peak_value": 4.8}),
        (cifar10.CIFAR10, {"base_learning_rate": 0.2}, {"peak_value": 0.4}),
        (SCALING, {"batch": 8}, {"init_value": 0.02, "peak_value": 0.2}),
        (SCALING, {"batch": 8, "base_learning_rate": 0.03}, {"peak_value": 0.3}),
        # The rate at the end scales with the others, and is no more than the peak.
        (ENDING, {"batch": 8}, {"end_value": 0.02}),
        (ENDING, {"peak_learning_rate": 0.001}, {"end_value": 0.001}),
    ],
)
def test_a_run_of_one_phase_has_these_numbers(recipe, overrides, expected):
    (phase,) = fit(recipe, **overrides)
    values = vars(phase) | vars(phase.schedule)
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-15, abs=0)


def test_phases_scale_with_the_batch():
    phases = fit(COLLAPSE, 8192)
    assert lengths(phases) == [3900, 1875, 2375, 2375, 780]
    assert warmups(phases) == [780, 0, 500, 500, 0]
    assert [part.schedule.decay_end for part in phases] == [9360, *(3 * [3750]), 780]


def test_phases_scale_with_the_data_set():
    # An epoch has 1437 / 64 steps, where it had 1,281,167 / 4096: times 0.0717846.
    # Ends: 559.92, 829.11, 1170.09, 1511.06 and 1623.05.
    phases = fit(COLLAPSE, 64, 1437)
    assert lengths(phases) == [560, 269, 341, 341, 112]
    assert phases[0].schedule.peak_value == 0.025
    assert phases[0].schedule.init_value == 0.025  # And not 0.1.
    assert warmups(phases) == [112, 0, 72, 72, 0]


def test_another_length_stretches_all_phases_with_their_warm_ups():
    phases = fit(COLLAPSE, train_steps=2261)  # A tenth.
    assert lengths(phases) == [780, 375, 475, 475, 156]
    assert warmups(phases) == [156, 0, 100, 100, 0]
    assert [part.schedule.decay_end for part in phases] == [1872, *(3 * [750]), 156]
    # 7 * 312.785 = 2189.49 steps, of 22,610: times 0.0968373. Ends: 755.3, 1118.5,
    # 1578.4, 2038.4.
    assert lengths(fit(COLLAPSE, train_epochs=7.0)) == [755, 363, 460, 460, 151]
    # Ends: 2.07, 3.07, 4.33, 5.59, which leaves the last a step, and 6.
    assert lengths(fit(COLLAPSE, train_steps=6)) == [2, 1, 1, 1, 1]


MULTI_PHASE = [COLLAPSE, imagenet.COLLAPSE_94EP_14K, TWO_PHASES]


@given(
    recipe=st.sampled_from(MULTI_PHASE),
    train_steps=st.integers(5, 10**5),
    batch=st.integers(1, 10**5),
)
def test_stretched_phases_are_together_as_long_as_is_asked(recipe, train_steps, batch):
    steps = lengths(fit(recipe, batch, train_steps=train_steps))
    assert sum(steps) == train_steps
    assert min(steps) >= 1
    total = sum(part.epochs for part in recipe.phases)
    for count in range(1, len(steps)):
        share = sum(part.epochs for part in recipe.phases[:count]) / total
        # Half a step for rounding, and one for each phase that needs one.
        away = abs(sum(steps[:count]) - share * train_steps)
        assert away <= 0.5 + len(steps)
        if train_steps >= 1000:
            assert away <= 0.5 + 1e-6


def test_rates_go_on_over_the_phases_that_have_none():
    first, second = fit(TWO_PHASES)
    assert (first.num_steps, second.num_steps) == (40, 20)
    assert first.schedule == Schedule(
        init_value=0.0, peak_value=1.0, warmup_length=10, decay_start=10, decay_end=60
    )
    assert second.schedule is None


def test_a_given_warm_up_of_several_phases_is_as_long_as_it_says():
    first, _ = fit(TWO_PHASES, warmup_epochs=2.0, train_epochs=12.0)
    assert first.num_steps == 80
    assert first.schedule.warmup_length == 20
    first, _ = fit(TWO_PHASES, train_epochs=12.0)
    assert first.schedule.warmup_length == 20  # Its own, stretched.


@pytest.mark.parametrize(
    ("num_images", "given", "kept"),
    [
        # 1.875 steps are 2, of the longest phases: those of 9 and 6 epochs.
        (120, {"train_epochs": 1.0}, ["128_px", "160_px"]),
        (120, {"train_epochs": 0.1}, ["128_px"]),
        (120, {"train_steps": 1}, ["128_px"]),
        (120, {"train_epochs": 1.6}, ["96_px", "128_px", "160_px"]),
    ],
)
def test_a_run_with_fewer_steps_than_phases_is_as_long_as_it_says(
    num_images, given, kept
):
    phases = fit(imagenette.IMAGENETTE_BEST, 64, num_images, **given)
    assert [phase.name for phase in phases] == kept
    assert lengths(phases) == [1] * len(kept)
    # The schedule of the recipe's first phase, which the others follow.
    schedules = [phase.schedule for phase in phases]
    assert schedules[0].decay_end == len(kept)
    assert set(schedules[1:]) <= {None}


def part_of(name: str, epochs: float, **schedule) -> RecipePhase:
    rates = Schedule(peak_value=1.0, **schedule)
    return RecipePhase(epochs=epochs, schedule=rates, name=name)


def test_a_warm_up_must_end_before_the_training_and_within_its_phase():
    words = r"warmup_steps=260, 260 steps in all of phase 'train'.*--stop_after_steps"
    with pytest.raises(UserError, match=words):
        fit(train_steps=260)
    assert schedule_of(train_steps=261).warmup_length == 260
    slow = part_of("slow", 2, warmup_length=2.0)
    recipe = dataclasses.replace(TWO_PHASES, phases=(*TWO_PHASES.phases, slow))
    with pytest.raises(UserError, match=r"=20, 20 steps in all of phase 'slow'\."):
        fit(recipe)


@pytest.mark.parametrize(
    ("schedule", "end"),
    [({"decay_end": 2.0}, 20), ({"decay_start": 0.0, "decay_end": 1.0}, 10)],
)
def test_a_decay_must_end_after_its_beginning_and_the_warmup(schedule, end):
    short = part_of("short", 4, warmup_length=2.0, **schedule)
    recipe = dataclasses.replace(TWO_PHASES, phases=(short,))
    with pytest.raises(UserError, match=rf"the end {end} and 20 in steps of .*short"):
        fit(recipe)


def test_a_given_warm_up_does_not_fall():
    given = {"batch": 64, "base_learning_rate": 0.2, "peak_learning_rate": 0.1}
    with pytest.raises(UserError, match=r"--base_learning_rate .* got 0.2 and 0.1"):
        fit(**given)
    assert schedule_of(**given, warmup_steps=0).peak_value == 0.1
