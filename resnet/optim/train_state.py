"""The state of a training run between two steps: model, optimizer, EMA, step."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from resnet import models
from resnet.config import phases, rounds
from resnet.config.config import Config
from resnet.config.networks import COMPUTE_DTYPES
from resnet.distributed.communicator import Communicator
from resnet.models.options import NetworkOptions
from resnet.optim import losses
from resnet.optim.optimizer import Optimizer, weight_penalty
from resnet.optim.slow_weights import Lookahead, OuterMomentum


class TrainState:
    """The state of a training run between two steps.

    Attributes:
        step: Number of steps done.
        optimizer: The optimizer, with the slots of each trainable variable.
        ema, lookahead: Exponential moving averages, and the slow weights of Lookahead,
            of all of the network's variables in their order; empty, and None, if the
            settings want none.
        rank_variables: Variables as large as the model that differ from rank to rank,
            by their stored names: what an exchange of compressed gradients keeps, such
            as the residuals of error feedback, or the velocities of a run with local
            SGD. Each rank saves its own.
        outer: What rounds of local SGD begin with, and the outer momentum; None if no
            phase has one and the changes of the weights aren't compressed.
        losses: Mean losses of the global batches since the last log line.
        best_value: The highest `best_metric` of the evaluations of this very state;
            None if it was not evaluated.
        num_log_lines: Number of lines that the run has logged in `metrics.jsonl`; None
            if that isn't known, as on all ranks except rank 0.
        saved_digest: That of this very state (`digests.digest_of_state`) if it was
            saved, or restored, and is equal on all ranks; else None.
        is_whole: Whether all of it is that after `step` steps; not from the first
            forward pass of a step, which moves BatchNorm's averages, to its end.
    """

    def __init__(self, config: Config, model: keras.Model | None = None) -> None:
        """Makes the state of a new run, with a new network unless one is passed.

        Raises:
            UserError: If `layer_rates` of a phase names layers that don't exist.
        """
        self.config = config
        self.step = 0
        self.losses: list[float] = []
        self.best_value: float | None = None
        self.num_log_lines: int | None = None
        self.saved_digest: int | None = None
        self.is_whole = True
        self.model = build_model(config) if model is None else model
        trained = dict(zip(self.names, self.trainable_variables, strict=True))
        dtype = tf.as_dtype(COMPUTE_DTYPES[config.precision])
        self.optimizer = Optimizer(trained, config, dtype)
        for phase in config.phases:  # Refused before the first step, and not in it.
            phases.factors_of(phase.layer_rates, self.names)
        self._is_local = any(phase.is_local for phase in config.phases)
        self.rank_variables: dict[str, tf.Variable] = (
            self.optimizer.velocities if self._is_local else {}
        )
        self.outer: OuterMomentum | None = None
        has_momentum = any(phase.outer_momentum for phase in config.phases)
        if has_momentum or (self._is_local and config.compress != "none"):
            self.outer = OuterMomentum(self.trainable_variables, has_momentum)
        self.ema: list[tf.Variable] = []
        if config.ema_decay:
            self.ema = [tf.Variable(variable) for variable in self._variables]
        self.lookahead: Lookahead | None = None
        if config.lookahead_every:
            self.lookahead = Lookahead(self._variables, config)

    def restart_averages(self) -> None:
        """Sets the EMA and the slow weights of Lookahead to the present weights."""
        for variable, average in zip(self._variables, self.ema, strict=False):
            average.assign(variable)
        if self.lookahead is not None:
            self.lookahead.begin()

    def begin_step(self) -> None:
        """Prepares the optimizers for a phase, if one begins with the next step."""
        if self.step not in phases.first_steps(self.config.phases):
            return
        is_reset = phases.resets_momentum_at(self.config.phases, self.step)
        if is_reset:
            self.optimizer.reset()
        if self.outer is not None:
            self.outer.begin(is_reset)

    def end_step(self) -> None:
        """Counts a step that has updated the weights, which Lookahead may then move."""
        self.step, self.best_value, self.saved_digest = self.step + 1, None, None
        if self.lookahead is not None:
            self.lookahead.after_step(self.step)

    @property
    def is_synchronized(self) -> bool:
        """Whether all ranks have the same weights, as at the end of a round."""
        return rounds.is_synchronized(self.config.phases, self.step)

    @property
    def own_variables(self) -> dict[str, tf.Variable]:
        """The variables that each rank saves for itself, by their stored names.

        In a round of local SGD the weights are among them.
        """
        if self.is_synchronized:
            return self.rank_variables
        weights = _named("weight", self.names, self.trainable_variables)
        return {**self.rank_variables, **weights}

    @property
    def names(self) -> list[str]:
        """Names of the trainable variables, such as `stage1_block1_1/kernel`."""
        return [variable.path for variable in self.model.trainable_variables]

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shapes of the trainable variables by their names."""
        pairs = zip(self.names, self.trainable_variables, strict=True)
        return {name: variable.shape.as_list() for name, variable in pairs}

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """The variables that the gradients are computed for."""
        return [variable.value for variable in self.model.trainable_variables]

    @property
    def _variables(self) -> list[tf.Variable]:
        return [variable.value for variable in self.model.variables]

    @property
    def named_averages(self) -> dict[str, tf.Variable]:
        """BatchNorm's moving means and variances, which differ from rank to rank.

        Their EMA and Lookahead's slow copies of them are among them, if there are any.
        They are those of `tensors`, by the same names.
        """
        endings = ("/moving_mean", "/moving_variance")
        tensors = self.tensors().items()
        return {name: tensor for name, tensor in tensors if name.endswith(endings)}

    @property
    def batch_norm_averages(self) -> list[tf.Variable]:
        """The variables of `named_averages`."""
        return list(self.named_averages.values())

    def weight_penalty(self) -> float:
        """Returns the weight-decay term of the loss, as of the last step done."""
        return weight_penalty(self.model, self.config, self.step)

    def tensors(self) -> dict[str, tf.Variable]:
        """Returns the variables that are equal on all ranks, by their stored names.

        BatchNorm's moving averages, and in a round of local SGD the weights, are equal
        inside `averaged_over_ranks`.
        """
        paths = [variable.path for variable in self.model.variables]
        tensors = _named("model", paths, self._variables)
        if not self._is_local:
            tensors |= self.optimizer.slots
        if self.outer is not None:
            tensors |= _named("outer_start", self.names, self.outer.starts)
            tensors |= _named("outer_velocity", self.names, self.outer.velocities)
        tensors |= _named("ema", paths, self.ema)
        slow = [] if self.lookahead is None else self.lookahead.slow
        return tensors | _named("slow", paths, slow)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Replaces the network's variables by their EMA inside the block."""
        with _restored_after(self._variables):
            for variable, average in zip(self._variables, self.ema, strict=True):
                variable.assign(average)
            yield


def _named(
    prefix: str, names: Iterable[str], variables: Sequence[tf.Variable]
) -> dict[str, tf.Variable]:
    """Returns variables, or none, by `prefix/name`."""
    pairs = zip(names, variables, strict=False)
    return {f"{prefix}/{name}": variable for name, variable in pairs}


def build_model(config: Config) -> keras.Model:
    """Returns a new network with the model, size, precision and seed of a run."""
    first = phases.first_step(config.phases, config.first_phase)
    phase = phases.at(config.phases, first)
    options = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(NetworkOptions)
        if hasattr(config, field.name)
    }
    options["compute_dtype"] = COMPUTE_DTYPES[config.precision]
    options["classifier_bias_init"] = losses.classifier_bias_init(
        phase, config.num_classes
    )
    return models.build(config.model, **options)


@contextlib.contextmanager
def averaged_over_ranks(
    variables: Sequence[tf.Variable], communicator: Communicator
) -> Iterator[None]:
    """Replaces variables by their mean over all ranks inside the block.

    Afterwards each rank has its own values again, so that the training doesn't depend
    on when it was evaluated or saved.
    """
    with _restored_after(variables):
        communicator.allreduce_mean(variables)
        yield


@contextlib.contextmanager
def _restored_after(variables: Sequence[tf.Variable]) -> Iterator[None]:
    own = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def flatten(variables: Sequence[tf.Variable]) -> np.ndarray:
    """Returns the values of variables as one array, `[num_values]`."""
    values = [variable.numpy().ravel() for variable in variables]
    return np.concatenate([np.empty(0, np.float32), *values])


def assign_flat(variables: Sequence[tf.Variable], values: np.ndarray) -> None:
    """Assigns the values that `flatten` returns, cast to the variables' dtypes."""
    ends = np.cumsum([variable.shape.num_elements() for variable in variables])
    parts = np.split(values, ends)[:-1]
    for variable, part in zip(variables, parts, strict=True):
        dtype = variable.dtype.as_numpy_dtype
        variable.assign(part.reshape(variable.shape).astype(dtype))
