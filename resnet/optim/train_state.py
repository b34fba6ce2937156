"""The state of a training run between two steps: model, optimizer, EMA, step."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from resnet import models
from resnet.config import phases, rounds
from resnet.config.config import Config
from resnet.config.networks import COMPUTE_DTYPES
from resnet.config.optimizers import OPTIMIZERS
from resnet.distributed.communicator import Communicator
from resnet.optim import losses, muon
from resnet.optim.lookahead import Lookahead
from resnet.optim.optimizer import Optimizer, has_weight_decay
from resnet.optim.outer_momentum import OuterMomentum


class TrainState:
    """The state of a training run between two steps.

    Attributes:
        config: The run's settings.
        step: Number of steps done.
        model: The network.
        optimizer: The optimizer, with a momentum buffer for each trainable variable.
        ema: Exponential moving averages of all of the network's variables, in their
            order; empty if the settings want none.
        lookahead: The slow weights of Lookahead, for all of the network's variables in
            their order; None if the settings want none.
        rank_variables: Variables as large as the model that differ from rank to rank,
            by their stored names; empty unless the ranks have such state. Each rank
            saves its own. They are what an exchange of compressed gradients keeps, such
            as the residuals of error feedback, or in a run with local SGD the
            velocities.
        outer: The outer momentum of local SGD; None if no phase has one.
        losses: Mean losses of the global batches since the last log line.
        top1: The highest top-1 of the evaluations of this very state; None if it was
            not evaluated.
        num_log_lines: Number of lines that the run has logged in `metrics.jsonl`; None
            if that isn't known, as on all ranks except rank 0.
    """

    def __init__(self, config: Config, model: keras.Model | None = None) -> None:
        """Makes the state of a new run.

        Args:
            model: The network; None for a new one.

        Raises:
            UserError: If `layer_rates` of a phase names layers that don't exist.
        """
        self.config = config
        self.step = 0
        self.losses: list[float] = []
        self.top1: float | None = None
        self.num_log_lines: int | None = None
        self.model = build_model(config) if model is None else model
        trained = dict(zip(self.names, self.trainable_variables, strict=True))
        self.optimizer = Optimizer(trained, config)
        for phase in config.phases:  # Refused before the first step, and not in it.
            phases.factors_of(phase.layer_rates, self.names)
        self.rank_variables: dict[str, tf.Variable] = {}
        self._is_local = any(phase.is_local for phase in config.phases)
        if self._is_local:
            self.rank_variables |= self.optimizer.velocities
        self.outer: OuterMomentum | None = None
        if any(phase.outer_momentum for phase in config.phases):
            self.outer = OuterMomentum(self.trainable_variables)
        self.ema: list[tf.Variable] = []
        if config.ema_decay:
            self.ema = [
                tf.Variable(variable.value) for variable in self.model.variables
            ]
        self.lookahead: Lookahead | None = None
        if config.lookahead_every:
            own = [variable.value for variable in self.model.variables]
            self.lookahead = Lookahead(own, config)

    def restart_averages(self) -> None:
        """Sets the EMA and the slow weights of Lookahead to the present weights."""
        for variable, average in zip(self.model.variables, self.ema, strict=False):
            average.assign(variable.value)
        if self.lookahead is not None:
            self.lookahead.begin()

    def begin_run(self) -> None:
        """Prepares the initial weights of a new run for its optimizer."""
        if self.config.optimizer == "muon":
            muon.normalize_kernels(self.model)
            self.restart_averages()

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
        self.step, self.top1 = self.step + 1, None
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
        weights = zip(self.names, self.trainable_variables, strict=True)
        return {
            **self.rank_variables,
            **{f"weight/{name}": variable for name, variable in weights},
        }

    def _outer_variables(self) -> dict[str, tf.Variable]:
        if self.outer is None:
            return {}
        each = zip(self.names, self.outer.starts, self.outer.velocities, strict=True)
        return {
            f"{prefix}/{name}": variable
            for name, start, velocity in each
            for prefix, variable in (
                ("outer_start", start),
                ("outer_velocity", velocity),
            )
        }

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
    def batch_norm_averages(self) -> list[tf.Variable]:
        """BatchNorm's moving means and variances, which differ from rank to rank.

        Their EMA and Lookahead's slow copies of them are among them, if there are any.
        """
        slow = [] if self.lookahead is None else self.lookahead.slow
        own = [
            variable.value
            for variable in self.model.non_trainable_variables
            if is_batch_norm_average(variable.path)
        ]
        return own + [
            one
            for averages in (self.ema, slow)
            for variable, one in zip(self.model.variables, averages, strict=False)
            if is_batch_norm_average(variable.path)
        ]

    def weight_penalty(self) -> float:
        """Returns the weight-decay term of the loss, as of the last step done."""
        return weight_penalty(self.optimizer.decayed_variables, self.config, self.step)

    def tensors(self) -> dict[str, tf.Variable]:
        """Returns the variables that are equal on all ranks, by their stored names.

        BatchNorm's moving averages are equal inside `averaged_batch_norm`, and in a
        round of local SGD the weights inside `averaged_over_ranks`.
        """
        return {
            **{
                f"model/{variable.path}": variable.value
                for variable in self.model.variables
            },
            **({} if self._is_local else self.optimizer.slots),
            **self._outer_variables(),
            **{
                f"ema/{variable.path}": average
                for variable, average in zip(
                    self.model.variables, self.ema, strict=False
                )
            },
            **self._slow_weights(),
        }

    def _slow_weights(self) -> dict[str, tf.Variable]:
        if self.lookahead is None:
            return {}
        each = zip(self.model.variables, self.lookahead.slow, strict=True)
        return {f"slow/{variable.path}": slow for variable, slow in each}

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Replaces the network's variables by their EMA inside the block."""
        own = [variable.value.numpy() for variable in self.model.variables]
        for variable, average in zip(self.model.variables, self.ema, strict=True):
            variable.value.assign(average)
        try:
            yield
        finally:
            for variable, value in zip(self.model.variables, own, strict=True):
                variable.value.assign(value)


def build_model(config: Config) -> keras.Model:
    """Returns a new network with the model, size, precision and seed of a run."""
    first = phases.first_step(config.phases, config.first_phase)
    phase = phases.at(config.phases, first)
    return models.build(
        config.model,
        config.num_classes,
        config.image_size,
        compute_dtype=COMPUTE_DTYPES[config.precision],
        seed=config.seed,
        batch_norm_momentum=config.batch_norm_momentum,
        batch_norm_epsilon=config.batch_norm_epsilon,
        fixed_gamma=config.fixed_gamma,
        zero_last_gamma=config.zero_last_gamma,
        initialization=config.initialization,
        resnet_variant=config.resnet_variant,
        activation=config.activation,
        se_ratio=config.se_ratio,
        blur_pool=config.blur_pool,
        classifier_bias_init=losses.classifier_bias_init(phase, config.num_classes),
    )


def weight_penalty(
    variables: Sequence[tf.Variable], config: Config, step: int
) -> float:
    """Returns the weight-decay term of the loss after some steps of a run.

    If the last of these steps ended a phase, the weight decay is still that of this
    phase.
    """
    if OPTIMIZERS[config.optimizer].is_decoupled:
        return 0.0
    weight_decay = phases.at(config.phases, max(step - 1, 0)).weight_decay
    return losses.weight_penalty(variables, weight_decay)


def decayed_variables(model: keras.Model, config: Config) -> list[tf.Variable]:
    """Returns the variables of a network that weight decay applies to in a run."""
    return [
        variable.value
        for variable in model.trainable_variables
        if has_weight_decay(variable.path, variable.shape, config)
    ]


def is_batch_norm_average(name: str) -> bool:
    """Returns whether the variable of that name is a moving average of BatchNorm."""
    return name.endswith(("/moving_mean", "/moving_variance"))


@contextlib.contextmanager
def averaged_batch_norm(
    state: TrainState, communicator: Communicator
) -> Iterator[None]:
    """Replaces BatchNorm's averages by their mean over all ranks inside the block.

    Evaluation and checkpoints need the same network on all ranks. Afterwards each rank
    has its own averages again, so that the training doesn't depend on when it was
    evaluated or saved.
    """
    with averaged_over_ranks(state.batch_norm_averages, communicator):
        yield


@contextlib.contextmanager
def averaged_over_ranks(
    variables: Sequence[tf.Variable], communicator: Communicator
) -> Iterator[None]:
    """Replaces variables by their mean over all ranks inside the block."""
    own = [variable.numpy() for variable in variables]
    communicator.allreduce_mean(variables)
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
    """Assigns the values that `flatten` returns, cast to the variables' dtypes.

    Args:
        values: The values of all variables, `[num_values]`.
    """
    ends = np.cumsum([variable.shape.num_elements() for variable in variables])
    parts = np.split(values, ends)[:-1]
    for variable, part in zip(variables, parts, strict=True):
        dtype = variable.dtype.as_numpy_dtype
        variable.assign(part.reshape(variable.shape).astype(dtype))
