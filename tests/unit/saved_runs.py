"""Run folders with checkpoints, made without training."""

import dataclasses
from pathlib import Path

import numpy as np

from resnet.checkpoint import manager, tensors
from resnet.config.config import Config, save_config
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState

ALONE = Communicator(ProcessInfo())


def make_run(model_dir: Path, config: Config, steps: tuple[int, ...]) -> Config:
    """Saves checkpoints of random weights, other ones in each; returns the settings."""
    config = dataclasses.replace(config, model_dir=str(model_dir))
    save_config(config)
    state = TrainState(config)
    generator = np.random.default_rng(1)
    for step in steps:
        for variable in state.tensors().values():
            # Positive, as variances are; small, so that no probability is 1.
            variable.assign(generator.uniform(0.01, 0.2, variable.shape))
        state.step = step
        tensors.save(model_dir, manager.take_snapshot(state, {}, ALONE), keep=9)
    return config
