"""One step of training: gradients, their exchange between ranks, and the update."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from resnet import native
from resnet.config import phases
from resnet.config.phases import Phase, StepSettings
from resnet.data import example_order
from resnet.data.input_pipeline import Batch
from resnet.distributed import digests
from resnet.exchange.account import ExchangeAccount
from resnet.exchange.gradients import GradientExchange
from resnet.models.layers import dropout, normalization
from resnet.optim import losses, norms
from resnet.optim.groups import descend
from resnet.optim.optimizer import Optimizer
from resnet.optim.train_state import TrainState

DROPOUT_STREAM = 2000  # For `mix_seed`; no other use has this number.


class StepResult(NamedTuple):
    """The result of a step on one rank.

    The losses are the mean cross-entropy of this rank's examples and of the global
    batch, NaN if the gradients of the same are not finite. The latter and whether any
    rank has been asked to stop, or asks for a checkpoint, are the same on all ranks.
    `account` is what the exchange of gradients cost this rank, `digest` that of the
    loss and the gradients of its last micro-batch (`digests.digest`), if wanted.
    """

    local_loss: float
    loss: float
    stop_requested: bool
    save_requested: bool
    account: ExchangeAccount
    digest: int = 0


class TrainStep:
    """The step of one phase of a run; `is_traced` from its first call on."""

    def __init__(
        self, state: TrainState, phase: Phase, exchange: GradientExchange
    ) -> None:
        self.phase = phase
        self.is_traced = False
        self._state = state
        self._exchange = exchange
        self._rate_factors = phases.factors_of(phase.layer_rates, state.names)
        # In a round of local SGD the velocities differ from rank to rank.
        self._collectives = None if phase.is_local else exchange.collectives
        self._sums: list[tf.Variable] = []  # Sums of the loss and of each gradient.
        if state.config.accumulation_steps > 1:
            self._sums = [tf.Variable(0.0)]
            self._sums += [
                tf.Variable(tf.zeros_like(variable))
                for variable in state.trainable_variables
            ]
        self._accumulate = tf.function(self._accumulate_gradients, autograph=False)
        self._step = tf.function(self._whole_step, autograph=False)
        # The two parts of a step whose gradients are audited in between.
        self._alone = tf.function(self._gradients, autograph=False)
        self._rest = tf.function(self._update, autograph=False)

    def accumulate(self, micro_batch: Batch, step: int = 0) -> None:
        """Adds up the gradients of a micro-batch that is not the last of its step.

        Dropout depends on the number of the step, from 0.
        """
        self._state.is_whole = False
        self._accumulate(micro_batch, self._dropout_key(step))

    def gradients(self, micro_batch: Batch, step: int) -> list[tf.Tensor]:
        """Returns the loss of a micro-batch of any rank, and its gradients.

        Batch normalization's averages change as in a step. Otherwise as `accumulate`.
        """
        self._state.is_whole = False
        loss, gradients = self._alone(micro_batch, self._dropout_key(step))
        return [loss, *gradients]

    def __call__(
        self,
        last: Batch,
        settings: StepSettings,
        stop_requested: bool = False,
        save_requested: bool = False,
        gradients: Sequence[tf.Tensor] | None = None,
        wants_digest: bool = False,
    ) -> StepResult:
        """Updates the variables once. Every rank must call it equally often.

        `last` is the last of the equal micro-batches of this rank's part of the global
        batch; without gradient accumulation, the only one. Both requests are those of
        this rank. `gradients` are those of `last`, as the method of this name returns
        them, if they have been computed already.
        """
        self._state.is_whole = False
        flags = tf.constant([stop_requested, save_requested], tf.float32)
        tensors = settings._replace(  # The rest changes with the phase only: constants.
            learning_rate=tf.constant(settings.learning_rate, tf.float32),
            velocity_factor=tf.constant(settings.velocity_factor, tf.float32),
            ema_decay=tf.constant(settings.ema_decay, tf.float32),
            step=tf.constant(settings.step, tf.int64),
        )
        if gradients is None:
            dropout_key = self._dropout_key(settings.step)
            agreed, account, of_tensors = self._step(
                last, dropout_key, flags, tensors, tf.constant(wants_digest)
            )
            digest = digests.combined(of_tensors.numpy().tolist())
        else:
            agreed, account = self._rest(gradients[0], gradients[1:], flags, tensors)
            digest = digests.digest(gradients) if wants_digest else 0
        local_loss, loss, stop, save = agreed.numpy()
        self.is_traced = True
        return StepResult(
            local_loss,
            loss,
            bool(stop > 0),
            bool(save > 0),
            ExchangeAccount(*account.numpy().tolist()),
            int(digest),
        )

    def _dropout_key(self, step: int) -> tf.Tensor:
        seed = self._state.config.seed
        key = example_order.mix_seed(seed, DROPOUT_STREAM, step)
        return tf.constant(key, tf.int64)

    def _accumulate_gradients(self, batch: Batch, dropout_key: tf.Tensor) -> None:
        loss, gradients = self._gradients(batch, dropout_key)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(value)

    def _whole_step(
        self,
        batch: Batch,
        dropout_key: tf.Tensor,
        flags: tf.Tensor,
        settings: StepSettings,
        wants_digest: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what `_update` does, and the digests of loss and gradients.

        These are `[1 + number of gradients]` int64, or empty if they aren't wanted.
        """
        loss, gradients = self._gradients(batch, dropout_key)
        of_tensors = _digests([loss, *gradients], wants_digest)
        return *self._update(loss, gradients, flags, settings), of_tensors

    def _update(
        self,
        loss: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        flags: tf.Tensor,
        settings: StepSettings,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns local loss, loss and both flags of all ranks, and the account.

        The former are `[4]` float32, the latter `[5]` float64 (`ExchangeAccount`).
        """
        state = self._state
        settings = settings._replace(
            nesterov_momentum=tf.constant(settings.nesterov_momentum, tf.float32)
        )
        if self._sums:
            loss, *gradients = (
                (total + value) / state.config.accumulation_steps
                for total, value in zip(self._sums, [loss, *gradients], strict=True)
            )
        trained = [place for place, factor in enumerate(self._rate_factors) if factor]
        last = trained[0] if trained else 0
        exchanged = self._exchange(gradients, loss, flags, settings, last=last)
        account = exchanged.account
        if self._exchange.has_momentum:
            apply_directions(state.optimizer, exchanged.gradients, settings)
        else:
            mean_gradients = exchanged.gradients
            if clip_norm := state.config.clip_norm:
                mean_gradients = norms.clip_by_global_norm(mean_gradients, clip_norm)
            sent = state.optimizer.apply(
                mean_gradients, settings, self._rate_factors, self._collectives
            )
            account = account._replace(bytes_sent=account.bytes_sent + float(sent))
        if not self.phase.is_local:  # The end of a round updates it.
            update_ema(state.ema, state.model.variables, settings.ema_decay)
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        agreed = tf.concat(
            [[exchanged.local_loss, exchanged.loss], exchanged.flags], axis=0
        )
        return agreed, tf.stack(account)

    def _gradients(
        self, batch: Batch, dropout_key: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the mean loss of a micro-batch, and its gradients.

        Where a factor of the learning rate is 0, the gradient is 0, too, also for the
        clipping, and the graph needs no backward pass of the lowest layers.
        """
        variables = self._state.trainable_variables
        with (
            dropout.keyed(dropout_key, batch.examples),
            normalization.collected() as statistics,
            tf.GradientTape() as tape,
        ):
            weights = self._state.config.class_weight_values
            loss = mean_loss(self._state.model, batch, self.phase, weights)
        normalization.move_averages(statistics)
        gradients = tape.gradient(loss, variables)
        for place, factor in enumerate(self._rate_factors):
            if factor == 0:
                gradients[place] = tf.zeros_like(variables[place])
        return loss, gradients


def _digests(tensors: Sequence[tf.Tensor], wanted: tf.Tensor) -> tf.Tensor:
    """Returns `digests_of` of float32 tensors, int64; nothing if they aren't wanted."""
    library = native.ops()
    if library is not None:
        return library.resnet_digests(wanted=wanted, tensors=tensors)

    def compute(*arrays: np.ndarray) -> np.ndarray:
        return np.array(digests.digests_of(arrays), np.int64)

    return tf.cond(
        wanted,
        lambda: tf.numpy_function(compute, tensors, tf.int64),
        lambda: tf.zeros([0], tf.int64),
    )


def mean_loss(
    model: keras.Model, batch: Batch, phase: Phase, class_weights: Sequence[float] = ()
) -> tf.Tensor:
    """Returns the mean loss of a micro-batch in a phase, a float32 scalar.

    With class weights too it is the sum divided by the number of examples, and not by
    the sum of their weights, which differs between ranks: so the mean of the gradients
    of equal micro-batches is that of the global batch.
    """
    logits = model(batch.images, training=not phase.freeze_batch_norm)
    return tf.reduce_mean(
        losses.of_examples(logits, batch.labels, phase, batch.mix_weight, class_weights)
    )


def apply_directions(
    optimizer: Optimizer, directions: Sequence[tf.Tensor], settings: StepSettings
) -> None:
    """Updates the optimizer's variables by directions that contain the momentum.

    To be called inside the graph, by the mean directions over ranks, without the rate.
    The optimizer's velocities are those of the weight decay alone.
    """
    optimizer.apply([tf.zeros_like(direction) for direction in directions], settings)
    for variable, direction in zip(
        optimizer.variables.values(), directions, strict=True
    ):
        descend(variable, settings.learning_rate, direction)


def update_ema(
    ema: Sequence[tf.Variable], variables: Sequence[keras.Variable], decay: tf.Tensor
) -> None:
    """Updates the EMA of variables, or none; to be called inside the graph of a step.

    average = decay * average + (1 - decay) * variable
    """
    weight_of_new = 1 - decay
    for average, variable in zip(ema, variables, strict=False):
        descend(average, weight_of_new, average - variable.value)
