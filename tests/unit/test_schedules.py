import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.config.schedules import DECAYS, Schedule, learning_rate

EXACT = {"rel": 1e-13, "abs": 0}  # A few roundings of a float64.


def rates(schedule: Schedule, steps) -> list[float]:
    return [learning_rate(schedule, step) for step in steps]


def test_a_warm_up_is_a_straight_line_from_its_start():
    schedule = Schedule(init_value=1.0, peak_value=5.0, warmup_length=4, decay="none")
    assert rates(schedule, range(6)) == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]


def test_without_a_warm_up_the_first_rate_is_the_peak():
    schedule = Schedule(init_value=0.1, peak_value=0.8, decay_end=4)
    # 0.8 * (4 - step) / 4.
    assert rates(schedule, range(5)) == pytest.approx(
        [0.8, 0.6, 0.4, 0.2, 0.0], **EXACT
    )


def test_a_polynomial_is_counted_from_the_end_of_the_warm_up():
    schedule = Schedule(
        init_value=1.0,
        peak_value=5.0,
        warmup_length=4,
        decay="polynomial",
        decay_start=4,
        decay_end=12,
        end_value=1.0,
    )
    # 1 + 4 * (12 - step) / 8.
    assert rates(schedule, (4, 5, 8, 11, 12)) == [5.0, 4.5, 3.0, 1.5, 1.0]


def test_a_polynomial_falls_with_its_power():
    schedule = Schedule(
        init_value=1.0,
        peak_value=5.0,
        warmup_length=4,
        decay_start=4,
        decay_end=12,
        power=2.0,
        end_value=1.0,
    )
    # 1 + 4 * ((12 - step) / 8) ** 2.
    assert rates(schedule, (4, 6, 8, 10, 11)) == [5.0, 3.25, 2.0, 1.25, 1.0625]


def test_a_polynomial_that_is_counted_from_the_start_drops_behind_the_warm_up():
    schedule = Schedule(
        init_value=1.0,
        peak_value=5.0,
        warmup_length=4,
        decay_start=0,
        decay_end=8,
        power=2.0,
    )
    # 5 * ((8 - step) / 8) ** 2 from step 4 on: 5 / 4, 5 * 9 / 64, 5 / 16, 5 / 64, 0.
    assert rates(schedule, range(3, 9)) == [4.0, 1.25, 0.703125, 0.3125, 0.078125, 0.0]


def test_a_cosine_is_half_a_wave():
    schedule = Schedule(
        init_value=0.0,
        peak_value=4.0,
        warmup_length=2,
        decay="cosine",
        decay_start=2,
        decay_end=8,
        end_value=1.0,
    )
    # 1 + 3 * (1 + cos(pi * (step - 2) / 6)) / 2, whose cosines are those of 0, 60, 90,
    # 120 and 180 degrees.
    expected = [4.0, 3.25, 2.5, 1.75, 1.0]
    assert rates(schedule, (2, 4, 5, 6, 8)) == pytest.approx(expected, **EXACT)


def test_steps_drop_at_each_of_theirs_and_not_before():
    schedule = Schedule(
        init_value=0.0,
        peak_value=8.0,
        warmup_length=2,
        decay="steps",
        boundaries=(4, 6),
        decay_factor=0.5,
    )
    assert rates(schedule, range(8)) == [0.0, 4.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0]


def test_a_drop_inside_the_warm_up_shows_behind_it():
    schedule = Schedule(
        init_value=0.0,
        peak_value=8.0,
        warmup_length=2,
        decay="steps",
        boundaries=(1,),
        decay_factor=0.25,
    )
    assert rates(schedule, range(4)) == [0.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize("decay", ["polynomial", "cosine"])
def test_past_its_end_a_decay_stays_where_it_is(decay):
    schedule = Schedule(
        init_value=0.1,
        peak_value=1.0,
        warmup_length=2,
        decay=decay,
        decay_start=2,
        decay_end=10,
        end_value=0.25,
    )
    assert rates(schedule, (10, 11, 10**9)) == [0.25, 0.25, 0.25]


def test_a_run_of_one_step_trains_at_the_peak():
    assert (
        learning_rate(Schedule(init_value=0.1, peak_value=0.5, decay_end=1), 0) == 0.5
    )


@st.composite
def schedules(draw) -> Schedule:
    """Schedules that rise, from zero or more, and then fall."""
    warmup_steps = draw(st.integers(0, 1000))
    start = draw(st.floats(0, 10))
    end = draw(st.floats(0, 10))
    from_start = draw(st.booleans())
    return Schedule(
        init_value=start,
        peak_value=max(start, end) + draw(st.floats(1e-6, 10)),
        warmup_length=warmup_steps,
        decay=draw(st.sampled_from(DECAYS)),
        decay_start=0 if from_start else warmup_steps,
        decay_end=warmup_steps + draw(st.integers(1, 1000)),
        power=draw(st.floats(0.25, 4)),
        end_value=end,
        boundaries=tuple(sorted(draw(st.sets(st.integers(1, 2000), max_size=4)))),
        decay_factor=draw(st.floats(0, 1)),
    )


@given(schedule=schedules(), step=st.integers(0, 2100))
def test_a_rate_rises_in_the_warm_up_then_falls_and_stays_in_its_bounds(schedule, step):
    now, after = learning_rate(schedule, step), learning_rate(schedule, step + 1)
    slack = 1e-12 * schedule.peak_value  # Roundings of a float64.
    assert math.isfinite(now)
    assert 0 <= now <= schedule.peak_value + slack
    if step < schedule.warmup_length - 1:  # A decay from the start drops behind it.
        assert schedule.init_value <= now <= after
    elif step >= schedule.warmup_length:
        assert after <= now + slack


@given(schedule=schedules(), later=st.integers(0, 10**6))
def test_a_decay_ends_where_it_should(schedule, later):
    ends = {
        "polynomial": schedule.end_value,
        "cosine": schedule.end_value,
        "steps": schedule.peak_value
        * schedule.decay_factor ** len(schedule.boundaries),
        "none": schedule.peak_value,
    }
    step = max(schedule.decay_end, *schedule.boundaries, 0) + later
    assert learning_rate(schedule, step) == ends[schedule.decay]


@given(schedule=schedules())
def test_a_decay_from_the_end_of_the_warm_up_begins_at_the_peak(schedule):
    first = learning_rate(schedule, schedule.warmup_length)
    if schedule.decay == "steps":
        passed = [
            drop for drop in schedule.boundaries if drop <= schedule.warmup_length
        ]
        assert first == schedule.peak_value * schedule.decay_factor ** len(passed)
    elif schedule.decay == "none" or schedule.decay_start == schedule.warmup_length:
        assert first == pytest.approx(schedule.peak_value, rel=1e-12)
    else:
        assert schedule.end_value <= first <= schedule.peak_value * (1 + 1e-12)
