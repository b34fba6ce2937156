from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import UserError
from resnet.checkpoint_interval import CheckpointInterval, parse


@pytest.mark.parametrize(
    ("text", "length", "unit"),
    [
        ("500", 500, "step"),
        ("1 step", 1, "step"),
        ("500steps", 500, "step"),
        ("2 epochs", 2, "epoch"),
        ("0.5epochs", Fraction(1, 2), "epoch"),
        (" 10 minutes ", 10, "minute"),
        ("0.05minutes", Fraction(1, 20), "minute"),
    ],
)
def test_a_length_has_one_of_three_units(text, length, unit):
    assert parse(text) == CheckpointInterval(Fraction(length), unit)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "2.5", "2.5 steps", "daily", "1 hour", "0 epochs", "nan"]
)
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(UserError, match="such as 500steps, 2epochs or 10minutes; got"):
        parse(text)


def ends(text: str, num_steps: int, examples: int, batch_size: int) -> list[int]:
    interval = parse(text)
    steps = range(1, num_steps + 1)
    return [step for step in steps if interval.ends_at(step, examples, batch_size)]


def test_steps_and_epochs_end_where_they_should():
    assert ends("3", 10, 100, 7) == [3, 6, 9]
    # An epoch of 12 examples is 2.4 steps of 5: ends within steps 3, 5, 8, 10 and 12.
    assert ends("1 epoch", 12, 12, 5) == [3, 5, 8, 10, 12]
    assert ends("2 epochs", 12, 12, 5) == [5, 10]
    assert ends("10 minutes", 100, 12, 5) == []


def test_a_batch_of_several_epochs_ends_one_in_each_step():
    assert ends("1 epoch", 3, 4, 10) == [1, 2, 3]


@given(st.integers(1, 50), st.integers(1, 300), st.integers(1, 40))
def test_as_many_epochs_end_as_are_done(epochs, examples, batch_size):
    num_steps = -(-epochs * examples // batch_size)
    found = ends("1 epoch", num_steps, examples, batch_size)
    if batch_size <= examples:
        assert len(found) == num_steps * batch_size // examples
    assert found[-1] == num_steps


def test_only_minutes_are_a_time():
    assert parse("1.5 minutes").seconds == 90
    assert parse("90 steps").seconds is None
