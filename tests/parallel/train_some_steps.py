"""Trains some steps as one of several ranks, or as one of a job of one."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.records import manifest
from resnet.config.phases import StepSettings
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.data import batches, record_files
from resnet.data.input_pipeline import Reading
from resnet.data.record_files import shard_of_rank
from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.optim import train_state
from resnet.training.train_step import TrainStep
from tests import smallest

NUM_STEPS = 5


def begin(
    communicator: Communicator, records_dir: Path, **settings: Any
) -> tuple[train_state.TrainState, Reading]:
    """Returns the state before step 1 of a small run, and what this rank reads."""
    records = record_files.open_split(manifest.load(str(records_dir), "train"), "train")
    given = {
        "model": smallest.NETWORK,
        "image_size": 32,
        "global_batch_size": 6,
        "train_steps": 20,
        "warmup_steps": 0,
        "peak_learning_rate": 0.02,
        "augmentation": "none",
        "seed": 3,
        **settings,
    }
    config = resolve(digits.DIGITS, given, records.num_examples, records.class_names)
    state = train_state.TrainState(config)
    if communicator.rank:  # What rank 0 sends must replace this.
        for variable in state.trainable_variables:
            variable.assign(variable + 1)
    communicator.broadcast_variables(list(state.tensors().values()))
    all_shards = [tuple(range(len(records.paths)))] * communicator.num_ranks
    share = shard_of_rank(records, all_shards, communicator.rank)
    return state, Reading.of_run(config, share, communicator.num_ranks, 1)


def train(
    communicator: Communicator,
    records_dir: Path,
    freeze_batch_norm: bool,
    num_parts: int = 1,
    optimizer: str = "momentum",
) -> dict[str, np.ndarray]:
    """Returns what the ranks' weights and averages are after five steps, of some parts.

    They are `weights`, `velocities`, and BatchNorm's averages before, while and after
    they are averaged over the ranks, `[num_ranks, n]` each; and `bytes_sent` in the
    last step, `[num_ranks, 1]`.
    """
    state, reading = begin(
        communicator, records_dir, accumulation_steps=num_parts, optimizer=optimizer
    )
    config = state.config
    phase = dataclasses.replace(config.phases[0], freeze_batch_norm=freeze_batch_norm)
    exchange = GradientExchange(communicator.collectives, state.names)
    train_step = TrainStep(state, phase, exchange)
    train_batches = batches.train_batches(reading)
    for _ in range(NUM_STEPS):
        for _ in range(num_parts - 1):
            train_step.accumulate(next(train_batches))
        result = train_step(next(train_batches), StepSettings(0.02, 0.9, 0.9, 5e-5))

    def values(variables: list) -> np.ndarray:
        return np.concatenate([variable.numpy().ravel() for variable in variables])

    before = communicator.allgather(values(state.batch_norm_averages))
    with train_state.averaged_over_ranks(state.batch_norm_averages, communicator):
        averaged = communicator.allgather(values(state.batch_norm_averages))
    velocities = list(state.optimizer.velocities.values())
    outcome = {
        "weights": communicator.allgather(values(state.trainable_variables)),
        "velocities": communicator.allgather(values(velocities)),
        "bytes_sent": communicator.allgather(np.array([result.account.bytes_sent])),
        "averages_before": before,
        "averages_averaged": averaged,
        "averages_after": communicator.allgather(values(state.batch_norm_averages)),
    }
    return {name: np.stack(each) for name, each in outcome.items()}
