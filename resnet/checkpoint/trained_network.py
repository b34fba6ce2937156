"""The network of a run with the weights of one of its checkpoints."""

from dataclasses import dataclass
from pathlib import Path

import keras

from resnet.base.errors import UserError
from resnet.checkpoint import tensors
from resnet.checkpoint.assignment import assign
from resnet.config.config import Config
from resnet.optim.train_state import build_model

# The first part of the names of a network's variables in a checkpoint.
_PREFIXES = {"raw": "model", "ema": "ema"}


@dataclass(frozen=True)
class TrainedNetwork:
    """A network, and where its weights come from.

    Attributes:
        model: The network.
        config: The settings of its run.
        step: The number of steps that it was trained for.
        weights: "raw", or "ema" for the exponential moving average of the weights.
    """

    model: keras.Model
    config: Config
    step: int
    weights: str


def load(
    config: Config, model_dir: Path, step: int | None = None, weights: str | None = None
) -> TrainedNetwork:
    """Returns the network of a run, with the statistics of the checkpoint.

    Args:
        config: The settings of the run.
        model_dir: The folder of the run.
        step: The step of the checkpoint; None for the newest one that is intact.
        weights: "raw" or "ema"; None for "ema" if the run has it, else "raw".

    Raises:
        UserError: If there is no such checkpoint, or it is corrupt, or has no such
            weights.
    """
    weights = weights or ("ema" if config.ema_decay else "raw")
    if step is None:
        saved = tensors.load_newest(model_dir)
        if saved is None:
            raise UserError(f"no checkpoint has been saved in {model_dir} yet.")
    else:
        saved = tensors.load(model_dir, step)
    model = build_model(config)
    prefix = _PREFIXES[weights]
    assign(
        {f"{prefix}/{variable.path}": variable.value for variable in model.variables},
        {
            name: value
            for name, value in saved.tensors.items()
            if name.startswith(f"{prefix}/")
        },
        f"the checkpoint is not one of this {model.name}",
    )
    return TrainedNetwork(model, config, saved.step, weights)
