"""When a training evaluates, what it evaluates, and what follows from the result."""

import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from resnet.checkpoint import retention, tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.distributed.communicator import AgreedFailure
from resnet.evaluation import evaluations
from resnet.evaluation.evaluations import METRICS_KINDS
from resnet.evaluation.evaluator import Result
from resnet.metrics.class_metrics import ByClass
from resnet.optim.train_state import TrainState
from resnet.report import folder
from resnet.report.story import best_evaluation
from tests import smallest
from tests.main_run import read_metrics
from tests.unit import small_training
from tests.unit.small_training import (
    CLASSES,
    NUM_EXAMPLES,
    SETTINGS,
    assert_same_weights,
    lines,
    nothing_computed,  # noqa: F401 - pytest finds it.
    write_records,
)

NETWORK = {"model": smallest.NETWORK}
pytestmark = pytest.mark.usefixtures("one_block")


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory, write_tiny_set) -> Callable[..., bool]:
    """A function that trains in a folder."""
    folder = tmp_path_factory.mktemp("records")
    return small_training.runner(make_config, write_records(folder, write_tiny_set))


@pytest.mark.parametrize(
    ("eval_every", "steps"),
    [
        ("", [6]),
        ("4steps", [4, 6]),
        ("1epoch", [2, 4, 6]),  # Two steps of 6 examples are an epoch of 12.
        ("0.5 epochs", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_evaluations_are_due_as_the_settings_say_and_at_the_end(
    make_config, eval_every, steps
):
    settings = {**SETTINGS, "mode": "train_and_eval", "eval_every": eval_every}
    config = make_config(NUM_EXAMPLES, CLASSES, **settings)
    found = [step for step in range(7) if evaluations.is_due_after(config, step)]
    assert found == steps


@pytest.fixture(scope="module")
def averaged(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run with a moving average of the weights, evaluated twice."""
    model_dir = tmp_path_factory.mktemp("averaged")
    run(model_dir, **NETWORK, ema_decay=0.5, eval_every="4steps", mode="train_and_eval")
    return model_dir


def test_the_average_of_the_weights_is_evaluated_too(averaged):
    own, of_average = lines(averaged, "eval"), lines(averaged, "eval_ema")
    assert [line["step"] for line in own] == [4, 6]
    assert [line["step"] for line in of_average] == [4, 6]
    for one, other in zip(own, of_average, strict=True):
        assert one["count"] == other["count"] == NUM_EXAMPLES
        assert one["loss"] != other["loss"]
    metadata = tensors.load(averaged, 6).metadata
    for name, line in (("eval", own[-1]), ("eval_ema", of_average[-1])):
        assert metadata[name]["top1"] == pytest.approx(line["top1"], rel=1e-6)
        assert metadata[name]["loss"] == pytest.approx(line["loss"], rel=1e-6)


def test_evaluating_an_average_changes_nothing_about_the_training(
    run, averaged, tmp_path
):
    run(tmp_path, **NETWORK, ema_decay=0.5)
    names = tensors.load(tmp_path, 6).tensors
    assert "ema/classifier/kernel" in names
    assert_same_weights(tmp_path, averaged, 6)


def test_without_validation_training_images_are_evaluated_at_the_end(
    run, averaged, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(logging, "level_info", lambda: True)
    settings = {**NETWORK, "ema_decay": 0.5, "mode": "train_and_eval"}
    assert run(tmp_path, has_validation=False, **settings)
    (line,) = lines(tmp_path, "eval_train")
    (expected,) = (of for of in lines(averaged, "eval_ema") if of["step"] == 6)
    for name in ("step", "top1", "top5", "loss", "count"):  # Those of all 12 images.
        assert line[name] == pytest.approx(expected[name], rel=1e-6)
    assert lines(tmp_path, "eval") == lines(tmp_path, "eval_ema") == []
    assert not set(METRICS_KINDS.values()) & set(tensors.load(tmp_path, 6).metadata)
    assert "training images: top-1" in (printed := capfd.readouterr().err)
    assert "--validation_fraction=0.1" in printed
    run(tmp_path, has_validation=False, **settings)  # It is done, and says so again.
    assert len(lines(tmp_path, "eval_train")) == 1
    assert "training images: top-1" in capfd.readouterr().err


@pytest.mark.usefixtures("nothing_computed")
def test_an_evaluation_of_outputs_that_are_not_finite_ends_the_run(
    run, tmp_path, monkeypatch
):
    end_step = TrainState.end_step

    def end_and_damage(state: TrainState) -> None:
        end_step(state)
        if state.step == 4:  # A negative variance, whose root is NaN.
            variable = state.batch_norm_averages[-1]
            variable.assign(tf.fill(variable.shape, -9.0))

    monkeypatch.setattr(TrainState, "end_step", end_and_damage)
    words = "the raw weights after step 4 has failed.* not for 12 of 12 images"
    with pytest.raises(AgreedFailure, match=words):
        run(tmp_path, **NETWORK, eval_every="2steps", mode="train_and_eval")
    assert [line["step"] for line in lines(tmp_path, "eval")] == [2]


class Top1s:
    """In the place of an evaluator: finds what it is told to, time after time."""

    def __init__(self, *found: float) -> None:
        self.left = list(found)

    def __call__(self, *arguments: Any, **facts: Any) -> "Top1s":
        return self

    def evaluate(self, penalty: float) -> Result:
        return Result(self.left.pop(0), 1.0, loss=penalty, cross_entropy=0.0, count=12)


class MacroF1s(Top1s):
    """The same, of a macro F1: the top-1 is 1 less that."""

    def evaluate(self, penalty: float) -> Result:
        f1 = super().evaluate(penalty).top1
        right, whole = np.array([256 * f1]), np.array([256])
        by_class = ByClass(right, whole, whole)
        return Result(1 - f1, 1.0, penalty, 0.0, count=12, by_class=by_class)


@pytest.mark.usefixtures("nothing_computed")
def test_the_named_metric_decides_which_checkpoint_is_best_and_ends_the_run(
    run, tmp_path, monkeypatch
):
    facts = {**NETWORK, "mode": "train_and_eval", "eval_every": "1steps"}
    for metric, best_of_two, end in (("macro_f1", 2, 4), ("top1", 1, 3)):
        evaluator = MacroF1s(0.5, 0.75, 0.125, 0.875)
        monkeypatch.setattr(evaluations, "Evaluator", evaluator)
        model_dir = tmp_path / metric
        assert run(model_dir, **facts, best_metric=metric, stop_at=0.8125)
        saved = retention.list_saved(model_dir)
        assert saved[-1].step == end
        assert retention.best_step(saved) == end
        # Of the run, whose steps take no time, not all checkpoints may be written.
        config = {"best_metric": metric}
        two = [
            retention.Saved(
                step, {"config": config, "eval": {"macro_f1": f1, "top1": 1 - f1}}
            )
            for step, f1 in ((1, 0.5), (2, 0.75))
        ]
        assert retention.best_step(two) == best_of_two
        assert best_evaluation(folder.read(model_dir))["step"] == end


@pytest.mark.usefixtures("nothing_computed")
def test_a_run_ends_when_it_is_good_enough_and_then_has_nothing_left_to_do(
    run, tmp_path, monkeypatch
):
    def run_with(*found: float, **changes: Any) -> list[int]:
        evaluator = Top1s(*found)
        monkeypatch.setattr(evaluations, "Evaluator", evaluator)
        facts = {**NETWORK, "mode": "train_and_eval", "eval_every": "1steps"}
        assert run(tmp_path, **facts, **changes)  # It is complete.
        assert evaluator.left == []
        return [line["step"] for line in lines(tmp_path, "eval")]

    assert run_with(0.25, 0.75, stop_at=0.5) == [1, 2]
    assert saved_steps(tmp_path)[-1] == 2
    assert run_with(stop_at=0.5) == [1, 2]
    # A higher aim continues the run; it isn't reached, and the run ends with the steps.
    assert run_with(0.75, 0.8, 0.5, 0.25, stop_at=0.9375) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("nothing_computed")
def test_a_trial_is_evaluated_only_if_it_is_asked_to(run, tmp_path, monkeypatch):
    facts = {"model": smallest.NETWORK, "mode": "train_and_eval"}
    evaluator = Top1s(0.25)
    monkeypatch.setattr(evaluations, "Evaluator", evaluator)
    assert not run(tmp_path, **facts, stop_after_steps=2)
    assert evaluator.left == [0.25]
    assert not run(tmp_path, **facts, eval_every="2steps", stop_after_steps=2)
    assert evaluator.left == []
    assert saved_steps(tmp_path)[-1] == 2


@pytest.mark.usefixtures("nothing_computed")
def test_an_evaluation_that_was_interrupted_is_done_again_and_no_step_with_it(
    run, tmp_path, monkeypatch
):
    facts = {
        "model": smallest.NETWORK,
        "mode": "train_and_eval",
        "eval_every": "2steps",
    }
    evaluator = Top1s()
    evaluator.evaluate = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(evaluations, "Evaluator", evaluator)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **facts)
    assert saved_steps(tmp_path) == [2]
    monkeypatch.setattr(evaluations, "Evaluator", Top1s(0.25, 0.5, 0.75))
    run(tmp_path, **facts)
    found = read_metrics(tmp_path)
    assert [(line["kind"], line["step"]) for line in found] == [
        *(("train", 1), ("train", 2), ("eval", 2)),
        *(("train", 3), ("train", 4), ("eval", 4)),
        *(("train", 5), ("train", 6), ("eval", 6)),
    ]
    assert tensors.load(tmp_path, 2).metadata["eval"]["top1"] == 0.25


def test_the_network_has_each_of_its_weights_in_turn_and_then_its_own(make_config):
    state = TrainState(make_config(ema_decay=0.9))
    state.step = 30
    for variable in state.model.variables:
        variable.assign(tf.fill(variable.shape, 5.0))
    for average in state.ema:
        average.assign(tf.fill(average.shape, 7.0))
    kernel, *_ = state.trainable_variables
    seen = []

    class PreciseBN:
        def apply(self, step: int, num_ranks: int) -> None:
            seen.append((step, num_ranks, float(kernel[0, 0, 0, 0])))

    names = evaluations.weights_of(state)
    turns = evaluations.weights_in_turn(state, names, PreciseBN(), 3)
    values = {name: float(kernel[0, 0, 0, 0]) for name in turns}
    assert values == {"raw": 5, "ema": 7}
    assert seen == [(30, 3, 5), (30, 3, 7)]
    assert float(kernel[0, 0, 0, 0]) == 5
    assert evaluations.weights_of(TrainState(make_config())) == ["raw"]
