"""What a run consists of between two steps, and its way to a checkpoint and back."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_prep.errors import UserError
from resnet import checkpoint_folders, checkpoints, models
from resnet.checkpoints import Checkpoint
from resnet.config import Config
from resnet.distributed import Communicator
from resnet.optim.optimizers import Momentum
from resnet.precision import COMPUTE_DTYPES

# Each rank normalizes by its own batches, so that its averages are its own as well.
AVERAGES_OF_RANKS = "batch_norm_averages_of_ranks"


class TrainState:
    """What a run consists of between two steps.

    Attributes:
        step: Steps done.
        model: The network.
        optimizer: With a velocity for each trainable variable.
        losses: Mean losses of the global batches since the last log line.
    """

    def __init__(self, config: Config) -> None:
        self.step = 0
        self.losses: list[float] = []
        self.model = build_model(config)
        self.optimizer = Momentum(
            self.trainable_variables,
            config.momentum,
            config.weight_decay,
            [decays(name) for name in self.names],
        )

    @property
    def names(self) -> list[str]:
        """Names of the trainable variables, such as `stage1_block1_1/kernel`."""
        return [variable.path for variable in self.model.trainable_variables]

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """What the gradients are for."""
        return [variable.value for variable in self.model.trainable_variables]

    @property
    def batch_norm_averages(self) -> list[tf.Variable]:
        """The moving means and variances, which each rank moves by its own batches."""
        return [variable.value for variable in self.model.non_trainable_variables]

    @property
    def decayed_variables(self) -> list[tf.Variable]:
        """Those of the trainable variables that decay."""
        pairs = zip(self.trainable_variables, self.names, strict=True)
        return [variable for variable, name in pairs if decays(name)]

    def tensors(self) -> dict[str, tf.Variable]:
        """Returns everything that all ranks have alike, by name.

        The moving averages are alike while `averaged_batch_norm` lasts.
        """
        velocities = zip(self.names, self.optimizer.velocities, strict=True)
        return {
            **{f"model/{one.path}": one.value for one in self.model.variables},
            **{f"velocity/{name}": velocity for name, velocity in velocities},
        }

    def assign(self, saved: Checkpoint) -> None:
        """Takes everything over from a checkpoint but what each rank has for itself.

        Raises:
            UserError: If it is that of another network.
        """
        tensors = self.tensors()
        ours = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        theirs = {
            name: array.shape
            for name, array in saved.tensors.items()
            if name != AVERAGES_OF_RANKS
        }
        if different := sorted(set(ours.items()) ^ set(theirs.items())):
            name = different[0][0]
            raise UserError(
                f"the checkpoint is not one of this {self.model.name}: {name!r} must"
                f" have the shape {ours.get(name)}; there it has {theirs.get(name)}"
            )
        for name, variable in tensors.items():
            variable.assign(saved.tensors[name])
        self.step = saved.step
        self.losses = list(saved.facts.get("losses", []))


def build_model(config: Config) -> keras.Model:
    """Returns a new network of the kind, size, precision and seed of a run."""
    return models.build(
        config.model,
        config.num_classes,
        config.image_size,
        config.batch_norm_decay,
        COMPUTE_DTYPES[config.precision],
        config.seed,
    )


def decays(name: str) -> bool:
    """Returns whether weight decay is for the variable of that name.

    It is for all but batch normalization's; the classifier's bias does decay.

    Source: tensorflow/tpu, models/official/resnet/resnet_main.py, resnet_model_fn.
    """
    return not name.endswith(("/gamma", "/beta"))


@contextlib.contextmanager
def averaged_batch_norm(
    state: TrainState, communicator: Communicator
) -> Iterator[None]:
    """While it lasts, all ranks have the mean of their moving averages.

    Evaluation and checkpoints want one network. Each rank then goes on with its own, so
    that the training doesn't depend on when it was evaluated or saved.
    """
    variables = state.batch_norm_averages
    own = [variable.numpy() for variable in variables]
    communicator.average_variables(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def take_snapshot(
    state: TrainState, facts: Mapping[str, Any], communicator: Communicator
) -> Checkpoint | None:
    """Returns all that a checkpoint holds, to rank 0; None to the others.

    The tensors are those of the variables themselves. The next update of a variable
    makes a new one, and leaves this one as it is.
    """
    own = _flat(state.batch_norm_averages)
    of_ranks = communicator.gather_rows(own) if communicator.num_ranks > 1 else None
    with averaged_batch_norm(state, communicator):
        if communicator.rank != 0:
            return None
        tensors = {name: one.read_value() for name, one in state.tensors().items()}
    if of_ranks is not None:
        tensors[AVERAGES_OF_RANKS] = of_ranks
    facts = {**facts, "num_ranks": communicator.num_ranks, "losses": list(state.losses)}
    return Checkpoint(state.step, tensors, facts)


def restore_newest(
    state: TrainState, model_dir: Path, communicator: Communicator
) -> None:
    """Takes over the newest whole checkpoint, if there is one, read by rank 0 for all.

    All ranks then have the same weights, also of a new run. On as many ranks as it was
    saved by, each has its own moving averages again, on others their mean.
    """
    of_ranks = None
    with communicator.together():
        if communicator.rank == 0:
            checkpoint_folders.remove_leftovers(model_dir)
            saved = checkpoints.load_newest(model_dir, set_aside=True)
            if saved is not None:
                state.assign(saved)
                of_ranks = saved.tensors.get(AVERAGES_OF_RANKS)
    state.step, state.losses = communicator.broadcast((state.step, state.losses))
    communicator.broadcast_variables(list(state.tensors().values()))
    if of_ranks is not None and len(of_ranks) != communicator.num_ranks:
        of_ranks = None
    own = communicator.scatter_rows(of_ranks)
    if own is not None:
        _assign_flat(state.batch_norm_averages, own)


def _flat(variables: list[tf.Variable]) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def _assign_flat(variables: list[tf.Variable], values: np.ndarray) -> None:
    ends = np.cumsum([variable.shape.num_elements() for variable in variables])
    parts = np.split(values, ends[:-1])
    for variable, part in zip(variables, parts, strict=True):
        variable.assign(part.reshape(variable.shape))
