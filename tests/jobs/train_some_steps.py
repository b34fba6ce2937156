"""A program of the tests: trains on all ranks, and rank 0 writes down what came out.

train_some_steps.py RECORDS OUTPUT.npz STEPS FREEZE_BATCH_NORM ACCUMULATION_STEPS
"""

import os
import sys

import numpy as np

from data_prep.records import manifest
from resnet.config.resolve import resolve
from resnet.distributed import communicator as distributed
from resnet.hardware import placement
from resnet.recipes import digits
from resnet.runtime import startup


def main() -> None:
    records_dir, output, num_steps, freeze, num_parts = sys.argv[1:]
    place = placement.find_place(os.environ)
    communicator = distributed.connect(place)
    startup.settle_placement(place, communicator, 1, 1, 1)
    startup.start_tensorflow(communicator)
    from resnet import train_state
    from resnet.config.step_settings import StepSettings
    from resnet.data import batches, record_files
    from resnet.data.example_shard import shard_of_rank
    from resnet.distributed.gradient_exchange import GradientExchange
    from resnet.train_step import TrainStep

    records = record_files.open_split(manifest.load(records_dir, "train"), "train")
    given = {
        "model": "resnet18",
        "image_size": 32,
        "global_batch_size": 6,
        "train_steps": 20,
        "warmup_steps": 0,
        "peak_learning_rate": 0.02,
        "augmentation": "none",
        "seed": 3,
        "accumulation_steps": int(num_parts),
    }
    config = resolve(digits.DIGITS, given, records.num_examples, records.class_names)
    state = train_state.TrainState(config)
    if place.rank:  # What rank 0 sends must replace this.
        for variable in state.trainable_variables:
            variable.assign(variable + 1)
    communicator.broadcast_variables(list(state.tensors().values()))
    train_step = TrainStep(
        state,
        config.phases[0],
        GradientExchange(communicator.collectives, state.names),
        freeze_batch_norm=freeze == "True",
    )
    all_shards = [tuple(range(len(records.paths)))] * place.num_ranks
    share = shard_of_rank(records, all_shards, place.rank)
    train_batches = batches.training(config, share, place.num_ranks, 0, 1)
    for _ in range(int(num_steps)):
        for _ in range(int(num_parts) - 1):
            train_step.accumulate(next(train_batches))
        train_step(next(train_batches), StepSettings(0.02, 0.9, 0.9, 5e-5))

    def values(variables: list) -> np.ndarray:
        return np.concatenate([variable.numpy().ravel() for variable in variables])

    before = communicator.allgather(values(state.batch_norm_averages))
    with train_state.averaged_batch_norm(state, communicator):
        averaged = communicator.allgather(values(state.batch_norm_averages))
    outcome = {
        "weights": communicator.allgather(values(state.trainable_variables)),
        "averages_before": before,
        "averages_averaged": averaged,
        "averages_after": communicator.allgather(values(state.batch_norm_averages)),
    }
    if place.rank == 0:
        np.savez(output, **{name: np.stack(each) for name, each in outcome.items()})


main()
