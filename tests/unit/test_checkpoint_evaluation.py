"""Which checkpoints are taken, and what becomes of those that can't be read."""

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from eval.checkpoint_evaluation import CheckpointEvaluation, Evaluation
from resnet import models
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, manager, step_dirs, tensors
from resnet.checkpoint.watch import CheckpointWatch
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.evaluation.evaluator import Result
from resnet.evaluation.top_classes import TopClasses
from resnet.hardware.placement import ProcessInfo
from resnet.models import layers
from resnet.models.options import NormOptions
from resnet.optim.train_state import TrainState

ALONE = Communicator(ProcessInfo())


class Evaluator:
    """Finds the first weight of the network, as the loss."""

    num_batches = 1

    def __init__(self, state: TrainState) -> None:
        self._state = state

    def loss(self) -> float:
        return float(self._state.trainable_variables[0].numpy().ravel()[0])

    def evaluate(
        self, penalty: float, report: Any, top: TopClasses | None = None
    ) -> Result:
        self._tell(top)
        return Result(0.0, 0.0, self.loss(), self.loss(), 1)

    def new_ensemble(self) -> list[float]:
        return []

    def add_to(self, ensemble: list[float], penalty: float, report: Any) -> None:
        ensemble.append(self.loss())

    def evaluate_ensemble(
        self, ensemble: list[float], top: TopClasses | None = None
    ) -> Result:
        self._tell(top)
        return Result(0.0, 0.0, sum(ensemble), sum(ensemble), 1)

    def _tell(self, top: TopClasses | None) -> None:
        """Adds one example, whose number is the loss."""
        if top is not None:
            one, row = np.array([round(self.loss())]), np.zeros((1, 1), np.int32)
            top.add(one, one, np.array([True]), row, row.astype(np.float32))


@pytest.fixture(scope="module")
def state(make_config) -> TrainState:
    """Of a run of 100 steps, whose network is one convolution and a classifier."""
    inputs = keras.Input((32, 32, 3))
    x = layers.ConvNorm(2, 1, 8, 0, "one", NormOptions(momentum=0.9))(inputs)
    network = keras.Model(inputs, layers.Classifier(3, 0, "classifier")(x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "build", lambda *_, **__: network)
        return TrainState(make_config(ema_decay=0.9, train_steps=100))


@pytest.fixture
def model_dir(tmp_path, state) -> Path:
    """Checkpoints of steps 10, 20 and 40, whose weights are their steps.

    Their moving averages are a thousand more.
    """
    for step in (10, 20, 40):
        save(tmp_path, state, step)
    return tmp_path


def save(model_dir: Path, state: TrainState, step: int, **metadata: Any) -> Path:
    for variable in state.model.variables:
        variable.assign(tf.fill(variable.shape, float(step)))
    for average in state.ema:
        average.assign(tf.fill(average.shape, 1000.0 + step))
    state.step = step
    snapshot = manager.take_snapshot(state, metadata, ALONE)
    return tensors.save(model_dir, snapshot, keep=10)


class Signals:
    seen = ""


def evaluation_of(
    model_dir: Path,
    state: TrainState,
    weights: tuple[str, ...] = ("raw",),
    keeps_predictions: bool = False,
) -> CheckpointEvaluation:
    state.config = dataclasses.replace(state.config, model_dir=str(model_dir))
    return CheckpointEvaluation(
        state, Evaluator(state), None, weights, keeps_predictions, ALONE
    )


def losses(evaluations: Iterator[Evaluation]) -> dict[str, float]:
    return {str(evaluation.what): evaluation.result.loss for evaluation in evaluations}


def watched(model_dir: Path, state: TrainState) -> Iterator[Evaluation]:
    watch = CheckpointWatch(model_dir, 0.002, ALONE, Signals(), 0.01)
    return evaluation_of(model_dir, state).each_from(watch)


def damage(model_dir: Path, step: int) -> None:
    (path,) = step_dirs.of_step(model_dir, step).glob("state.data*")
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)


def test_single_checkpoints_their_mean_and_their_ensemble(model_dir, state):
    evaluation = evaluation_of(model_dir, state, ("raw", "ema"))
    assert losses(evaluation.each_of([10, 40])) == {
        "step 10": 10,
        "step 10, EMA weights": 1010,
        "step 40": 40,
        "step 40, EMA weights": 1040,
    }
    assert losses(evaluation.mean_weights_of([10, 20, 40])) == {
        "mean weights of steps 10, 20, 40": np.float32(70 / 3),
        "mean weights of steps 10, 20, 40, EMA weights": np.float32(3070 / 3),
    }
    assert losses(evaluation.mean_predictions_of([10, 40])) == {
        "mean predictions of steps 10, 40": 50,
        "mean predictions of steps 10, 40, EMA weights": 2050,
    }


def test_each_evaluation_has_its_predictions_and_a_file_name(model_dir, state):
    evaluation = evaluation_of(model_dir, state, ("raw", "ema"), True)
    evaluations = [
        *evaluation.each_of([10]),
        *evaluation.mean_weights_of([10, 20]),
        *evaluation.mean_predictions_of([10, 20]),
    ]
    of_two = f"00000020-of-2-{zlib.crc32(b'10,20'):08x}"
    assert [evaluated.what.file_name for evaluated in evaluations] == [
        "step-00000010",
        "step-00000010-ema",
        f"mean-weights-{of_two}",
        f"mean-weights-{of_two}-ema",
        f"mean-predictions-{of_two}",
        f"mean-predictions-{of_two}-ema",
    ]
    tops = [evaluated.top.of_rank().examples.tolist() for evaluated in evaluations]
    assert tops[:4] == [[10], [1010], [15], [1015]]


def test_the_newest_is_the_newest_that_is_whole(model_dir, state):
    damage(model_dir, 40)
    evaluation = evaluation_of(model_dir, state)
    assert losses(evaluation.newest()) == {"step 20": 20}
    # One that is asked for by its step ends the evaluation.
    evaluations = evaluation.each_of([10, 40])
    assert next(evaluations).result.loss == 10
    with pytest.raises(UserError, match="step-00000040 can't be read"):
        next(evaluations)


def test_a_watch_skips_what_is_damaged_or_gone_and_ends_with_the_run(
    model_dir, state, monkeypatch, caplog
):
    save(model_dir, state, 100)
    damage(model_dir, 20)
    load = tensors.load

    def remove_first(folder: Path, step: int) -> Any:
        if step == 40:
            step_dirs.remove(step_dirs.of_step(folder, step))
        return load(folder, step)

    monkeypatch.setattr(tensors, "load", remove_first)
    assert losses(watched(model_dir, state)) == {"step 10": 10, "step 100": 100}
    assert "Skipping the checkpoint of step 20: the checkpoint " in caplog.text
    assert "Skipping the checkpoint of step 40: the run has removed it" in caplog.text


@pytest.mark.parametrize("name", ["eval", "eval_ema"])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_watch_ends_with_a_run_that_is_good_enough(model_dir, state, name, is_later):
    """Also if the run saves the result while the checkpoint is evaluated."""
    settings, good = {"stop_at": 0.75}, {name: {"top1": 0.75}}
    save(model_dir, state, 50, config=settings, **({} if is_later else good))
    seen = []
    for evaluated in watched(model_dir, state):
        seen.append(evaluated.result.loss)
        if is_later and seen[-1] == 50:
            save(model_dir, state, 50, config=settings, **good)
    assert seen == [10, 20, 40, 50]


def test_one_that_is_written_again_while_it_is_read_is_read_again(
    model_dir, state, monkeypatch, caplog
):
    save(model_dir, state, 100)
    load, loaded = tensors.load, []

    def write_again_meanwhile(folder: Path, step: int) -> Any:
        loaded.append(step)
        if loaded == [10, 20]:
            save(model_dir, state, 20)
            raise UserError("expected a checkpoint of step 20")
        return load(folder, step)

    monkeypatch.setattr(tensors, "load", write_again_meanwhile)
    assert list(losses(watched(model_dir, state)).values()) == [10, 20, 40, 100]
    assert loaded == [10, 20, 20, 40, 100]
    assert "Skipping" not in caplog.text


def test_a_run_that_was_good_enough_and_continues_has_not_ended(model_dir, state):
    good_enough = {"eval": {"top1": 0.75}, "config": {"stop_at": 0.5}}
    save(model_dir, state, 15, **good_enough)
    seen = []
    with pytest.raises(AgreedFailure, match="no new checkpoint has appeared"):
        seen.extend(found.result.loss for found in watched(model_dir, state))
    assert seen == [10, 15, 20, 40]


@pytest.mark.parametrize("is_of_later_format", [False, True])
def test_a_checkpoint_that_can_not_be_read_now_is_told_and_not_skipped(
    model_dir, state, monkeypatch, is_of_later_format
):
    load = tensors.load

    def fail_once(folder: Path, step: int) -> Any:
        if step == 20:
            raise UserError("the checkpoint of step 20 can't be read now")
        return load(folder, step)

    message = "can't be read now"
    if is_of_later_format:
        monkeypatch.setattr(integrity, "FORMAT", 3)
        save(model_dir, state, 50)
        monkeypatch.undo()
        message = "has the format 3"
    else:
        monkeypatch.setattr(tensors, "load", fail_once)
    with pytest.raises(UserError, match=message):
        losses(watched(model_dir, state))
