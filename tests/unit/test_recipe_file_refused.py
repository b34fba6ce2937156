import functools
import json
import pathlib
from collections.abc import Callable

import pytest

from resnet.base.errors import UserError
from resnet.config import json_file
from resnet.config.resolve import resolve
from tests.unit import small_recipe_file
from tests.unit.small_recipe_file import SMALL


@pytest.fixture
def write(tmp_path) -> Callable[[object], pathlib.Path]:
    """A function that writes a file."""
    return functools.partial(small_recipe_file.write, tmp_path)


@pytest.fixture
def refusal(write) -> Callable[..., str]:
    """A function that returns what is said of a file, behind the file's name."""

    def refusal(contents: object) -> str:
        path = write(contents)
        with pytest.raises(UserError) as caught:
            json_file.read(path)
        sentence = str(caught.value)
        assert sentence.startswith(f"{path} is not a recipe: ")
        return sentence.removeprefix(f"{path} is not a recipe: ")

    return refusal


def with_phase(**changes: object) -> dict[str, object]:
    """Returns the contents of a file whose only phase is another."""
    return {**SMALL, "phases": [{**SMALL["phases"][0], **changes}]}  # type: ignore[index]


def with_schedule(**changes: object) -> dict[str, object]:
    return with_phase(schedule={"peak_value": 0.5, **changes})


def test_a_changed_recipe_needs_a_name_of_its_own(refusal):
    assert refusal({"based_on": "digits"}) == 'it needs a "name" of its own'


def test_a_field_that_is_given_twice_is_refused(refusal):
    assert refusal('{"model": "resnet18", "name": "a", "model": "resnet50"}') == (
        "each field must be given once; 'model' is given twice"
    )


def test_an_unknown_base_is_refused_with_the_known_ones(refusal):
    sentence = refusal({"based_on": "imagenet", "name": "mine"})
    assert sentence.startswith("it can be based_on cifar10, ")
    assert sentence.endswith("got 'imagenet'")


@pytest.mark.parametrize("base", [["digits"], 5, {}, True])
def test_a_base_that_is_no_name_is_refused(refusal, base):
    sentence = refusal({"based_on": base, "name": "mine"})
    assert sentence == f"'based_on' of the recipe must be text; got {base!r}"


@pytest.mark.parametrize(
    ("contents", "unknown", "where", "known"),
    [
        ({**SMALL, "batch": 3}, "batch", "the recipe", "global_batch_size"),
        (
            {"based_on": "digits", "name": "mine", "momentum": 0.8},
            "momentum",
            "the recipe",
            "batch_norm_momentum",
        ),
        (
            with_phase(mix_up=0.2),
            "mix_up",
            "number 1 of 'phases' of the recipe",
            "mixup",
        ),
        (
            with_schedule(warmup=1),
            "warmup",
            "'schedule' of number 1 of 'phases' of the recipe",
            "warmup_length",
        ),
    ],
)
def test_an_unknown_field_is_refused_with_the_known_ones(
    refusal, contents, unknown, where, known
):
    sentence = refusal(contents)
    begin = f"unknown field {unknown!r} of {where}; known are "
    assert sentence.startswith(begin)
    assert known in sentence.removeprefix(begin).split(", ")


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_field_is_named(refusal, name):
    contents = {key: value for key, value in SMALL.items() if key != name}
    assert refusal(contents) == f"{name!r} of the recipe is missing"


def test_a_missing_field_of_a_part_is_named_with_its_place(refusal):
    phases = [SMALL["phases"][0], {"name": "second"}]
    assert refusal({**SMALL, "phases": phases}) == (
        "'epochs' of number 2 of 'phases' of the recipe is missing"
    )
    assert refusal(with_phase(schedule={"init_value": 0.1})) == (
        "'peak_value' of 'schedule' of number 1 of 'phases' of the recipe is missing"
    )


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({**SMALL, "name": 3}, "'name' of the recipe must be text; got 3"),
        ({**SMALL, "model": None}, "'model' of the recipe must be text; got None"),
        (
            {**SMALL, "image_size": 32.0},
            "'image_size' of the recipe must be a whole number; got 32.0",
        ),
        (
            {**SMALL, "image_size": True},
            "'image_size' of the recipe must be a whole number; got True",
        ),
        (
            {**SMALL, "global_batch_size": "4"},
            "'global_batch_size' of the recipe must be a whole number; got '4'",
        ),
        (
            {**SMALL, "ema_decay": False},
            "'ema_decay' of the recipe must be a number; got False",
        ),
        (
            {**SMALL, "nesterov": 1},
            "'nesterov' of the recipe must be a bool; got 1",
        ),
        (
            {**SMALL, "deviations": "none"},
            "'deviations' of the recipe must be a list; got 'none'",
        ),
        (
            {**SMALL, "deviations": ["one", 2]},
            "number 2 of 'deviations' of the recipe must be text; got 2",
        ),
        (
            {**SMALL, "phases": {"epochs": 3}},
            "'phases' of the recipe must be a list; got {'epochs': 3}",
        ),
        (
            {**SMALL, "phases": [3]},
            "number 1 of 'phases' of the recipe must be an object; got 3",
        ),
        (
            with_phase(epochs="3"),
            "'epochs' of number 1 of 'phases' of the recipe must be a number; got '3'",
        ),
        (
            with_phase(schedule=0.5),
            "'schedule' of number 1 of 'phases' of the recipe must be an object; got"
            " 0.5",
        ),
        (
            with_schedule(init_value_scales="no"),
            "'init_value_scales' of 'schedule' of number 1 of 'phases' of the recipe"
            " must be a"
            " bool; got 'no'",
        ),
        (
            with_schedule(boundaries=[1, None]),
            "number 2 of 'boundaries' of 'schedule' of number 1 of 'phases' of the"
            " recipe"
            " must be a number; got None",
        ),
        ({**SMALL, "train_epochs": "3"}, "'train_epochs' must be a number; got '3'"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(refusal, contents, sentence):
    assert refusal(contents) == sentence


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "contents",
    [
        with_schedule(peak_value="#"),
        with_schedule(warmup_length="#"),
        with_schedule(decay_end="#"),
        with_schedule(boundaries=["#"]),
        with_phase(epochs="#"),
        with_phase(mixup="#"),
        {**SMALL, "clip_norm": "#"},
        {**SMALL, "train_epochs": "#"},
    ],
)
def test_a_number_that_is_none_is_refused(refusal, contents, number):
    sentence = refusal(json.dumps(contents).replace('"#"', number))
    assert sentence.endswith(f"must be a number; got {float(number)}")


def test_phases_must_add_up_to_the_length_that_is_stated(refusal, write):
    assert refusal({**SMALL, "train_epochs": 4}) == (
        "its phases must add up to the train_epochs that it states, 4; they are 3"
        " epochs long"
    )
    assert json_file.read(write({**SMALL, "train_epochs": 3.0005})).name == "small"


def test_the_first_phase_needs_rates(refusal):
    sentence = "its first phase needs a schedule: there is none before to continue"
    assert refusal({**SMALL, "phases": [{"epochs": 3}]}) == sentence
    assert refusal(with_phase(schedule=None)) == sentence


def test_there_is_at_least_one_phase(refusal):
    assert refusal({**SMALL, "phases": []}) == "it needs at least one phase"


@pytest.mark.parametrize("epochs", [0, -1, 1e6])
def test_a_phase_has_a_length(refusal, epochs):
    assert refusal(with_phase(epochs=epochs)).startswith(
        "the epochs of phase 'train' must be more than 0"
    )


@pytest.mark.parametrize(
    "name", ["image_size", "global_batch_size", "num_train_examples"]
)
def test_sizes_are_at_least_one(refusal, name):
    bounds = f"{name} must be from 1 to 2147483648; got "
    assert refusal({**SMALL, name: 0}) == f"{bounds}0"
    assert refusal({**SMALL, name: 10**400}) == f"{bounds}1{'0' * 36}..."


def test_the_examples_of_a_rank_are_no_less_than_none(refusal):
    assert refusal({**SMALL, "rank_batch_size": -1}) == (
        "rank_batch_size must be from 0 to 2147483648; got -1"
    )


def test_another_rule_for_the_rates_is_refused(refusal):
    assert refusal({**SMALL, "scaling": "cubic"}) == (
        "scaling must be one of linear, root, none; got 'cubic'"
    )


@pytest.mark.parametrize("name", ["", " "])
def test_a_name_that_is_no_word_is_refused(refusal, name):
    said = f"must not be empty; got {name!r}"
    assert refusal({**SMALL, "name": name}) == f"the name {said}"


@pytest.mark.parametrize("text", ["two\nlines", "half of a pair: \ud800"])
@pytest.mark.parametrize("name", ["name", "source", "published"])
def test_what_cannot_be_printed_in_a_line_is_refused(refusal, name, text):
    assert refusal({**SMALL, name: text}) == (
        f"{name!r} of the recipe must be a line of text; got {text!r}"
    )


def test_a_whole_number_beyond_all_floats_is_refused(refusal):
    assert refusal({**SMALL, "ema_decay": 10**400}) == (
        f"'ema_decay' of the recipe must be a number; got 1{'0' * 36}..."
    )


def test_schedules_that_end_above_their_peak_are_refused(refusal):
    assert refusal(with_schedule(end_value=0.75)) == (
        "end_value of the schedule of phase 'train' must be at most its peak_value; got"
        " 0.75 and 0.5"
    )


def test_a_name_of_another_recipe_is_refused(refusal):
    assert refusal({**SMALL, "name": "digits"}) == (
        "its name must be its own; digits is another recipe's"
    )


def test_a_warm_up_that_falls_is_refused(refusal):
    schedule = {"init_value": 2.0, "peak_value": 1.0, "warmup_length": 0.5}
    phases = [{"name": "first", "epochs": 1, "schedule": schedule}]
    assert refusal({**SMALL, "phases": phases}) == (
        "init_value of the schedule of phase 'first' must be at most its peak_value;"
        " got"
        " 2.0 and 1.0"
    )


@pytest.mark.parametrize(
    ("second", "lasts"),
    [({}, 5), ({"schedule": None}, 5), ({"schedule": {"peak_value": 1}}, 3)],
)
def test_drops_lie_within_the_epochs_of_their_rates(refusal, write, second, lasts):
    def contents(drop: float) -> dict[str, object]:
        schedule = {"peak_value": 1, "decay": "steps", "boundaries": [1, drop]}
        return {
            **SMALL,
            "phases": [
                {"epochs": 3, "name": "first", "schedule": schedule},
                {"epochs": 2, "name": "second", **second},
            ],
        }

    assert json_file.read(write(contents(lasts - 0.5))).name == "small"
    assert refusal(contents(lasts)) == (
        f"boundaries of the schedule of phase 'first' must lie within its {lasts}"
        " epochs;"
        f" got {lasts}"
    )


@pytest.mark.parametrize("value", [-1, 1e6, 1e308, -1e308])
@pytest.mark.parametrize("name", ["warmup_length", "decay_end", "boundaries"])
def test_lengths_of_rates_are_no_less_than_none_and_end(refusal, name, value):
    values = {"decay": "steps", "boundaries": [1]}
    values[name] = [1, value] if name == "boundaries" else value
    assert refusal(with_schedule(**values)) == (
        f"{name} of the schedule of phase 'train' must be at least 0, and below 1e+06;"
        f" got {value:g}"
    )


@pytest.mark.parametrize(("decay", "drops"), [("polynomial", [1]), ("steps", [])])
def test_drops_are_of_a_decay_in_steps(refusal, decay, drops):
    assert refusal(with_schedule(decay=decay, boundaries=drops)) == (
        "the schedule of phase 'train' must have boundaries if its decay is"
        ' "steps", and'
        f" only then; got decay '{decay}' and {len(drops)} boundaries"
    )


@pytest.mark.parametrize("text", ["[]", "3", '"small"', "null"])
def test_anything_but_an_object_is_refused(refusal, text):
    assert refusal(text) == "it must be one object, {...}"


@pytest.mark.parametrize("text", ["", "{", "{'name': 3}", "name: small", "[" * 10**5])
def test_a_file_that_is_no_json_is_refused(write, text):
    path = write(text)
    with pytest.raises(UserError) as caught:
        json_file.read(path)
    assert str(caught.value).startswith(f"{path} must be JSON; it isn't: ")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "mine.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(UserError, match="must be JSON; it isn't"):
        json_file.read(tmp_path / "mine.json")


def test_a_missing_file_and_a_folder_are_refused_with_their_path(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError, match="expected a recipe file; ") as caught:
            json_file.read(path)
        assert f"{path}: " in str(caught.value)
        assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (
            {**SMALL, "ema_decay": 1},
            "ema_decay of the recipe small must be in [0, 1); got 1.0.",
        ),
        (with_phase(mixup=-0.5), "mixup of phase 'train' must be at least 0; got -0.5"),
        (
            {**SMALL, "phases": 2 * SMALL["phases"]},
            "the phases of a recipe must have different names; got train, train.",
        ),
    ],
)
def test_values_out_of_range_are_refused_before_a_run(write, contents, sentence):
    recipe = json_file.read(write(contents))
    with pytest.raises(UserError) as caught:
        resolve(recipe, {}, 40, ("a", "b"))
    assert sentence in str(caught.value)
