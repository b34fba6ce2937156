import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.config.schedules import DECAYS, Schedule, learning_rate

EXACT = {"rel": 1e-13, "abs": 0}  # A few roundings of a float64.


# From 1 to 5 in 4 steps; then down to 1 or 0 at step 12.
RISE = {"init_value": 1.0, "peak_value": 5.0, "warmup_length": 4}
FALL = {**RISE, "decay_start": 4, "decay_end": 12, "end_value": 1.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({**RISE, "decay": "none"}, {0: 1.0, 1: 2.0, 3: 4.0, 4: 5.0, 5: 5.0}),
        # Without a warm-up, 0.8 * (4 - step) / 4.
        (
            {"init_value": 0.1, "peak_value": 0.8, "decay_end": 4},
            {0: 0.8, 1: 0.6, 2: 0.4, 3: 0.2, 4: 0.0},
        ),
        ({"init_value": 0.1, "peak_value": 0.5, "decay_end": 1}, {0: 0.5}),
        # 1 + 4 * (12 - step) / 8, and where it stays.
        (FALL, {4: 5.0, 5: 4.5, 8: 3.0, 11: 1.5, 12: 1.0, 13: 1.0, 10**9: 1.0}),
        # 1 + 4 * ((12 - step) / 8) ** 2.
        ({**FALL, "power": 2.0}, {4: 5.0, 6: 3.25, 8: 2.0, 10: 1.25, 11: 1.0625}),
        # Counted from the start, 5 * ((8 - step) / 8) ** 2 from step 4 on.
        (
            {**RISE, "decay_start": 0, "decay_end": 8, "power": 2.0},
            {3: 4.0, 4: 1.25, 5: 0.703125, 6: 0.3125, 7: 0.078125, 8: 0.0},
        ),
        # 1 + 4 * (1 + cos(pi * (step - 4) / 6)) / 2, whose cosines are those of 0, 60,
        # 90, 120 and 180 degrees.
        (
            {**FALL, "decay": "cosine", "decay_end": 10},
            {4: 5.0, 6: 4.0, 7: 3.0, 8: 2.0, 10: 1.0, 11: 1.0},
        ),
        (
            {**RISE, "decay": "steps", "boundaries": (6, 8), "decay_factor": 0.5},
            {3: 4.0, 4: 5.0, 5: 5.0, 6: 2.5, 7: 2.5, 8: 1.25, 9: 1.25},
        ),
        # A drop inside the warm-up shows behind it.
        (
            {**RISE, "decay": "steps", "boundaries": (1,), "decay_factor": 0.25},
            {0: 1.0, 2: 3.0, 4: 1.25},
        ),
    ],
)
def test_the_rates_of_steps_are_those_worked_out_by_hand(settings, expected):
    schedule = Schedule(**settings)
    rates = {step: learning_rate(schedule, step) for step in expected}
    assert rates == pytest.approx(expected, **EXACT)


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
