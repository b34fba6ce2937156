"""Phases whose images grow."""

import pytest

from resnet.config.recipe import RecipePhase
from resnet.config.recipes import imagenet_few_epochs
from resnet.config.recipes.imagenet_few_epochs import ramp
from resnet.config.schedules import Schedule

SCHEDULE = Schedule(peak_value=1.0, decay="cosine")


def phase(epochs: float) -> RecipePhase:
    return RecipePhase(epochs=epochs, schedule=SCHEDULE, reset_momentum=True, mixup=0.2)


def sizes(phases) -> list[tuple[float, int]]:
    return [(one.epochs, one.image_size) for one in phases]


@pytest.mark.parametrize(
    ("epochs", "begin", "end", "expected"),
    [
        # What FFCV's get_resolution returns for its files of 16 and 32 epochs: 176 / 32
        # is rounded to 6.
        (16, 11, 13, [(12, 160), (4, 192)]),
        (32, 22, 26, [(24, 160), (8, 192)]),
        (3, 0, 1, [(1, 160), (2, 192)]),
    ],
)
def test_the_sizes_are_those_of_ffcv(epochs, begin, end, expected):
    assert sizes(ramp(phase(epochs), 160, 192, begin, end)) == expected


def test_smaller_increments_give_more_phases():
    found = ramp(phase(6.5), 96, 128, begin=1, end=5, increment=8)
    expected = [(2, 96), (1, 104), (1, 112), (1, 120), (1.5, 128)]
    assert sizes(found) == expected


def test_only_the_first_phase_begins_a_schedule():
    first, second = ramp(phase(16), 160, 192, 11, 13)
    assert (first.name, second.name) == ("160_px", "192_px")
    assert (first.schedule, second.schedule) == (SCHEDULE, None)
    assert (first.reset_momentum, second.reset_momentum) == (True, False)
    assert (first.mixup, second.mixup) == (0.2, 0.2)


def test_the_recipe_for_few_epochs_is_marked_as_not_run():
    recipe = imagenet_few_epochs.IMAGENET_18EP
    assert "not run yet" in recipe.source
    assert recipe.deviations[0].startswith("it was not run here")
    assert recipe.published == ""
    assert recipe.epochs == 18
    assert sizes(recipe.phases) == [(14, 160), (4, 192)]
