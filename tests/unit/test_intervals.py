from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base import intervals
from resnet.base.errors import UserError
from resnet.base.intervals import Interval


@pytest.mark.parametrize(
    ("text", "length", "unit"),
    [
        ("500steps", 500, "step"),
        ("1 step", 1, "step"),
        ("0.5epochs", Fraction(1, 2), "epoch"),
        (" 10 minutes ", 10, "minute"),
        ("0.05minutes", Fraction(1, 20), "minute"),
    ],
)
def test_a_length_has_one_of_three_units(text, length, unit):
    interval = intervals.parse(text, "--every")
    assert interval == Interval(Fraction(length), unit)
    assert interval.seconds == (60 * length if unit == "minute" else None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "1", "500", "-1", "2.5 steps", "daily", "1 hour", "0 epochs", "nan"),
        *("9" * 400, "9" * 5000, f"0.{'1' * 400} epochs"),
    ],
)
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(UserError, match=r"--every must .* 2epochs or 10minutes; got '"):
        intervals.parse(text, "--every")


def test_where_minutes_make_no_sense_they_are_refused_too():
    for text in ("500 steps", "2epochs"):
        interval = intervals.parse(text, "--every", intervals.UNITS_OF_STEPS)
        assert interval == intervals.parse(text, "--every")
    with pytest.raises(UserError, match=r"number of steps or epochs, .*'10 minutes'"):
        intervals.parse("10 minutes", "--every", intervals.UNITS_OF_STEPS)


def ends(text: str, num_steps: int, examples: int, batch_size: int) -> list[int]:
    interval = intervals.parse(text, "--every")
    steps = range(1, num_steps + 1)
    sizes = examples, batch_size
    return [step for step in steps if interval.ends_at(step, *sizes, since=step - 1)]


def test_steps_and_epochs_end_where_they_should():
    assert ends("3steps", 10, 100, 7) == [3, 6, 9]
    # An epoch of 12 examples is 2.4 steps of 5: ends within steps 3, 5, 8, 10 and 12.
    assert ends("1 epoch", 12, 12, 5) == [3, 5, 8, 10, 12]
    assert ends("2 epochs", 12, 12, 5) == [5, 10]
    assert ends("10 minutes", 100, 12, 5) == []
    assert ends("1 epoch", 3, 4, 10) == [1, 2, 3]  # Several in a batch.


@given(st.integers(1, 50), st.integers(1, 300), st.integers(1, 40))
def test_as_many_epochs_end_as_are_done(epochs, examples, batch_size):
    num_steps = -(-epochs * examples // batch_size)
    found = ends("1 epoch", num_steps, examples, batch_size)
    if batch_size <= examples:
        assert len(found) == num_steps * batch_size // examples
    assert found[-1] == num_steps


@given(
    st.sampled_from(["1 step", "3steps", "0.125 epochs", "1 epoch", "2.5 epochs"]),
    st.integers(1, 60),
    st.integers(1, 80),
)
def test_the_next_end_is_the_first_one_behind(text, examples, batch_size):
    interval = intervals.parse(text, "--every")
    found = ends(text, 400, examples, batch_size)
    step, nexts = 0, []
    while (step := interval.next_end(step, examples, batch_size)) <= 400:
        nexts.append(step)
    assert nexts == found
