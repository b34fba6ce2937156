import dataclasses
import io
import json
import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep import manifest
from resnet import checkpoints, metrics_file, metrics_log, saving, train, train_state
from resnet import config as configs
from resnet.checkpoint_folders import saved_steps
from resnet.config import Config
from resnet.data import input_pipeline, record_files
from resnet.data.record_files import RecordFiles
from resnet.data.share import Share
from resnet.distributed import AgreedFailure, Communicator
from resnet.placement import Place
from resnet.stop_signals import Preempted
from resnet.train_state import TrainState

ALONE = Communicator(Place())
NUM_EXAMPLES = 12
CLASSES = ("red", "green", "blue")
VOTES = tf.constant([1.0, 0.0])


@pytest.fixture(scope="module")
def config(make_config) -> Config:
    return make_config(
        NUM_EXAMPLES,
        CLASSES,
        seed=3,
        eval_batch_size=5,
        log_step_count_steps=1,
        global_batch_size=6,
        base_learning_rate=0.01,
        peak_learning_rate=0.05,
        train_steps=6,
        warmup_steps=2,
        weight_decay=0.01,
        batch_norm_decay=0.9,
        label_smoothing=0.0,
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory, write_tiny_set) -> RecordFiles:
    """Noisy pictures, each brighter in the channel of its class, in two files."""
    generator = np.random.default_rng(0)
    pictures = []
    labels = [index % len(CLASSES) for index in range(NUM_EXAMPLES)]
    for label in labels:
        pixels = generator.integers(0, 150, (32, 32, 3))
        pixels[..., label] += 100
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
        pictures.append(file.getvalue())
    folder = tmp_path_factory.mktemp("records")
    write_tiny_set(folder, pictures, labels, CLASSES, [4, 8])
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


@pytest.fixture(scope="module")
def run(config, records) -> Callable[..., None]:
    """A function that trains in a folder."""

    def run(
        model_dir: pathlib.Path,
        share: Share | None = None,
        signals: Any = None,
        **changes: Any,
    ) -> None:
        own = dataclasses.replace(config, model_dir=str(model_dir), **changes)
        share = share or Share(records, 0, 1, NUM_EXAMPLES)
        configs.save(own)
        eval_share = share if own.mode == "train_and_eval" else None
        train.train(own, share, eval_share, ALONE, 2, signals)

    return run


def lines(model_dir: pathlib.Path, kind: str) -> list[metrics_file.Line]:
    found = metrics_file.read(model_dir / metrics_file.FILE)
    return [line for line in found if line["kind"] == kind]


def assert_same_weights(model_dir, other_model_dir, step: int) -> None:
    ours = checkpoints.load(model_dir, step).tensors
    expected = checkpoints.load(other_model_dir, step).tensors
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def batch() -> tuple[tf.Tensor, tf.Tensor]:
    images = np.random.default_rng(1).normal(size=(6, 32, 32, 3))
    return tf.constant(images, tf.float32), tf.constant([0, 1, 2, 0, 1, 2])


def values_of(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> pathlib.Path:
    """The folder of a run of 6 steps without interruption."""
    model_dir = tmp_path_factory.mktemp("whole")
    run(model_dir, checkpoint_every="3", steps_per_eval=4, mode="train_and_eval")
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


def test_the_graph_of_a_step_is_made_once(run, tmp_path, monkeypatch):
    make, made = train.make_train_step, []

    def remember(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(train, "make_train_step", remember)
    run(tmp_path, steps_per_eval=2, mode="train_and_eval")
    (step,) = made
    assert step.experimental_get_tracing_count() == 1


def test_lines_are_synced_before_a_checkpoint(run, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(metrics_log.AppendFile, "sync", lambda file: seen.append(0))
    monkeypatch.setattr(saving.CheckpointWriter, "submit", lambda *_: seen.append(1))
    run(tmp_path, checkpoint_every="1", train_steps=2)
    assert seen == [0, 1, 0, 1]


def test_evaluations_are_logged_when_they_are_due_and_at_the_end(whole):
    found = lines(whole, "eval")
    assert [line["step"] for line in found] == [4, 6]
    assert [line["count"] for line in found] == [NUM_EXAMPLES] * 2
    assert all(0 <= line["top1"] <= line["top5"] <= 1 for line in found)
    assert found[-1]["top5"] == 1  # There are but three classes.


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
    before = (tmp_path / "done" / metrics_file.FILE).read_bytes()
    run(tmp_path / "done")
    assert (tmp_path / "done" / metrics_file.FILE).read_bytes() == before
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


def test_a_run_that_diverges_ends_and_saves_nothing_that_is_no_number(run, tmp_path):
    with pytest.raises(AgreedFailure, match="the training has diverged"):
        run(
            tmp_path,
            base_learning_rate=1e30,
            peak_learning_rate=1e30,
            log_step_count_steps=6,
            checkpoint_every="4",
        )
    for step in saved_steps(tmp_path):
        for name, value in checkpoints.load(tmp_path, step).tensors.items():
            assert np.isfinite(value).all(), f"{name} of step {step}"


def test_one_step_is_that_of_the_formula(config):
    state = TrainState(config)
    variables = state.trainable_variables
    images, labels = batch()
    before = values_of(variables)
    averages = values_of(state.batch_norm_averages)
    with tf.GradientTape() as tape:
        logits = state.model(images, training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )
    gradients = tape.gradient(loss, variables)
    for variable, value in zip(state.batch_norm_averages, averages, strict=True):
        variable.assign(value)

    step = train.make_train_step(state.model, state.optimizer, state.names, 0.0, ALONE)
    ours, of_all, *votes = step(images, labels, tf.constant(0.1), VOTES)
    # The same sums in another order, and 20 layers of them: a thousandth of the
    # largest change of each variable.
    assert float(ours) == pytest.approx(float(loss), rel=1e-5)
    assert float(of_all) == float(ours)
    assert [float(vote) for vote in votes] == [1.0, 0.0]
    for name, variable, old, gradient in zip(
        state.names, variables, before, gradients, strict=True
    ):
        total = gradient.numpy()
        if name.rpartition("/")[2] not in ("gamma", "beta"):
            total = total + 0.01 * old
        change = 0.1 * (1 + 0.9) * total  # The velocity is the gradient at first.
        np.testing.assert_allclose(
            variable.numpy() - old,
            -change,
            rtol=1e-3,
            atol=1e-3 * abs(change).max() + 1e-7,
            err_msg=name,
        )
    moved = values_of(state.batch_norm_averages)
    assert all(
        not np.array_equal(new, old) for new, old in zip(moved, averages, strict=True)
    )


@pytest.mark.parametrize("model", ["resnet9", "resnet18"])
def test_one_pixel_that_is_no_number_makes_the_loss_none(make_config, model):
    state = TrainState(make_config(model=model))
    images = batch()[0].numpy()
    images[2, 5, 7, 1] = np.nan
    step = train.make_train_step(state.model, state.optimizer, state.names, 0.0, ALONE)
    own, of_all, *_ = step(images, batch()[1], tf.constant(0.1), VOTES)
    assert np.isnan(own)
    assert np.isnan(of_all)


def test_frozen_normalization_leaves_the_averages_and_moves_the_weights(config):
    state = TrainState(config)
    before = values_of(state.trainable_variables)
    averages = values_of(state.batch_norm_averages)
    step = train.make_train_step(
        state.model,
        state.optimizer,
        state.names,
        0.0,
        ALONE,
        freeze_batch_norm=True,
    )
    images, labels = batch()
    step(images, labels, tf.constant(0.1), VOTES)
    for new, old in zip(values_of(state.batch_norm_averages), averages, strict=True):
        np.testing.assert_array_equal(new, old)
    weights = dict(zip(state.names, values_of(state.trainable_variables), strict=True))
    old_weights = dict(zip(state.names, before, strict=True))
    for name in ("stem/kernel", "classifier/kernel", "classifier/bias"):
        assert not np.array_equal(weights[name], old_weights[name])


@pytest.mark.parametrize(
    ("name", "decays"),
    [
        ("stem/kernel", True),
        ("classifier/kernel", True),
        ("classifier/bias", True),
        ("stem/gamma", False),
        ("stage1_block1_2/beta", False),
    ],
)
def test_all_decay_but_normalization(name, decays):
    assert train_state.decays(name) is decays


def test_the_decayed_variables_are_those_that_the_optimizer_decays(config):
    state = TrainState(config)
    pairs = zip(state.optimizer.variables, state.optimizer.decays, strict=True)
    expected = [variable.name for variable, decays in pairs if decays]
    assert [variable.name for variable in state.decayed_variables] == expected
    # 21 kernels, the classifier's and its bias.
    assert len(expected) == 23


def test_a_new_run_begins_at_step_zero(config, tmp_path):
    state = TrainState(config)
    before = values_of(state.tensors().values())
    train_state.restore_newest(state, tmp_path, ALONE)
    assert state.step == 0
    for new, old in zip(values_of(state.tensors().values()), before, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("step", "every", "due"),
    [
        (1, 3, False),
        (3, 3, True),
        (4, 3, False),
        (6, 4, True),  # The last step.
        (6, 0, True),
        (3, 0, False),
    ],
)
def test_what_is_due_is_due_at_the_end_too(config, step, every, due):
    assert train._due(step, every, config) is due


def test_what_made_the_loss_no_number_is_written_down(run, tmp_path):
    with pytest.raises(AgreedFailure, match="diverged-step-0000"):
        run(tmp_path, base_learning_rate=1e30, peak_learning_rate=1e30)
    (path,) = tmp_path.glob("diverged-step-*.json")
    found = json.loads(path.read_text())
    (rank,) = found["ranks"]
    assert rank["rank"] == 0
    assert rank["loss"] in ("nan", "inf")
    first = lines(tmp_path, "train")[-1]["step"] + 1
    assert found["step"] == first
    # Two steps of 6 examples are an epoch of 12: with the other step's they are all.
    order = input_pipeline.examples_of_batch(first - 1, 3, 0, 1, 6, NUM_EXAMPLES)
    assert rank["examples"] == order.tolist()


def test_a_run_that_is_asked_to_leave_saves_and_goes_on_later_bit_for_bit(
    run, whole, tmp_path
):
    class Signals:
        """A signal that comes while the first step is computed."""

        asked = 0

        @property
        def seen(self) -> str:
            self.asked += 1
            return "SIGTERM" if self.asked > 2 else ""

    with pytest.raises(Preempted, match="stopped after step 2"):
        run(tmp_path / "left", signals=Signals(), log_step_count_steps=3)
    assert saved_steps(tmp_path / "left") == [2]
    run(tmp_path / "left", log_step_count_steps=3)
    assert_same_weights(tmp_path / "left", whole, 6)
    run(tmp_path / "not left", log_step_count_steps=3)
    found, expected = (
        [(line["step"], line["loss"]) for line in lines(tmp_path / name, "train")]
        for name in ("left", "not left")
    )
    assert found == expected
    assert [step for step, _ in found] == [3, 6]


def test_a_run_that_is_asked_to_leave_before_it_begins_does_no_step(run, tmp_path):
    class Signals:
        seen = "SIGUSR1"

    with pytest.raises(Preempted, match="stopped before step 1"):
        run(tmp_path, signals=Signals())
    assert saved_steps(tmp_path) == []
