"""Which steps end with an average of the ranks' weights: pure functions."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet.base.intervals import parse
from resnet.config import explain, recipe_file, rounds
from resnet.config import phases as phase_list
from resnet.config.config import Derived
from resnet.config.phases import Phase
from resnet.config.recipe import RecipePhase
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule


def phase(num_steps: int, name: str = "train", **settings) -> Phase:
    """Returns a phase whose rate is constant, unless the settings say another."""
    settings.setdefault("schedule", Schedule(peak_value=0.1, decay="none"))
    return Phase(name=name, num_steps=num_steps, **settings)


def ends(phases: tuple[Phase, ...]) -> list[int]:
    """Returns the numbers of steps done with which all ranks have the same weights."""
    total = phase_list.num_steps(phases)
    return [n for n in range(total + 1) if rounds.is_synchronized(phases, n)]


def test_in_a_warmup_the_rate_after_it_counts():
    rising = Schedule(peak_value=0.2, init_value=0.0, warmup_length=6, decay="none")
    one = phase(12, schedule=rising, qsr_coefficient=0.4)
    assert ends((one,)) == [0, 4, 8, 12]
    # Counted from the beginning of the schedule, not of the phase.
    two = (dataclasses.replace(one, num_steps=3), phase(9, "b", schedule=None))
    two = (two[0], dataclasses.replace(two[1], qsr_coefficient=0.4))
    assert ends(two) == [0, 3, 7, 11, 12]
    tiny = dataclasses.replace(one, qsr_coefficient=1e300)
    assert ends((tiny,)) == [0, 12]


SCHEDULES = st.builds(
    Schedule,
    peak_value=st.floats(1e-3, 10),
    init_value=st.just(0.0),
    warmup_length=st.integers(0, 20),
    decay=st.sampled_from(["polynomial", "cosine", "none"]),
    decay_start=st.just(0),
    decay_end=st.integers(21, 80),
)
PHASES = st.lists(
    st.builds(
        Phase,
        num_steps=st.integers(1, 60),
        schedule=SCHEDULES,
        sync_every=st.integers(1, 12),
        qsr_coefficient=st.sampled_from([0.0, 1e-6, 0.5, 5.0, 1e9]),
    ),
    min_size=1,
    max_size=4,
)


@given(PHASES)
def test_rounds_split_each_phase_and_have_at_least_their_least_length(parts):
    parts = tuple(parts)
    found = ends(parts)
    total = phase_list.num_steps(parts)
    assert {0, total, *phase_list.first_steps(parts)} <= set(found)
    for begin, end in itertools.pairwise(found):
        steps = range(begin, end)
        assert all(rounds.of_step(parts, step) == steps for step in steps)
        assert all(rounds.next_synchronization(parts, n + 1) == end for n in steps)
        here = phase_list.at(parts, begin)
        is_cut = end in (total, *phase_list.first_steps(parts))
        assert phase_list.at(parts, end - 1) is here
        if not here.is_local:
            assert len(steps) == 1
        elif not is_cut:
            assert len(steps) >= here.sync_every
            if not here.qsr_coefficient:
                assert len(steps) == here.sync_every


@given(SCHEDULES, st.floats(1e-3, 10), st.integers(1, 5))
def test_rounds_of_the_rule_have_the_length_of_the_formula(schedule, c, least):
    one = phase(100, schedule=schedule, qsr_coefficient=c, sync_every=least)
    found = ends((one,))
    for begin, end in itertools.pairwise(found):
        rate = phase_list.learning_rate((one,), max(begin, schedule.warmup_length))
        length = (
            max(least, math.floor((c / rate) ** 2 * (1 + 1e-9))) if rate else math.inf
        )
        assert end - begin == min(length, 100 - begin)


@given(st.integers(1, 9), st.integers(1, 40))
def test_each_interval_that_ends_is_served_by_the_next_synchronization(every, length):
    config = resolve(
        digits.DIGITS,
        {"train_steps": 60, "warmup_steps": 0, "sync_every": every},
        500,
        ("a", "b"),
    )
    interval = parse(f"{length}steps", "--checkpoint_every")
    due = [n for n in range(1, 61) if rounds.ends_interval(config, interval, n)]
    wanted = range(length, 61, length)
    assert due == sorted({min(60, math.ceil(n / every) * every) for n in wanted})


def test_a_recipe_file_states_a_start_as_a_phase(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "local_sgd.md").read_text()
    (tmp_path / "mine.json").write_text(page.split("```json\n")[1].split("```")[0])
    recipe = recipe_file.read(tmp_path / "mine.json")
    config = resolve(recipe, {}, 64 * 100, ("a", "b"))  # 100 steps an epoch.
    found = ends(config.phases)
    assert found[:801] == [*range(801)]
    assert found[801:] == [*range(808, 1601, 8)]
    # The second phase continues the schedule of the first one.
    rate = phase_list.learning_rate(config.phases, 850)
    assert rate == pytest.approx(0.05 * (1600 - 850) / (1600 - 100))


def plan(**phases: RecipePhase) -> str:
    """Returns the plan of a run of 64 images a step and 100 steps an epoch."""
    parts = (dataclasses.replace(part, name=name) for name, part in phases.items())
    recipe = dataclasses.replace(
        digits.DIGITS, num_train_examples=6400, phases=tuple(parts)
    )
    config = resolve(recipe, {"checkpoint_every": "30steps"}, 6400, ("a", "b"))
    return " ".join(explain.describe_run(recipe, {}, Derived(config, 4)).split())


def test_the_plan_tells_the_rounds_of_each_phase_and_the_bytes_that_they_save():
    rates = Schedule(peak_value=0.8, decay="steps", boundaries=(2,))
    text = plan(
        together=RecipePhase(epochs=1, schedule=rates),
        apart=RecipePhase(epochs=1, sync_every=8, local_velocities="average"),
        far=RecipePhase(
            epochs=1, sync_every=4, qsr_coefficient=0.8, outer_momentum=0.5
        ),
    )
    for words in (
        "in phase apart the ranks average their weights every 8 steps, 13 times in 100",
        "; velocities: average; sends 26 % of the bytes of an exchange in each step",
        # The rate is 0.08 there: (0.8 / 0.08)^2 is 100.
        "in phase far the ranks average their weights every 100 steps (QSR with c =",
        "0.8), 1 times in 100 steps; velocities: keep; outer momentum 0.5, outer",
        "learning rate 1; sends 1 %",
    ):
        assert words in text
    assert "in phase together the ranks" not in text
    assert "sync_every" not in text
    # Checkpoints wait for synchronizations.
    rates = Schedule(peak_value=0.8, decay="none")
    text = plan(apart=RecipePhase(epochs=1, schedule=rates, sync_every=16))
    assert "every 30 steps (after 32, 64, ..., 100 steps)" in text
