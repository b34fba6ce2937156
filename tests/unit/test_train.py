import dataclasses
import io
import math
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep import tfrecord_format
from resnet import checkpoints, metrics_file, recipes, train
from resnet import config as configs
from resnet.config import Config
from resnet.data.record_files import RecordFiles
from resnet.distributed import Communicator
from resnet.placement import Place
from resnet.train import TrainState

ALONE = Communicator(Place())
NUM_EXAMPLES = 12
CLASSES = ("red", "green", "blue")

CONFIG = configs.resolve(
    recipes.DIGITS,
    {
        "precision": "float32",
        "seed": 3,
        "data_dir": "records",
        "model_dir": "model",
        "mode": "train",
        "eval_batch_size": 5,
        "steps_per_eval": 0,
        "log_step_count_steps": 1,
        "checkpoint_every": 0,
        "keep_checkpoints": 5,
        "num_parallel_calls": 0,
        "global_batch_size": 6,
        "base_learning_rate": 0.01,
        "peak_learning_rate": 0.05,
        "train_steps": 6,
        "warmup_steps": 2,
        "weight_decay": 0.01,
        "batch_norm_decay": 0.9,
        "label_smoothing": 0.0,
    },
    num_train_examples=NUM_EXAMPLES,
    class_names=CLASSES,
)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> RecordFiles:
    """Noisy pictures, each brighter in the channel of its class."""
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("records") / "train-00000-of-00001"
    offsets = []
    data = b""
    for index in range(NUM_EXAMPLES):
        label = index % len(CLASSES)
        pixels = generator.integers(0, 150, (32, 32, 3))
        pixels[..., label] += 100
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
        offsets.append(len(data))
        data += tfrecord_format.frame_record(
            tfrecord_format.image_example(
                file.getvalue(),
                height=32,
                width=32,
                label=label + 1,
                class_name=CLASSES[label],
                filename=f"{index}.jpg",
            )
        )
    path.write_bytes(data)
    return RecordFiles(
        paths=(str(path),),
        file_of_example=np.zeros(NUM_EXAMPLES, np.int32),
        offset_of_example=np.array(offsets, np.int64),
        first_label=1,
        class_names=CLASSES,
    )


def run(records: RecordFiles, model_dir: pathlib.Path, **changes) -> Config:
    """Trains in a folder."""
    config = dataclasses.replace(CONFIG, model_dir=str(model_dir), **changes)
    evaluates = config.mode == "train_and_eval"
    configs.save(config)
    train.train(config, records, records if evaluates else None, ALONE, 2)
    return config


def lines(model_dir: pathlib.Path, kind: str) -> list[metrics_file.Line]:
    found = metrics_file.read(model_dir / metrics_file.FILE)
    return [line for line in found if line["kind"] == kind]


def assert_same_weights(model_dir, other_model_dir, step: int) -> None:
    ours = checkpoints.load(model_dir, step)
    expected = checkpoints.load(other_model_dir, step)
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def batch() -> tuple[tf.Tensor, tf.Tensor]:
    images = np.random.default_rng(1).normal(size=(6, 32, 32, 3))
    return tf.constant(images, tf.float32), tf.constant([0, 1, 2, 0, 1, 2])


def values_of(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


@pytest.fixture(scope="module")
def whole(records, tmp_path_factory) -> pathlib.Path:
    """The folder of a run of 6 steps without interruption."""
    model_dir = tmp_path_factory.mktemp("whole")
    run(records, model_dir, checkpoint_every=3, steps_per_eval=4, mode="train_and_eval")
    return model_dir


def test_checkpoints_are_written_when_they_are_due_and_at_the_end(whole):
    assert checkpoints.saved_steps(whole) == [3, 6]


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


def test_evaluations_are_logged_when_they_are_due_and_at_the_end(whole):
    found = lines(whole, "eval")
    assert [line["step"] for line in found] == [4, 6]
    assert [line["count"] for line in found] == [NUM_EXAMPLES] * 2
    assert all(0 <= line["top1"] <= line["top5"] <= 1 for line in found)
    assert found[-1]["top5"] == 1  # There are but three classes.


def test_the_first_loss_is_near_that_of_guessing(whole):
    # ln 3, and the penalty of the weights: half of 0.01 times the sum of the squares.
    state = TrainState(CONFIG)
    squares = sum(
        float(np.square(one, dtype=np.float64).sum())
        for one in values_of(state.decayed_variables)
    )
    first = lines(whole, "train")[0]["loss"]
    # The classifier starts with weights of 0.01, so its logits are near zero.
    assert first - 0.005 * squares == pytest.approx(math.log(3), abs=0.3)


def test_going_on_from_a_checkpoint_ends_at_the_same_weights_bit_for_bit(
    records, whole, tmp_path
):
    shutil.copytree(
        whole / "checkpoints" / "step-00000003",
        tmp_path / "checkpoints" / "step-00000003",
    )
    run(records, tmp_path)
    assert checkpoints.saved_steps(tmp_path)[-1] == 6
    assert_same_weights(tmp_path, whole, 6)
    ours, expected = lines(tmp_path, "train"), lines(whole, "train")[3:]
    assert [(line["step"], line["loss"]) for line in ours] == [
        (line["step"], line["loss"]) for line in expected
    ]


def test_a_run_that_is_done_does_nothing_more(records, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "done")
    before = (tmp_path / "done" / metrics_file.FILE).read_bytes()
    run(records, tmp_path / "done")
    assert (tmp_path / "done" / metrics_file.FILE).read_bytes() == before
    assert checkpoints.saved_steps(tmp_path / "done") == [3, 6]


def test_the_loss_falls(records, tmp_path):
    run(
        records,
        tmp_path,
        train_steps=20,
        log_step_count_steps=5,
        weight_decay=0.0,
        augmentation="none",
    )
    losses = [line["loss"] for line in lines(tmp_path, "train")]
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_that_diverges_ends_and_saves_nothing_that_is_no_number(
    records, tmp_path
):
    with pytest.raises(FloatingPointError, match="the training has diverged"):
        run(
            records,
            tmp_path,
            base_learning_rate=1e30,
            peak_learning_rate=1e30,
            log_step_count_steps=6,
            checkpoint_every=4,
        )
    for step in checkpoints.saved_steps(tmp_path):
        for name, value in checkpoints.load(tmp_path, step).items():
            assert np.isfinite(value).all(), f"{name} of step {step}"


def test_one_step_is_that_of_the_formula():
    state = TrainState(CONFIG)
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
    ours = step(images, labels, tf.constant(0.1))
    # The same sums in another order, and 20 layers of them: a thousandth of the
    # largest change of each variable.
    assert float(ours) == pytest.approx(float(loss), rel=1e-5)
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


def test_frozen_normalization_leaves_the_averages_and_moves_the_weights():
    state = TrainState(CONFIG)
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
    step(images, labels, tf.constant(0.1))
    for new, old in zip(values_of(state.batch_norm_averages), averages, strict=True):
        np.testing.assert_array_equal(new, old)
    weights = dict(zip(state.names, values_of(state.trainable_variables), strict=True))
    old_weights = dict(zip(state.names, before, strict=True))
    for name in ("stem_conv/kernel", "classifier/kernel", "classifier/bias"):
        assert not np.array_equal(weights[name], old_weights[name])


@pytest.mark.parametrize(
    ("name", "decays"),
    [
        ("stem_conv/kernel", True),
        ("classifier/kernel", True),
        ("classifier/bias", True),
        ("stem_norm/gamma", False),
        ("stage1_block1_2_norm/beta", False),
    ],
)
def test_all_decay_but_normalization(name, decays):
    assert train.decays(name) is decays


def test_the_decayed_variables_are_those_that_the_optimizer_decays():
    state = TrainState(CONFIG)
    pairs = zip(state.optimizer.variables, state.optimizer.decays, strict=True)
    expected = [variable.name for variable, decays in pairs if decays]
    assert [variable.name for variable in state.decayed_variables] == expected
    # 21 kernels, the classifier's and its bias.
    assert len(expected) == 23


def test_a_new_run_begins_at_step_zero(tmp_path):
    state = TrainState(CONFIG)
    before = values_of(state.tensors().values())
    train.restore_newest(state, tmp_path, ALONE)
    assert state.step == 0
    for new, old in zip(values_of(state.tensors().values()), before, strict=True):
        np.testing.assert_array_equal(new, old)


def test_the_mean_loss_is_that_of_steps_and_ranks():
    class TwoRanks(Communicator):
        def sum(self, values: np.ndarray) -> np.ndarray:
            return values + 5.0  # The other rank's mean.

    local_losses = [tf.constant(1.0), tf.constant(2.0)]
    assert train.mean_loss(local_losses, 2, ALONE) == 1.5
    ranks = TwoRanks(Place(0, 2, 0, 2))
    assert train.mean_loss(local_losses, 2, ranks) == 3.25


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_the_training(bad):
    local_losses = [tf.constant(1.0), tf.constant(bad), tf.constant(1.0)]
    with pytest.raises(FloatingPointError, match="in the steps up to 30"):
        train.mean_loss(local_losses, 30, ALONE)


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
def test_what_is_due_is_due_at_the_end_too(step, every, due):
    assert train._due(step, every, CONFIG) is due


def test_a_checkpoint_an_epoch_is_at_least_a_step_apart():
    assert train._an_epoch(CONFIG) == 2
    small = dataclasses.replace(CONFIG, num_train_examples=2)
    assert train._an_epoch(small) == 1
