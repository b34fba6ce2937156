"""What a run consists of between two steps, and its way to a checkpoint and back."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from data_prep.errors import UserError
from resnet import checkpoint_folders, checkpoints, installation, models, phases
from resnet import config as configs
from resnet.checkpoints import Checkpoint
from resnet.config import Config
from resnet.distributed import Communicator
from resnet.optim import losses
from resnet.optim.optimizers import Lars, Momentum
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
        top1: The highest that evaluating this very state has found; None if it wasn't.
        ema: Moving averages of all of the network's variables, in its order; empty if
            the settings want none.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.step = 0
        self.losses: list[float] = []
        self.top1: float | None = None
        self.model = build_model(config)
        self.optimizer = self._make_optimizer()
        self.ema: list[tf.Variable] = []
        if config.ema_decay:
            self.ema = [tf.Variable(one.value) for one in self.model.variables]

    def _make_optimizer(self) -> Momentum:
        config, variables = self.config, self.trainable_variables
        if config.optimizer == "momentum":
            decaying = [decays(name) for name in self.names]
            return Momentum(variables, decaying, config.nesterov)
        scaled = [decays(name) and not name.endswith("/bias") for name in self.names]
        return Lars(variables, scaled, config.nesterov, config.trust_coefficient)

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
        """The moving means and variances, which each rank moves by its own batches.

        Their own moving averages are among them, if there are any.
        """
        own = [variable.value for variable in self.model.non_trainable_variables]
        pairs = zip(self.model.variables, self.ema, strict=False)
        return own + [average for one, average in pairs if not one.trainable]

    @property
    def decayed_variables(self) -> list[tf.Variable]:
        """Those of the trainable variables that the optimizer decays."""
        pairs = zip(self.optimizer.variables, self.optimizer.decays, strict=True)
        return [variable for variable, decays in pairs if decays]

    def weight_penalty(self) -> float:
        """Returns what the weights add to the loss that is printed.

        It is that of the step done last, which may have ended a phase.
        """
        last_step = max(self.step - 1, 0)
        weight_decay = phases.at(self.config.phases, last_step).weight_decay
        return losses.weight_penalty(self.decayed_variables, weight_decay)

    def tensors(self) -> dict[str, tf.Variable]:
        """Returns everything that all ranks have alike, by name.

        The moving averages are alike while `averaged_batch_norm` lasts.
        """
        velocities = zip(self.names, self.optimizer.velocities, strict=True)
        return {
            **{f"model/{one.path}": one.value for one in self.model.variables},
            **{f"velocity/{name}": velocity for name, velocity in velocities},
            **{
                f"ema/{one.path}": average
                for one, average in zip(self.model.variables, self.ema, strict=False)
            },
        }

    def move_ema(self, decay: tf.Tensor) -> None:
        """Moves the averages towards the variables; to be called inside the graph.

        average = decay * average + (1 - decay) * variable

        Args:
            decay: float32 scalar.
        """
        for variable, average in zip(self.model.variables, self.ema, strict=False):
            average.assign_sub((1 - decay) * (average - variable.value))

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """While it lasts, the network has the moving averages for its variables."""
        own = [variable.value.numpy() for variable in self.model.variables]
        for variable, average in zip(self.model.variables, self.ema, strict=True):
            variable.value.assign(average)
        try:
            yield
        finally:
            for variable, value in zip(self.model.variables, own, strict=True):
                variable.value.assign(value)

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
        self.top1 = checkpoint_folders.best_top1(saved.facts)

    def take_weights(self, saved: Checkpoint) -> None:
        """Takes over only the network's variables, as a phase of Caffe's begins.

        Raises:
            UserError: If they are those of another network.
        """
        for variable in self.model.variables:
            found = saved.tensors.get(f"model/{variable.path}")
            if found is None or found.shape != tuple(variable.shape):
                raise UserError(
                    f"--initial_weights must be those of this {self.model.name}:"
                    f" {variable.path!r} must have the shape {tuple(variable.shape)};"
                    f" there it has {None if found is None else found.shape}"
                )
            variable.value.assign(found)
        for variable, average in zip(self.model.variables, self.ema, strict=False):
            average.assign(variable.value)


def ema_decay(config: Config, step: int) -> float:
    """Returns the decay of the moving average in one step.

    In the first steps that a run does it is lower, so that the weights it begins with
    are soon forgotten.

    Source: TensorFlow 1's ExponentialMovingAverage with num_updates.
    """
    done = step - phases.first_step(config.phases, config.first_phase)
    return min(config.ema_decay, (1 + done) / (10 + done))


def build_model(config: Config) -> keras.Model:
    """Returns a new network of the kind, size, precision and seed of a run."""
    return models.build(
        config.model,
        config.num_classes,
        config.image_size,
        config.batch_norm_decay,
        COMPUTE_DTYPES[config.precision],
        config.seed,
        config.zero_last_gamma,
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

    All ranks then have the same weights, also of a new run, which begins as the
    settings say. On as many ranks as it was saved by, each has its own moving averages
    again, on others their mean.
    """
    of_ranks = None
    with communicator.together():
        if communicator.rank == 0:
            checkpoint_folders.remove_leftovers(model_dir)
            saved = checkpoints.load_newest(model_dir, set_aside=True)
            if saved is None:
                _begin(state)
            else:
                check_is_same_run(saved, state.config)
                state.assign(saved)
                of_ranks = saved.tensors.get(AVERAGES_OF_RANKS)
    state.step, state.losses, state.top1 = communicator.broadcast(
        (state.step, state.losses, state.top1)
    )
    communicator.broadcast_variables(list(state.tensors().values()))
    if of_ranks is not None and len(of_ranks) != communicator.num_ranks:
        of_ranks = None
    own = communicator.scatter_rows(of_ranks)
    if own is not None:
        assign_flat(state.batch_norm_averages, own)


def check_is_same_run(saved: Checkpoint, config: Config) -> None:
    """Refuses a checkpoint of other settings; warns if it is of other programs.

    Raises:
        UserError: Naming what differs.
    """
    configs.refuse_other(configs.from_json(saved.facts["config"]), config)
    now, then = installation.describe(), saved.facts.get("installation", {})
    changed = [name for name, value in then.items() if now.get(name) != value]
    if changed:
        logging.warning(
            "the checkpoint of step %d was written with another %s: the results may"
            " differ in their last bits from those of a run that was not interrupted",
            saved.step,
            ", ".join(changed),
        )


def _begin(state: TrainState) -> None:
    """Begins a run where the settings say, with the weights that they name."""
    config = state.config
    state.step = phases.first_step(config.phases, config.first_phase)
    if config.initial_weights:
        state.take_weights(checkpoints.load_from(Path(config.initial_weights)))
    elif state.step:
        logging.warning(
            "the training begins with phase %s, at step %d, of a new network;"
            " --initial_weights names those of the phases before",
            config.first_phase,
            state.step,
        )


def _flat(variables: list[tf.Variable]) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def assign_flat(variables: Sequence[tf.Variable], values: np.ndarray) -> None:
    """Assigns to variables, one after the other, the parts of one long array."""
    ends = np.cumsum([variable.shape.num_elements() for variable in variables])
    parts = np.split(values, ends[:-1])
    for variable, part in zip(variables, parts, strict=True):
        dtype = variable.dtype.as_numpy_dtype
        variable.assign(part.reshape(variable.shape).astype(dtype))
