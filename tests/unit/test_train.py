import json
import math
import pathlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from resnet.checkpoint import manager, tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.config.config import Config
from resnet.data import input_pipeline
from resnet.distributed.communicator import AgreedError, AgreedFailure
from resnet.metrics import metrics_log, progress
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState
from resnet.runtime.preemption import Preempted
from resnet.training import loop
from resnet.watchdog import history
from tests import smallest
from tests.unit import small_training
from tests.unit.small_training import (
    CLASSES,
    NUM_EXAMPLES,
    SETTINGS,
    LeaveAfter,
    assert_same_weights,
    lines,
    nothing_computed,  # noqa: F401 - pytest finds it.
    write_records,
)

pytestmark = pytest.mark.usefixtures("one_block")


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(NUM_EXAMPLES, CLASSES, **SETTINGS)


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory, write_tiny_set) -> Callable[..., bool]:
    """A function that trains in a folder."""
    folder = tmp_path_factory.mktemp("records")
    return small_training.runner(make_config, write_records(folder, write_tiny_set))


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run of 6 steps without interruption."""
    model_dir = tmp_path_factory.mktemp("whole")
    run(
        model_dir, checkpoint_every="3steps", eval_every="4steps", mode="train_and_eval"
    )
    return model_dir


def test_checkpoints_and_evaluations_are_made_when_they_are_due_and_at_the_end(whole):
    # Every 3 steps, when one was evaluated, and at the end.
    assert saved_steps(whole) == [3, 4, 6]
    found = lines(whole, "eval")
    assert [line["step"] for line in found] == [4, 6]
    assert [line["count"] for line in found] == [NUM_EXAMPLES] * 2
    assert all(0 <= line["top1"] <= line["top5"] <= 1 for line in found)
    assert found[-1]["top5"] == 1  # There are but three classes.


def test_each_step_is_logged_with_its_rate_and_loss(config, whole):
    found = lines(whole, "train")
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5, 6]
    # The line of step n is about the update from n - 1 to n: 0.01 up to 0.05 in two
    # steps, then down to 0 in four.
    rates = [line["learning_rate"] for line in found]
    assert rates == pytest.approx([0.01, 0.03, 0.05, 0.0375, 0.025, 0.0125])
    # Two steps of 6 examples are an epoch of 12.
    assert [line["epoch"] for line in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    # Near that of guessing, ln 3, and the penalty of the weights: the classifier starts
    # with weights of 0.01, so its logits are near zero.
    first = found[0]["cross_entropy"]
    assert first == pytest.approx(math.log(3), abs=0.3)
    # Both are of the weights before the step: first of the initial ones.
    penalty = TrainState(config).weight_penalty()
    assert found[0]["weight_penalty"] == pytest.approx(penalty, rel=1e-6)
    assert found[1]["weight_penalty"] != pytest.approx(penalty, rel=1e-6)


@pytest.fixture(scope="module")
def every_fourth(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run that logs every 4 steps, without weight decay."""
    model_dir = tmp_path_factory.mktemp("every fourth")
    run(model_dir, log_step_count_steps=4, weight_decay=0.0)
    return model_dir


def test_lines_are_written_when_they_are_due_and_the_graph_is_made_once(
    run, every_fourth, tmp_path, monkeypatch
):
    make, made = loop.TrainStep, []

    def remember(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(loop, "TrainStep", remember)
    run(tmp_path, weight_decay=0.0, eval_every="2steps", mode="train_and_eval")
    (step,) = made
    assert step._step.experimental_get_tracing_count() == 1
    found, expected = lines(every_fourth, "train"), lines(tmp_path, "train")
    assert [line["step"] for line in expected] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in found] == [4, 6]
    # Each is the mean of the steps since the line before.
    each = [line["loss"] for line in expected]
    means = [sum(each[:4]) / 4, sum(each[4:]) / 2]
    assert [line["loss"] for line in found] == pytest.approx(means, rel=1e-5)


@pytest.mark.usefixtures("nothing_computed")
def test_a_training_says_that_it_waits_for_its_input(
    run, tmp_path, monkeypatch, caplog
):
    def slowly(*arguments: Any) -> Iterator[Any]:
        for batch in read(*arguments):
            time.sleep(0.1)
            yield batch

    read = loop.batches.train_batches
    monkeypatch.setattr(loop.batches, "train_batches", slowly)
    run(tmp_path, train_steps=3, model=smallest.NETWORK, log_step_count_steps=3)
    (line,) = lines(tmp_path, "train")
    assert line["input_wait_share"] > 0.3
    assert caplog.text.count("waited for its input") == 1


@pytest.mark.usefixtures("nothing_computed")
def test_lines_are_synced_before_a_checkpoint(run, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(metrics_log.MetricsLog, "sync", lambda log: seen.append(0))
    monkeypatch.setattr(manager.CheckpointWriter, "submit", lambda *_: seen.append(1))
    run(tmp_path, checkpoint_every="1steps", train_steps=2, warmup_steps=0)
    assert seen == [0, 1, 0, 1]


@pytest.mark.usefixtures("nothing_computed")
def test_saves_are_not_in_the_images_per_second(run, tmp_path, monkeypatch):
    now, save = [1.0], manager.CheckpointManager.save

    def slow_save(*arguments) -> None:
        now[0] += 1000
        save(*arguments)

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(manager.CheckpointManager, "save", slow_save)
    end_step = TrainState.end_step

    def timed_step(state: TrainState) -> None:
        now[0] += 2
        end_step(state)

    monkeypatch.setattr(TrainState, "end_step", timed_step)
    facts = {"model": smallest.NETWORK, "log_step_count_steps": 3}
    run(tmp_path, checkpoint_every="1steps", **facts)
    # 6 images in 2 s; the first step isn't timed.
    speeds = [line["images_per_second"] for line in lines(tmp_path, "train")]
    assert speeds == [3.0, 3.0]


@pytest.mark.usefixtures("nothing_computed")
def test_a_save_that_is_asked_for_in_a_round_waits_for_its_end(
    run, tmp_path, monkeypatch
):
    wanted = property(lambda manager: True)
    monkeypatch.setattr(manager.CheckpointManager, "wanted", wanted)
    run(tmp_path, sync_every=4, checkpoint_every="10minutes")
    assert saved_steps(tmp_path) == [4, 6]


@pytest.mark.usefixtures("nothing_computed")
def test_the_record_log_of_another_run_is_refused_and_stays(run, tmp_path):
    log_folder = tmp_path / "log"
    facts = {"model": smallest.NETWORK, "record_log": str(log_folder)}
    run(tmp_path / "a", **facts, stop_after_steps=1)
    (path,) = log_folder.iterdir()
    before = path.read_bytes()
    with pytest.raises(AgreedError, match="without the log of another run"):
        run(tmp_path / "b", **facts)
    assert path.read_bytes() == before
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    run(tmp_path / "a", **facts, stop_after_steps=2)  # It starts again at step 0.
    (path,) = log_folder.iterdir()
    assert path.read_bytes().startswith(before)
    assert len(path.read_text().splitlines()) == 2


def test_a_run_that_diverges_saves_no_such_number_and_says_what_made_it(run, tmp_path):
    rates = {"base_learning_rate": 1e30, "peak_learning_rate": 1e30}
    words = "the training has diverged.*diverged-step-0000"
    with pytest.raises(AgreedFailure, match=words):
        run(tmp_path, **rates, checkpoint_every="1steps")
    assert saved_steps(tmp_path)
    for step in saved_steps(tmp_path):
        for name, value in tensors.load(tmp_path, step).tensors.items():
            assert np.isfinite(value).all(), f"{name} of step {step}"
    (path,) = tmp_path.glob("diverged-step-*.json")
    found = json.loads(path.read_text())
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["loss"] in ("nan", "inf")) == (0, True)
    first = lines(tmp_path, "train")[-1]["step"] + 1
    assert found["step"] == first
    order = input_pipeline.examples_of_micro_batch(first - 1, 3, 0, 1, 6, NUM_EXAMPLES)
    assert rank["examples"] == order.tolist()


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.parametrize("where", ["ema", "batch_norm_averages"])
def test_an_average_that_is_not_finite_is_not_saved_and_older_checkpoints_stay(
    run, tmp_path, monkeypatch, where
):
    """The loss shows neither."""
    end_step = TrainState.end_step

    def end_and_damage(state: TrainState) -> None:
        end_step(state)
        if state.step == 4:
            variable = getattr(state, where)[-1]
            variable.assign(np.full(variable.shape, np.nan))

    monkeypatch.setattr(TrainState, "end_step", end_and_damage)
    with pytest.raises(AgreedFailure, match="after step 4 is not finite on rank 0"):
        run(tmp_path, model=smallest.NETWORK, ema_decay=0.5, checkpoint_every="1steps")
    assert saved_steps(tmp_path)[-1] == 3


def test_a_preempted_run_saves_and_resumes_later_bit_for_bit(
    run, every_fourth, tmp_path
):
    settings = {"log_step_count_steps": 4, "weight_decay": 0.0}
    for calls_before, words, advice in (
        (0, "before step 1", "start again"),
        (2, "after step 2", "resume"),
        (0, "before step 3", "resume"),
    ):
        with pytest.raises(Preempted, match=f"stopped {words}") as stop:
            run(tmp_path, signals=LeaveAfter(calls_before), **settings)
        assert stop.value.advice.endswith(advice)
    assert saved_steps(tmp_path) == [2]
    run(tmp_path, **settings)
    assert_same_weights(tmp_path, every_fourth, 6)
    found, expected = (
        [(line["step"], line["loss"]) for line in lines(folder, "train")]
        for folder in (tmp_path, every_fourth)
    )
    assert found == expected
    assert [step for step, _ in found] == [4, 6]
    # Each start notes what it was, also those before a step.
    events, _ = history.read(tmp_path)
    starts = [event for event in events if event["event"] == "start"]
    assert [start["step"] for start in starts] == [0, 0, 2, 2]
    for start in starts:
        assert start["command"] == shlex.join(sys.argv)
        assert start["packages"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [
        # After a step, while the batch of another is read, and within a step.
        (progress.Progress, "show", 3, [3]),
        (loop, "_read_and_accumulate", 3, [2]),
        (TrainState, "end_step", 3, []),
    ],
)
def test_a_run_that_fails_saves_its_last_step_if_that_is_whole(
    run, whole, tmp_path, monkeypatch, request, owner, name, call, saved
):
    if saved != [2]:
        request.getfixturevalue("nothing_computed")

    def fail_at_that_call(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            raise OSError("an unexpected failure")
        return do(*arguments)

    calls, do = [], getattr(owner, name)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail_at_that_call)
        with pytest.raises(OSError, match="an unexpected failure"):
            run(tmp_path)
    assert saved_steps(tmp_path) == saved
    if saved == [2]:
        run(tmp_path)
        assert_same_weights(tmp_path, whole, 6)
        assert [line["loss"] for line in lines(tmp_path, "train")] == [
            line["loss"] for line in lines(whole, "train")
        ]


@pytest.mark.usefixtures("nothing_computed")
def test_a_failure_before_which_the_weights_became_infinite_saves_nothing(
    run, tmp_path, monkeypatch, caplog
):
    def spoil(log: RunLog, *_: Any) -> None:
        kernel = log._state.trainable_variables[0]
        kernel.assign(kernel * math.nan)
        raise MemoryError

    monkeypatch.setattr(RunLog, "step_done", spoil)
    with pytest.raises(MemoryError):
        run(tmp_path, model=smallest.NETWORK)
    assert saved_steps(tmp_path) == []
    assert "The state after step 1 can't be saved: " in caplog.text
