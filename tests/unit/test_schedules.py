import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.schedules import gradual_warmup_then_dec

# By hand: 0.1 + 4.7 * step / 260 to step 260, then 4.8 * (4680 - step) / 4420.
PUBLISHED = (
    (0, 0.1),
    (130, 2.45),
    (259, 4.781923076923077),
    (260, 4.8),
    (2470, 2.4),
    (4679, 0.0010859728506787331),
    (4680, 0.0),
)


@pytest.mark.parametrize(("step", "learning_rate"), PUBLISHED)
def test_the_published_run_has_the_published_rates(step, learning_rate):
    ours = gradual_warmup_then_dec(step, 0.1, 260, 4.8, 4680)
    # A few roundings of a float64.
    assert ours == pytest.approx(learning_rate, rel=1e-14, abs=0)


def test_without_a_warm_up_the_first_rate_is_the_peak():
    rates = [gradual_warmup_then_dec(step, 0.1, 0, 0.8, 4) for step in range(5)]
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0], rel=1e-14)


def test_past_the_end_the_rate_stays_zero():
    assert [gradual_warmup_then_dec(s, 0.1, 2, 1.0, 10) for s in (10, 11, 10**9)] == [
        0.0,
        0.0,
        0.0,
    ]


def test_a_run_of_one_step_trains_at_the_peak():
    assert gradual_warmup_then_dec(0, 0.1, 0, 0.5, 1) == 0.5


@given(
    base=st.floats(0, 10),
    rise=st.floats(0, 10),
    warmup_steps=st.integers(0, 1000),
    decay_steps=st.integers(1, 1000),
    step=st.integers(0, 2100),
)
def test_the_rate_rises_in_the_warm_up_then_falls_and_is_never_negative(
    base, rise, warmup_steps, decay_steps, step
):
    def rate(at: int) -> float:
        return gradual_warmup_then_dec(
            at, base, warmup_steps, base + rise, warmup_steps + decay_steps
        )

    now, after = rate(step), rate(step + 1)
    slack = 1e-12 * (base + rise)  # Roundings of a float64.
    assert 0 <= now <= base + rise + slack
    if step < warmup_steps:
        assert after >= now - slack
    else:
        assert after <= now
    assert math.isfinite(now)
