"""Runs of a recipe of two phases, through the whole loop."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from data_prep.records import manifest
from resnet.checkpoint import integrity, retention, tensors
from resnet.checkpoint.step_dirs import of_step, saved_steps
from resnet.config import phases
from resnet.config.config import save_config
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from resnet.data import record_files
from resnet.data.record_files import ExampleShard
from resnet.runtime.job import Run
from resnet.runtime.preemption import Preempted
from resnet.training import loop
from tests import smallest
from tests.main_run import read_metrics
from tests.unit.jobs import job
from tests.unit.small_training import LeaveAfter

pytestmark = pytest.mark.usefixtures("one_block")

STEP = 6 / 13  # Epochs of a step of 6 examples, of 13.
RECIPE = Recipe(
    name="two phases",
    source="a test",
    model=smallest.NETWORK,
    image_size=32,
    global_batch_size=6,
    num_train_examples=13,
    phases=(
        RecipePhase(
            name="first",
            epochs=3 * STEP,
            schedule=Schedule(peak_value=0.05, init_value=0.02, warmup_length=STEP),
            weight_decay=0.01,
            augmentation="random_shift",
        ),
        RecipePhase(
            name="second",
            epochs=3 * STEP,
            schedule=Schedule(peak_value=0.03, decay="none"),
            reset_momentum=True,
            momentum=0.5,
            weight_decay=0.1,
            label_smoothing=0.1,
            augmentation="random_shift",
        ),
    ),
    batch_norm_momentum=0.9,
    nesterov=False,
    learning_rate_in_velocity=True,
    ema_decay=0.5,
)

KEEPING = dataclasses.replace(
    RECIPE,
    phases=(
        RECIPE.phases[0],
        dataclasses.replace(RECIPE.phases[1], reset_momentum=False),
    ),
)
# Random choices, AdamW, clipping, and a variable that the first phase freezes, in
# images of two sizes.
FULL = dataclasses.replace(
    KEEPING,
    phases=(
        dataclasses.replace(
            RECIPE.phases[0],
            augmentation="random_resized_crop",
            min_crop_area=0.3,
            mixup=0.3,
            layer_rates="classifier:0",
        ),
        dataclasses.replace(KEEPING.phases[1], image_size=48, cutmix=1.0),
    ),
    optimizer="adamw",
    learning_rate_in_velocity=False,
    clip_norm=1.0,
)


@pytest.fixture(scope="module")
def run(numbered_set) -> Callable[..., None]:
    """A function that trains in a folder, and leaves after so many steps if told to."""
    records = record_files.open_split(
        manifest.load(str(numbered_set), "train"), "train"
    )

    def run(
        model_dir: pathlib.Path,
        recipe: Recipe = RECIPE,
        leave_after: int | None = None,
        **given: Any,
    ) -> None:
        given = {
            "mode": "train",
            "log_step_count_steps": 1,
            "checkpoint_every": "1000steps",
            "keep_checkpoints": 1,
            "model_dir": str(model_dir),
            **given,
        }
        config = resolve(recipe, given, 13, ("a", "b", "c", "d"))
        assert [phase.num_steps for phase in config.phases] == [3, 3]
        save_config(config)
        signals = None if leave_after is None else LeaveAfter(leave_after)
        shard = ExampleShard(records, 0, 1, 13)
        loop.train_and_evaluate(Run(config, shard), job(signals=signals))

    return run


@pytest.fixture(scope="module")
def steps_made() -> list[tuple[phases.Phase, loop.TrainStep]]:
    """The steps that `whole` makes, each with its phase."""
    return []


@pytest.fixture(scope="module")
def whole(run, steps_made, tmp_path_factory) -> pathlib.Path:
    """The folder of a run of both phases without interruption."""
    model_dir, make = tmp_path_factory.mktemp("whole"), loop.TrainStep

    def remember(state: Any, phase: phases.Phase, *arguments: Any) -> loop.TrainStep:
        steps_made.append((phase, make(state, phase, *arguments)))
        return steps_made[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "TrainStep", remember)
        run(model_dir)
    return model_dir


def assert_same(
    ours: pathlib.Path, expected: pathlib.Path, step: int, kinds: tuple[str, ...]
) -> None:
    """Checks that two runs have saved the same bits: model/, velocity/ or ema/."""
    found, wanted = (
        {
            name: value
            for name, value in tensors.load(folder, step).tensors.items()
            if name.startswith(kinds)
        }
        for folder in (ours, expected)
    )
    assert found.keys() == wanted.keys()
    assert {name.split("/")[0] + "/" for name in found} == set(kinds)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def rates_in(model_dir: pathlib.Path) -> dict[int, float]:
    lines = read_metrics(model_dir)
    return {line["step"]: line["learning_rate"] for line in lines}


def phase_ends(model_dir) -> dict[int, str]:
    return retention.phase_ends(retention.list_saved(model_dir))


def test_the_end_of_each_phase_is_kept_and_each_has_its_own_rates(whole, steps_made):
    assert saved_steps(whole) == [3, 6]
    assert phase_ends(whole) == {3: "first", 6: "second"}
    # Up from 0.02 to 0.05 in one step, then down by a half each; then always 0.03.
    expected = {1: 0.02, 2: 0.05, 3: 0.025, 4: 0.03, 5: 0.03, 6: 0.03}
    assert rates_in(whole) == pytest.approx(expected, rel=1e-6)
    # Each has a step of its own, made once.
    assert [phase.name for phase, _ in steps_made] == ["first", "second"]
    counts = [step._step.experimental_get_tracing_count() for _, step in steps_made]
    assert counts == [1, 1]


def test_a_run_that_mixes_accumulates_and_compresses_resumes_bit_for_bit(
    run, tmp_path, monkeypatch
):
    # Otherwise only the newest checkpoint has the residuals.
    monkeypatch.setattr(integrity, "drop_rank_files", lambda folder: None)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    settings = {"checkpoint_every": "4steps", "accumulation_steps": 3, "ratio": 0.05}
    settings |= {"compress": "layerwise", "method": "topk", "error_feedback": True}
    run(whole, FULL, keep_checkpoints=9, **settings)
    shutil.copytree(of_step(whole, 4), of_step(resumed, 4))
    run(resumed, FULL, keep_checkpoints=9, **settings)
    assert [line["step"] for line in read_metrics(resumed)] == [5, 6]
    stored = ("model/", "velocity/", "square/", "adam/", "ema/")
    assert_same(resumed, whole, 6, stored)
    left, expected = (
        tensors.load_rank(of_step(folder, 6), 0, 1) for folder in (resumed, whole)
    )
    assert sum(np.count_nonzero(residual) for residual in expected.values())
    for name, residual in expected.items():
        np.testing.assert_array_equal(left[name], residual, err_msg=name)


def test_a_run_that_is_preempted_in_each_phase_resumes_bit_for_bit(
    run, whole, tmp_path, caplog
):
    caplog.set_level("INFO")
    done = 0
    for step in (2, 5):
        with pytest.raises(Preempted, match=f"stopped after step {step}"):
            run(tmp_path, leave_after=step - done)
        assert saved_steps(tmp_path)[-1] == step
        done = step
    run(tmp_path, stop_after_steps=5)  # There is nothing left to do.
    assert "The training stops after --stop_after_steps=5; without" in caplog.text
    run(tmp_path)
    assert_same(tmp_path, whole, 6, ("model/", "velocity/", "ema/"))
    assert phase_ends(tmp_path) == {3: "first", 6: "second"}
    lines, expected = (
        [
            (line["step"], line["loss"], line["learning_rate"])
            for line in read_metrics(folder)
        ]
        for folder in (tmp_path, whole)
    )
    assert lines == expected


def test_a_fresh_phase_is_a_run_that_begins_with_weights_only(run, whole, tmp_path):
    weights = str(of_step(whole, 3))
    # Velocities that aren't forgotten are nothing new where there are none yet.
    run(tmp_path, KEEPING, first_phase="second", initial_weights=weights)
    assert list(rates_in(tmp_path)) == [4, 5, 6]
    assert phase_ends(tmp_path) == {6: "second"}
    assert_same(tmp_path, whole, 6, ("model/", "velocity/"))


def test_a_phase_without_a_reset_keeps_its_velocities(run, whole, tmp_path):
    run(tmp_path, KEEPING)
    assert_same(tmp_path, whole, 3, ("model/", "velocity/", "ema/"))
    with pytest.raises(AssertionError):
        assert_same(tmp_path, whole, 6, ("velocity/",))


def test_dgc_that_sends_all_values_is_momentum_also_where_it_is_reset(
    run, whole, tmp_path
):
    run(tmp_path, compress="layerwise", method="dgc", dense_below=10**9)
    found, expected = (tensors.load(one, 6).tensors for one in (tmp_path, whole))
    for name in found:
        if name.startswith("model/"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    own = tensors.load_rank(of_step(tmp_path, 6), 0, 1)
    assert np.any(own["velocity/classifier/kernel"])
