"""A run with random weights, whose network tests export, and its own predictions."""

import contextlib
import dataclasses
import io
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.records import manifest
from eval import export as program
from resnet.checkpoint import manager, restore, tensors
from resnet.config.config import Config, save_config
from resnet.data import record_files
from resnet.data.record_files import ExampleShard
from resnet.distributed.communicator import Communicator
from resnet.evaluation.evaluator import Evaluator
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from tests.in_process import Done, run
from tests.unit.jobs import job

ALONE = Communicator(ProcessInfo())


def images() -> list[bytes]:
    """Returns a dozen JPEGs that differ much, also in their sizes."""
    generator = np.random.default_rng(0)
    encoded = []
    for number in range(12):
        colors = generator.integers(0, 256, (2, 3, 3), np.uint8)
        size = (40 + 3 * number, 50 - number)
        file = io.BytesIO()
        Image.fromarray(colors).resize(size, Image.Resampling.NEAREST).save(
            file, "JPEG"
        )
        encoded.append(file.getvalue())
    return encoded


def save(model_dir: Path, config: Config, *steps: int) -> Config:
    """Saves checkpoints of weights that differ from their EMA; returns the settings.

    No variable has the value that it starts with, and classes differ between images.
    """
    config = dataclasses.replace(config, model_dir=str(model_dir))
    save_config(config)
    state = TrainState(config)
    generator = np.random.default_rng(1)
    for step in steps:
        for name, variable in state.tensors().items():
            values = generator.normal(0, 0.2, variable.shape)
            if "classifier" in name:
                values = generator.normal(0, 0.5, variable.shape)
            if name.endswith(("/gamma", "/moving_variance")):
                values = generator.uniform(0.5, 2, variable.shape)
            variable.assign(values)
        state.step = step
        tensors.save(model_dir, manager.take_snapshot(state, {}, ALONE), keep=9)
    return config


def evaluated(
    config: Config, records: Path, weights: str, split: str = "train", step: int = 20
) -> np.ndarray:
    """Returns the probabilities that evaluation computes for a split."""
    record_set = manifest.load(str(records), split)
    files = record_files.open_split(record_set, split)
    state = TrainState(config)
    restore.restore(state, tensors.load(Path(config.model_dir), step))
    shard = ExampleShard(files, 0, 1, files.num_examples)
    evaluator = Evaluator(state.model, shard, config, job())
    ensemble = evaluator.new_ensemble()
    with state.averaged_weights() if weights == "ema" else contextlib.nullcontext():
        evaluator.add_to(ensemble)
    ((logits, _, _),) = ensemble.batches(files.num_examples)
    return np.exp(logits)


def export(config: Config, kind: str, out: Path, *flags: str) -> Done:
    """Runs the program of exports with a run."""
    folders = (f"--model_dir={config.model_dir}", f"--out={out}")
    return run(program, *folders, f"--format={kind}", *flags)
