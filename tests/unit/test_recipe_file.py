import dataclasses
import functools
import pathlib
from collections.abc import Callable

import pytest

from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.config.recipe import RecipePhase
from resnet.config.recipes import RECIPES, digits, imagenette
from resnet.config.schedules import Schedule
from tests.unit import small_recipe_file
from tests.unit.small_recipe_file import SMALL


@pytest.fixture
def write(tmp_path) -> Callable[[object], pathlib.Path]:
    """A function that writes a file."""
    return functools.partial(small_recipe_file.write, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_is_read_back_as_it_is_written(write, name):
    fields = {**dataclasses.asdict(RECIPES[name]), "name": "mine"}
    recipe = recipe_file.read(write(fields))
    assert recipe == dataclasses.replace(RECIPES[name], name="mine")


def test_a_name_with_json_is_a_file_and_any_other_a_recipe(write):
    path = write({**SMALL, "train_epochs": 3.0005})  # Nearly those of its phases.
    assert recipe_file.get(str(path)).name == "small"
    assert recipe_file.get("digits") is digits.DIGITS
    with pytest.raises(UserError, match=r"got mine\. It can also be a recipe file"):
        recipe_file.get("mine")


def test_a_file_may_change_a_named_recipe(write):
    changes = {"name": "mine", "ema_decay": 0.99}
    found = recipe_file.read(
        write({"based_on": "imagenette", **changes, "phases": SMALL["phases"]})
    )
    expected = {
        **vars(imagenette.IMAGENETTE),
        **changes,
        # Without the label smoothing of the other recipe's phase.
        "phases": (RecipePhase(epochs=3.0, schedule=Schedule(peak_value=0.5)),),
        # What is said of the source is said of its own numbers.
        "source": "imagenette, changed",
        "published": "",
        "deviations": (),
    }
    assert vars(found) == expected


@pytest.fixture
def refusal(write) -> Callable[..., str]:
    """A function that returns what is said of a file, behind the file's name."""

    def refusal(contents: object) -> str:
        path = write(contents)
        with pytest.raises(UserError) as caught:
            recipe_file.read(path)
        begin = f"{path} must hold a recipe; "
        assert str(caught.value).startswith(begin)
        return str(caught.value).removeprefix(begin)

    return refusal


def with_phase(**changes: object) -> dict[str, object]:
    """Returns the contents of a file whose only phase is another."""
    return {**SMALL, "phases": [{**SMALL["phases"][0], **changes}]}  # type: ignore[index]


def with_schedule(**changes: object) -> dict[str, object]:
    return with_phase(schedule={"peak_value": 0.5, **changes})


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({"based_on": "digits"}, 'it needs a "name" of its own'),
        (
            {"based_on": "imagenet", "name": "mine"},
            "--list_recipes lists; got imagenet. Did",
        ),
        ({"based_on": "digits", "name": "mine", "phase": []}, "Did you mean phases?"),
        (
            with_schedule(warmup=1),
            "unknown field 'warmup' of 'schedule' of number 1 of 'phases'; known are",
        ),
        (
            {**SMALL, "train_epochs": 4},
            "add up to the train_epochs that it states, 4; they are 3 epochs",
        ),
        ({**SMALL, "phases": [{"epochs": 3}]}, "its first phase needs a schedule"),
        (
            with_phase(epochs=0),
            "epochs of phase 'train' must be above 0, at most 1e+06",
        ),
        ({**SMALL, "ema_decay": 1}, "ema_decay of the recipe small must be in [0, 1)"),
        ({**SMALL, "name": " "}, "must not be empty; got [' ', 'train']"),
        ({**SMALL, "name": "digits"}, "digits is another recipe's"),
        ({**SMALL, "source": "two\nlines"}, "must be a line of text; got 'two"),
        ({**SMALL, "name": "half a pair: \ud800"}, "must be a line of text; got 'half"),
        (with_schedule(end_value=0.75), "end_value of the schedule of phase 'train'"),
        (
            with_schedule(init_value=2.0, warmup_length=0.5),
            "init_value of the schedule of phase 'train' must be at most its peak",
        ),
        (with_schedule(boundaries=[1]), 'must have boundaries if its decay is "steps"'),
        (with_schedule(decay_end=1e308), "decay_end of the schedule of phase 'train'"),
        (
            with_schedule(decay="steps", boundaries=[1, -1e308]),
            "boundaries of the schedule of phase 'train' must lie within its 3 epochs",
        ),
    ],
)
def test_what_cannot_be_a_recipe_is_refused(refusal, contents, problem):
    assert problem in refusal(contents)


@pytest.mark.parametrize(
    ("second", "lasts"),
    [({}, 5), ({"schedule": None}, 5), ({"schedule": {"peak_value": 1}}, 3)],
)
def test_drops_lie_within_the_epochs_of_their_schedule(refusal, write, second, lasts):
    def contents(drop: float) -> dict[str, object]:
        schedule = {"peak_value": 1, "decay": "steps", "boundaries": [1, drop]}
        return {
            **SMALL,
            "phases": [
                {"epochs": 3, "name": "first", "schedule": schedule},
                {"epochs": 2, "name": "second", **second},
            ],
        }

    assert recipe_file.read(write(contents(lasts - 0.5))).name == "small"
    assert f"must lie within its {lasts} epochs; got {lasts}" in refusal(
        contents(lasts)
    )
