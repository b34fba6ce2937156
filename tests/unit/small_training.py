"""A run of 6 steps on 12 images in this process, for tests of the training loop."""

import io
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep.records import manifest
from resnet.checkpoint import tensors
from resnet.config.config import Config, save_config
from resnet.config.phases import Phase
from resnet.data import record_files
from resnet.data.input_pipeline import Batch
from resnet.data.record_files import ExampleShard, RecordFiles
from resnet.exchange.account import ExchangeAccount
from resnet.metrics import jsonl
from resnet.runtime.job import Run
from resnet.training import loop
from resnet.training.train_step import StepResult
from tests.unit.jobs import job

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


class LeaveAfter:
    """A signal that comes while a step is computed; at once, if that is step 0."""

    def __init__(self, step: int) -> None:
        self._asked, self._step = 0, step

    @property
    def seen(self) -> str:
        self._asked += 1  # Once before the first step, and then in each.
        return "SIGTERM" if self._asked > self._step else ""


class QuickStep:
    """In the place of a step of training: it computes nothing."""

    is_traced = True

    def __init__(self, state: Any, phase: Phase, exchange: Any) -> None:
        self.phase, self._state = phase, state

    def __call__(
        self,
        last: Batch,
        settings: Any,
        stop_requested: bool,
        save_requested: bool,
        gradients: Any = None,
        wants_digest: bool = False,
    ) -> StepResult:
        self._state.is_whole = False
        account = ExchangeAccount(0, 0, 0, 0, 0)
        return StepResult(1.0, 1.0, stop_requested, save_requested, account)


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has trainings neither read nor compute, where only what is due matters."""
    examples = tf.range(6, dtype=tf.int64)
    batch = Batch(None, None, examples, examples >= 0, None)
    monkeypatch.setattr(loop, "TrainStep", QuickStep)
    monkeypatch.setattr(
        loop.batches, "train_batches", lambda *_: itertools.repeat(batch)
    )


def write_records(
    folder: pathlib.Path, write_tiny_set: Callable[..., None]
) -> RecordFiles:
    """Writes noisy images, each brighter in the channel of its class, in two files."""
    generator = np.random.default_rng(0)
    images = []
    labels = [index % len(CLASSES) for index in range(NUM_EXAMPLES)]
    for label in labels:
        pixels = generator.integers(0, 150, (32, 32, 3))
        pixels[..., label] += 100
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
        images.append(file.getvalue())
    write_tiny_set(folder, images, labels, CLASSES, [4, 8])
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


def runner(
    make_config: Callable[..., Config], records: RecordFiles
) -> Callable[..., bool]:
    """Returns a function that trains in a folder."""

    def run(
        model_dir: pathlib.Path,
        signals: Any = None,
        has_validation: bool = True,
        **changes: Any,
    ) -> bool:
        own = make_config(
            *(NUM_EXAMPLES, CLASSES),
            **{**SETTINGS, "model_dir": str(model_dir), **changes},
        )
        shard = ExampleShard(records, 0, 1, NUM_EXAMPLES)
        save_config(own)
        is_evaluated = has_validation and own.mode == "train_and_eval"
        eval_shard = shard if is_evaluated else None
        return loop.train_and_evaluate(
            Run(own, shard, eval_shard), job(signals=signals)
        )

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
