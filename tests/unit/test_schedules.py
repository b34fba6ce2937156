import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.config import phases
from resnet.config.resolve import resolve
from resnet.config.schedules import DECAYS, Schedule, learning_rate
from resnet.recipes import registry

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


# The rates of a recipe by hand, whose step 0 is the run's first; with
# rise(i) = start + (peak - start) * i / warm-up, in steps.
PUBLISHED = {
    "tpu_90ep_24k": (
        # rise of 0.1 to 4.8 in 260; then 4.8 * (4680 - i) / 4420.
        (0, 0.1),
        (130, 2.45),
        (259, 4.781923076923077),
        (260, 4.8),
        (261, 4.798914027149321),
        (2470, 2.4),
        (4679, 0.0010859728506787331),
        (4680, 0.0),
    ),
    "tpu_90ep_8k": (
        # rise of 0.1 to 3.2 in 782; then 3.2 * (14,075 - i) / 13,293.
        (0, 0.1),
        (781, 3.1960358056265985),
        (782, 3.2),
        (783, 3.1997592717971863),
        (14_074, 0.00024072820281351086),
        (14_075, 0.0),
    ),
    "collapse_72ep_4k": (
        # init: rise of 0.1 to 1.6 in 1560; then 1.6 * (1 - i / 18,720).
        (0, 0.1),
        (780, 0.85),
        (1559, 1.5990384615384616),
        (1560, 1.4666666666666666),
        (1561, 1.4665811965811966),
        (3900, 1.2666666666666666),
        (7799, 0.9334188034188035),
        # cyc1, from step 7800: 1.02 * (1 - i / 7500) ** 2.
        (7800, 1.02),
        (7801, 1.0197280181333332),
        (9675, 0.57375),
        (11_549, 0.2551360181333333),
        # cyc2, from 11,550: rise of 0.255 to 0.764 in 1000; then
        # 0.764 * (1 - i / 7500) ** 2.
        (11_550, 0.255),
        (11_551, 0.255509),
        (12_549, 0.763491),
        (12_550, 0.5738488888888889),
        (12_551, 0.5736723335822222),
        (13_925, 0.35674555555555554),
        (16_299, 0.10279027136),
        # cyc3, from 16,300: rise of 0.19 to 0.572 in 1000; then
        # 0.572 * (1 - i / 7500) ** 2.
        (16_300, 0.19),
        (16_301, 0.190382),
        (17_299, 0.571618),
        (17_300, 0.42963555555555555),
        (17_301, 0.4295033701688889),
        (18_675, 0.26709222222222223),
        (21_049, 0.07695816128),
        # collapse, from 21,050: 0.143 * (1 - i / 1560) ** 2.
        (21_050, 0.143),
        (21_051, 0.14281672542735044),
        (21_830, 0.03575),
        (22_609, 5.876068376068376e-08),
        (22_610, 0.0),
    ),
    "collapse_94ep_14k": (
        # linear: rise of 0.1 to 4.8 in 446; then 4.8 * (1 - i / 8040).
        (0, 0.1),
        (223, 2.45),
        (445, 4.789461883408071),
        (446, 4.533731343283582),
        (447, 4.533134328358209),
        (3819, 2.52),
        (7637, 0.24059701492537314),
        # collapse, from 7638: 0.254 * (1 - i / 402) ** 2.
        (7638, 0.254),
        (7639, 0.2527378901512339),
        (7839, 0.0635),
        (8039, 1.5717432736813445e-06),
        (8040, 0.0),
    ),
    "lars_35ep_1632": (
        # 7.4 in 1570 steps; then 27,476 of decay.
        (0, 0.0),
        (785, 3.7),
        (1570, 7.4),
        (15_308, 1.850075),  # A quarter of 7.3999, and 1e-4.
        (29_046, 0.0001),
    ),
    "lars_35ep_3264": (
        # 10.5 in 785 steps; then 14,523 - 785 = 13,738 of decay.
        (0, 0.0),
        (157, 2.1),
        (785, 10.5),
        (7654, 2.625075),  # A quarter of 10.4999, and 1e-4.
        (14_523, 0.0001),
    ),
    # LARS: rise of 0 to the peak; then 1e-4 + (peak - 1e-4) * (left / decay) ** 2.
    "lars_40ep_4k": (
        # 10 in 1564 steps; then 13,137 - 1564 = 11,573 of decay.
        (0, 0.0),
        (1, 0.00639386189258312),
        (782, 5.0),
        (1563, 9.993606138107417),
        (1564, 10.0),
        (1565, 9.998271931571031),
        (7386, 2.4694945538033046),  # (81 / 163) ** 2
        (13_136, 0.00010007466271026005),
        (13_137, 0.0001),
    ),
    "lars_42ep_8k": (
        # 17 in 782 steps; then 6095 of decay.
        (0, 0.0),
        (1, 0.021739130434782608),
        (391, 8.5),
        (781, 16.97826086956522),
        (782, 17.0),
        (783, 16.994422147523387),
        (4439, 2.720084),  # 0.4 ** 2 of 16.9999, and 1e-4.
        (6876, 0.00010045761362512206),
        (6877, 0.0001),
    ),
    "lars_45ep_13k": (
        # 12.8 in 883 steps; then 4710 - 883 = 3827 of decay.
        (0, 0.0),
        (1, 0.0144960362400906),
        (882, 12.78550396375991),
        (883, 12.8),
        (884, 12.793311613438792),
        (2775, 3.272388536800909),  # (45 / 89) ** 2
        (4709, 0.00010087395616898047),
        (4710, 0.0001),
    ),
    "lars_56ep_32k": (
        # 21.2 in 626 steps; then 2267 - 626 = 1641 of decay.
        (0, 0.0),
        (1, 0.03386581469648562),
        (313, 10.6),
        (625, 21.166134185303516),
        (626, 21.2),
        (627, 21.17417009073182),
        (1720, 2.3556444444444447),  # A ninth of 21.1999, and 1e-4.
        (2266, 0.00010787257216341903),
        (2267, 0.0001),
    ),
    "goyal_90ep_8k": (
        # rise of 0.1 to 3.2 in 782; a tenth from each of 30, 60 and 80 epochs on,
        # which are 4691.8, 9383.5 and 12,511.4 steps.
        (0, 0.1),
        (781, 3.1960358056265985),
        (782, 3.2),
        (783, 3.2),
        (4691, 3.2),
        (4692, 0.32),
        (4693, 0.32),
        (9383, 0.32),
        (9384, 0.032),
        (9385, 0.032),
        (12_510, 0.032),
        (12_511, 0.0032),
        (12_512, 0.0032),
        (14_074, 0.0032),
    ),
    "imagenette": (
        # rise of 0.01 to 0.025 in 148; then 0.025 * (2367 - i) / 2219.
        (0, 0.01),
        (74, 0.0175),
        (147, 0.024898648648648648),
        (148, 0.025),
        (149, 0.02498873366381253),
        (2366, 1.1266336187471835e-05),
        (2367, 0.0),
    ),
    "imagenette_best": (
        # rise of 0.005 to 0.05 in 296; then 0.025 * (1 + cos(pi * (i - 296) / 4438)).
        (0, 0.005),
        (148, 0.0275),
        (295, 0.04984797297297297),
        (296, 0.05),
        (297, 0.04999999373623949),
        (2515, 0.025),
        (4733, 6.2637605102722205e-09),
        (4734, 0.0),
    ),
    "imagenette_collapse": (
        # The rates of collapse_72ep_4k by 64, in 2367.25 steps of 22,610.
        # init: rise of 0.1 to 1.6 in 163; then 1.6 * (1 - i / 1960).
        (0, 0.0015625),
        (162, 0.024856211656441717),
        (163, 0.02292091836734694),
        (816, 0.014591836734693877),
        # cyc1, from step 817: 1.02 * (1 - i / 785) ** 2.
        (817, 0.0159375),
        (818, 0.01589692076757678),
        (1208, 0.004014887013671954),
        # cyc2, from 1209: rise of 0.255 to 0.764 in 105; then
        # 0.764 * (1 - i / 785) ** 2.
        (1209, 0.003984375),
        (1313, 0.011861755952380952),
        (1314, 0.008957604770984624),
        (1706, 0.0016067897277780032),
        # cyc3, from 1707: rise of 0.19 to 0.572 in 105; then
        # 0.572 * (1 - i / 785) ** 2.
        (1707, 0.00296875),
        (1811, 0.008880654761904761),
        (1812, 0.006706478964663881),
        (2203, 0.0012113577629924135),
        # collapse, from 2204: 0.143 * (1 - i / 163) ** 2.
        (2204, 0.002234375),
        (2205, 0.0022070434528962323),
        (2366, 8.409706801159246e-08),
        (2367, 0.0),
    ),
    "imagenette_lars": (
        # The rates of lars_40ep_4k by 100, in 2367.25 steps; 281.8 rise:
        # 0.1 * i / 282; then 1e-6 + (0.1 - 1e-6) * ((2367 - i) / 2085) ** 2.
        (0, 0.0),
        (141, 0.05),
        (281, 0.09964539007092199),
        (282, 0.1),
        (283, 0.09990410070079189),
        (2366, 1.0230029501578593e-06),
        (2367, 1e-6),
    ),
    "cifar10": (
        # rise of 0 to 0.4 in 488; then 0.4 * (2344 - i) / 1856.
        (0, 0.0),
        (244, 0.2),
        (487, 0.39918032786885244),
        (488, 0.4),
        (489, 0.39978448275862066),
        (1416, 0.2),
        (2343, 0.00021551724137931034),
        (2344, 0.0),
    ),
    "digits": (
        # rise of 0.01 to 0.05 in 22; then 0.05 * (269 - i) / 247.
        (0, 0.01),
        (11, 0.03),
        (21, 0.04818181818181818),
        (22, 0.05),
        (23, 0.04979757085020243),
        (268, 0.00020242914979757084),
        (269, 0.0),
    ),
}


@pytest.mark.parametrize("name", registry.RECIPES)
def test_a_recipe_has_the_rates_that_hand_and_paper_give(name):
    recipe = registry.get(name)
    config = resolve(recipe, {}, recipe.num_train_examples, ("a", "b"))
    found = {
        step: phases.learning_rate(config.phases, step) for step, _ in PUBLISHED[name]
    }
    assert found == pytest.approx(dict(PUBLISHED[name]), **EXACT)


@st.composite
def curves(draw) -> Schedule:
    """Curves that rise, from zero or more, and then fall."""
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


@given(schedule=curves(), step=st.integers(0, 2100))
def test_a_rate_rises_in_the_warm_up_then_falls_and_stays_in_its_bounds(schedule, step):
    now, after = learning_rate(schedule, step), learning_rate(schedule, step + 1)
    slack = 1e-12 * schedule.peak_value  # Roundings of a float64.
    assert math.isfinite(now)
    assert 0 <= now <= schedule.peak_value + slack
    if step < schedule.warmup_length - 1:  # A decay from the start drops behind it.
        assert schedule.init_value <= now <= after
    elif step >= schedule.warmup_length:
        assert after <= now + slack


@given(schedule=curves(), later=st.integers(0, 10**6))
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


@given(schedule=curves())
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
