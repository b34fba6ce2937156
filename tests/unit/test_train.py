import io
import json
import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.records import manifest
from resnet import train
from resnet.checkpoint import manager, tensors
from resnet.checkpoint.step_dirs import saved_steps
from resnet.config.config import Config, save_config
from resnet.data import input_pipeline, record_files
from resnet.data.example_shard import ExampleShard
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.evaluation import evaluations
from resnet.evaluation.evaluator import Result
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import jsonl, log
from resnet.runtime.preemption import Preempted
from resnet.train_state import TrainState
from tests import smallest

pytestmark = pytest.mark.usefixtures("one_block")

ALONE = Communicator(ProcessInfo())
NUM_EXAMPLES = 12
CLASSES = ("red", "green", "blue")
SETTINGS = {
    "seed": 3,
    "eval_batch_size": 5,
    "log_step_count_steps": 1,
    "global_batch_size": 6,
    "base_learning_rate": 0.01,
    "peak_learning_rate": 0.05,
    "train_steps": 6,
    "warmup_steps": 2,
    "weight_decay": 0.01,
    "batch_norm_momentum": 0.9,
    "label_smoothing": 0.0,
}


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(NUM_EXAMPLES, CLASSES, **SETTINGS)


@pytest.fixture(scope="module")
def records(tmp_path_factory, write_tiny_set) -> RecordFiles:
    """Noisy images, each brighter in the channel of its class, in two files."""
    generator = np.random.default_rng(0)
    images = []
    labels = [index % len(CLASSES) for index in range(NUM_EXAMPLES)]
    for label in labels:
        pixels = generator.integers(0, 150, (32, 32, 3))
        pixels[..., label] += 100
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
        images.append(file.getvalue())
    folder = tmp_path_factory.mktemp("records")
    write_tiny_set(folder, images, labels, CLASSES, [4, 8])
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


@pytest.fixture(scope="module")
def run(make_config, records) -> Callable[..., None]:
    """A function that trains in a folder."""

    def run(
        model_dir: pathlib.Path,
        share: ExampleShard | None = None,
        signals: Any = None,
        **changes: Any,
    ) -> None:
        own = make_config(
            *(NUM_EXAMPLES, CLASSES),
            **{**SETTINGS, "model_dir": str(model_dir), **changes},
        )
        share = share or ExampleShard(records, 0, 1, NUM_EXAMPLES)
        save_config(own)
        eval_share = share if own.mode == "train_and_eval" else None
        train.train_and_evaluate(own, share, eval_share, ALONE, 2, signals)

    return run


def lines(model_dir: pathlib.Path, kind: str) -> list[jsonl.Line]:
    found = jsonl.read(model_dir / jsonl.FILE)
    return [line for line in found if line["kind"] == kind]


def assert_same_weights(model_dir, other_model_dir, step: int) -> None:
    ours = tensors.load(model_dir, step).tensors
    expected = tensors.load(other_model_dir, step).tensors
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def values_of(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run of 6 steps without interruption."""
    model_dir = tmp_path_factory.mktemp("whole")
    run(model_dir, checkpoint_every="3", eval_every="4", mode="train_and_eval")
    return model_dir


def test_checkpoints_are_written_when_they_are_due_and_at_the_end(whole):
    # Every 3 steps, when one was evaluated, and at the end.
    assert saved_steps(whole) == [3, 4, 6]


def test_each_step_is_logged_with_its_rate(whole):
    found = lines(whole, "train")
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5, 6]
    # The line of step n is about the update from n - 1 to n: 0.01 up to 0.05 in two
    # steps, then down to 0 in four.
    rates = [line["learning_rate"] for line in found]
    assert rates == pytest.approx([0.01, 0.03, 0.05, 0.0375, 0.025, 0.0125])
    # Two steps of 6 examples are an epoch of 12.
    assert [line["epoch"] for line in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert all(math.isfinite(line["loss"]) for line in found)


@pytest.fixture(scope="module")
def every_fourth(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run that logs every 4 steps, without weight decay."""
    model_dir = tmp_path_factory.mktemp("every fourth")
    run(model_dir, log_step_count_steps=4, weight_decay=0.0)
    return model_dir


def test_lines_are_written_when_they_are_due_and_the_graph_is_made_once(
    run, every_fourth, tmp_path, monkeypatch
):
    make, made = train.TrainStep.of_run, []

    def remember(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(train.TrainStep, "of_run", remember)
    run(tmp_path, weight_decay=0.0, eval_every="2", mode="train_and_eval")
    (step,) = made
    assert step._step.experimental_get_tracing_count() == 1
    found, expected = lines(every_fourth, "train"), lines(tmp_path, "train")
    assert [line["step"] for line in expected] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in found] == [4, 6]
    # Each is the mean of the steps since the line before.
    each = [line["loss"] for line in expected]
    means = [sum(each[:4]) / 4, sum(each[4:]) / 2]
    assert [line["loss"] for line in found] == pytest.approx(means, rel=1e-5)


def test_lines_are_synced_before_a_checkpoint(run, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(log.AppendFile, "sync", lambda file: seen.append(0))
    monkeypatch.setattr(manager.CheckpointWriter, "submit", lambda *_: seen.append(1))
    run(tmp_path, checkpoint_every="1", train_steps=2, warmup_steps=0)
    assert seen == [0, 1, 0, 1]


def test_evaluations_are_logged_when_they_are_due_and_at_the_end(whole):
    found = lines(whole, "eval")
    assert [line["step"] for line in found] == [4, 6]
    assert [line["count"] for line in found] == [NUM_EXAMPLES] * 2
    assert all(0 <= line["top1"] <= line["top5"] <= 1 for line in found)
    assert found[-1]["top5"] == 1  # There are but three classes.


@pytest.mark.parametrize(
    ("eval_every", "steps"),
    [
        ("", [6]),
        ("4", [4, 6]),
        ("2steps", [2, 4, 6]),
        ("1epoch", [2, 4, 6]),  # Two steps of 6 examples are an epoch of 12.
        ("0.5 epochs", [1, 2, 3, 4, 5, 6]),
        ("100 epochs", [6]),
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
    run(
        model_dir,
        model=smallest.NETWORK,
        ema_decay=0.5,
        eval_every="4",
        mode="train_and_eval",
    )
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
    run(tmp_path, model=smallest.NETWORK, ema_decay=0.5)
    names = tensors.load(tmp_path, 6).tensors
    assert "ema/classifier/kernel" in names
    assert_same_weights(tmp_path, averaged, 6)


class Top1s:
    """In the place of an evaluator: finds what it is told to, time after time."""

    def __init__(self, *found: float) -> None:
        self.left = list(found)

    def __call__(self, *arguments: Any, **facts: Any) -> "Top1s":
        return self

    def evaluate(self, penalty: float) -> Result:
        return Result(self.left.pop(0), 1.0, loss=penalty, cross_entropy=0.0, count=12)


def test_a_run_ends_when_it_is_good_enough_and_then_has_nothing_left_to_do(
    run, tmp_path, monkeypatch
):
    def run_with(*found: float, **changes: Any) -> list[int]:
        evaluator = Top1s(*found)
        monkeypatch.setattr(evaluations, "Evaluator", evaluator)
        facts = {"model": smallest.NETWORK, "mode": "train_and_eval", "eval_every": "1"}
        run(tmp_path, **facts, **changes)
        assert evaluator.left == []
        return [line["step"] for line in lines(tmp_path, "eval")]

    assert run_with(0.25, 0.75, stop_at_top1=0.5) == [1, 2]
    assert saved_steps(tmp_path)[-1] == 2
    assert run_with(stop_at_top1=0.5) == [1, 2]
    # A higher aim continues the run; one that isn't reached ends with the steps.
    assert run_with(0.75, 0.9, stop_at_top1=0.875) == [1, 2, 3, 4]
    assert run_with(0.5, 0.25, stop_at_top1=0.9375) == [1, 2, 3, 4, 5, 6]


def test_a_trial_is_evaluated_only_if_it_is_asked_to(run, tmp_path, monkeypatch):
    facts = {"model": smallest.NETWORK, "mode": "train_and_eval"}
    evaluator = Top1s(0.25)
    monkeypatch.setattr(evaluations, "Evaluator", evaluator)
    run(tmp_path, **facts, stop_after_steps=2)
    assert evaluator.left == [0.25]
    run(tmp_path, **facts, eval_every="2", stop_after_steps=2)
    assert evaluator.left == []
    assert saved_steps(tmp_path)[-1] == 2


class Fails(Top1s):
    """An evaluator that is interrupted."""

    def evaluate(self, penalty: float) -> Result:
        raise KeyboardInterrupt


def test_an_evaluation_that_was_interrupted_is_done_again_and_no_step_with_it(
    run, tmp_path, monkeypatch
):
    facts = {"model": smallest.NETWORK, "mode": "train_and_eval", "eval_every": "2"}
    monkeypatch.setattr(evaluations, "Evaluator", Fails())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **facts)
    assert saved_steps(tmp_path) == [2]
    monkeypatch.setattr(evaluations, "Evaluator", Top1s(0.25, 0.5, 0.75))
    run(tmp_path, **facts)
    found = jsonl.read(tmp_path / jsonl.FILE)
    assert [(line["kind"], line["step"]) for line in found] == [
        *(("train", 1), ("train", 2), ("eval", 2)),
        *(("train", 3), ("train", 4), ("eval", 4)),
        *(("train", 5), ("train", 6), ("eval", 6)),
    ]
    assert tensors.load(tmp_path, 2).metadata["eval"]["top1"] == 0.25


def test_a_save_that_is_asked_for_in_a_round_waits_for_its_end(
    run, tmp_path, monkeypatch
):
    wanted = property(lambda manager: True)
    monkeypatch.setattr(manager.CheckpointManager, "wanted", wanted)
    run(tmp_path, sync_every=4, checkpoint_every="10minutes")
    assert saved_steps(tmp_path) == [4, 6]


def test_the_first_loss_is_near_that_of_guessing(config, whole):
    # ln 3, and the penalty of the weights: half of 0.01 times the sum of the squares.
    state = TrainState(config)
    squares = sum(
        float(np.square(one, dtype=np.float64).sum())
        for one in values_of(state.decayed_variables)
    )
    first = lines(whole, "train")[0]["loss"]
    # The classifier starts with weights of 0.01, so its logits are near zero.
    assert first - 0.005 * squares == pytest.approx(math.log(3), abs=0.3)


def test_going_on_from_a_checkpoint_ends_at_the_same_weights_bit_for_bit(
    run, whole, tmp_path
):
    shutil.copytree(
        whole / "checkpoints" / "step-00000003",
        tmp_path / "checkpoints" / "step-00000003",
    )
    run(tmp_path)
    assert saved_steps(tmp_path)[-1] == 6
    assert_same_weights(tmp_path, whole, 6)
    ours, expected = lines(tmp_path, "train"), lines(whole, "train")[3:]
    assert [(line["step"], line["loss"]) for line in ours] == [
        (line["step"], line["loss"]) for line in expected
    ]


def test_a_run_that_is_done_does_nothing_more(run, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "done")
    before = (tmp_path / "done" / jsonl.FILE).read_bytes()
    run(tmp_path / "done")
    assert (tmp_path / "done" / jsonl.FILE).read_bytes() == before
    assert saved_steps(tmp_path / "done") == [3, 4, 6]


def test_the_loss_falls(run, tmp_path):
    run(
        tmp_path,
        train_steps=20,
        log_step_count_steps=5,
        weight_decay=0.0,
        augmentation="none",
    )
    losses = [line["loss"] for line in lines(tmp_path, "train")]
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]


@pytest.fixture(scope="module")
def diverged(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run that ends since its loss is no number."""
    model_dir = tmp_path_factory.mktemp("diverged")
    rates = {"base_learning_rate": 1e30, "peak_learning_rate": 1e30}
    with pytest.raises(AgreedFailure, match="the training has diverged") as caught:
        run(model_dir, **rates, checkpoint_every="1")
    assert "diverged-step-0000" in str(caught.value)
    return model_dir


def test_a_run_that_diverges_saves_nothing_that_is_no_number(diverged):
    assert saved_steps(diverged)
    for step in saved_steps(diverged):
        for name, value in tensors.load(diverged, step).tensors.items():
            assert np.isfinite(value).all(), f"{name} of step {step}"


def test_what_made_the_loss_no_number_is_written_down(diverged):
    (path,) = diverged.glob("diverged-step-*.json")
    found = json.loads(path.read_text())
    (rank,) = found["ranks"]
    assert rank["rank"] == 0
    assert rank["loss"] in ("nan", "inf")
    first = lines(diverged, "train")[-1]["step"] + 1
    assert found["step"] == first
    # Two steps of 6 examples are an epoch of 12: with the other step's they are all.
    order = input_pipeline.examples_of_micro_batch(first - 1, 3, 0, 1, 6, NUM_EXAMPLES)
    assert rank["examples"] == order.tolist()


def test_a_preempted_run_saves_and_resumes_later_bit_for_bit(
    run, every_fourth, tmp_path
):
    class Signals:
        """A signal that comes while the first step is computed."""

        asked = 0

        @property
        def seen(self) -> str:
            self.asked += 1
            return "SIGTERM" if self.asked > 2 else ""

    settings = {"log_step_count_steps": 4, "weight_decay": 0.0}
    with pytest.raises(Preempted, match="stopped after step 2"):
        run(tmp_path, signals=Signals(), **settings)
    assert saved_steps(tmp_path) == [2]
    run(tmp_path, **settings)
    assert_same_weights(tmp_path, every_fourth, 6)
    found, expected = (
        [(line["step"], line["loss"]) for line in lines(folder, "train")]
        for folder in (tmp_path, every_fourth)
    )
    assert found == expected
    assert [step for step, _ in found] == [4, 6]


def test_a_run_that_is_preempted_before_it_begins_does_no_step(run, tmp_path):
    class Signals:
        seen = "SIGUSR1"

    with pytest.raises(Preempted, match="stopped before step 1"):
        run(tmp_path, signals=Signals())
    assert saved_steps(tmp_path) == []
