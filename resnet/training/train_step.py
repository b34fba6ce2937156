"""One step of training: gradients, their exchange between ranks, and the update."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from resnet.config import layer_rates
from resnet.config.phases import Phase
from resnet.config.step_settings import StepSettings
from resnet.data import example_order
from resnet.data.input_pipeline import Batch
from resnet.exchange.account import ExchangeAccount
from resnet.exchange.divided_work import DividedWork
from resnet.exchange.gradients import GradientExchange
from resnet.models.layers import dropout
from resnet.optim import losses, norms
from resnet.optim.momentum import Momentum
from resnet.optim.muon import Muon, compute_all
from resnet.optim.train_state import TrainState

DROPOUT_STREAM = 2000  # For `mix_seed`; no other use has this number.


class StepResult(NamedTuple):
    """The result of a step on one rank.

    Attributes:
        local_loss: Mean cross-entropy of this rank's examples; NaN if its gradients are
            not finite.
        loss: Mean cross-entropy of the global batch; NaN if the mean gradients are not
            finite. Like the two requests, it is the same on all ranks.
        stop_requested: Whether any rank has been asked to stop.
        save_requested: Whether any rank asks for a checkpoint.
        account: What the exchange of gradients cost this rank.
    """

    local_loss: float
    loss: float
    stop_requested: bool
    save_requested: bool
    account: ExchangeAccount


class TrainStep:
    """The step of one phase of a run, traced into a graph when it is first called.

    Attributes:
        phase: The phase.
        is_traced: Whether the graph exists, since at least one step is done.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Momentum,
        phase: Phase,
        exchange: GradientExchange,
        *,
        ema: Sequence[tf.Variable] = (),
        num_micro_batches: int = 1,
        clip_norm: float = 0.0,
        freeze_batch_norm: bool = False,
        rate_factors: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        """Prepares the step.

        Args:
            model: The network, whose variables the steps change.
            optimizer: The optimizer of the network's trainable variables.
            phase: The phase, whose loss, label smoothing and mixing count.
            exchange: The exchange of gradients with the other ranks.
            ema: The EMA of all variables of the network, in their order; empty for a
                run without EMA.
            num_micro_batches: The number of micro-batches of a rank in each step.
            clip_norm: The largest global norm of the gradients; 0 for no clipping.
            freeze_batch_norm: Whether batch normalization uses its moving averages, as
                in inference, and leaves them as they are.
            rate_factors: The factor of the learning rate of each of the optimizer's
                variables, empty for 1; where it is 0, the gradient is 0, too, also for
                the clipping.
            seed: The seed of the run, on which dropout depends.
        """
        self.phase = phase
        self.is_traced = False
        self._model = model
        self._optimizer = optimizer
        self._exchange = exchange
        self._ema = ema
        self._num_micro_batches = num_micro_batches
        self._clip_norm = clip_norm
        self._training = not freeze_batch_norm
        self._rate_factors = rate_factors
        self._seed = seed
        self._muon_work: DividedWork | None = None
        # In a round of local SGD the velocities differ from rank to rank.
        if isinstance(optimizer, Muon) and not phase.is_local:
            self._muon_work = DividedWork(exchange.collectives, "muon/updates")
        self._sums: list[tf.Variable] = []  # Sums of the loss and of each gradient.
        if num_micro_batches > 1:
            self._sums = [tf.Variable(0.0)]
            self._sums += [
                tf.Variable(tf.zeros_like(variable)) for variable in optimizer.variables
            ]
        self._accumulate = tf.function(self._accumulate_gradients, autograph=False)
        self._step = tf.function(self._whole_step, autograph=False)

    @classmethod
    def of_run(
        cls,
        state: TrainState,
        phase: Phase,
        exchange: GradientExchange,
        freeze_batch_norm: bool = False,
    ) -> "TrainStep":
        """Returns the step of one phase of a run.

        Args:
            state: The state of the run, which the steps change.
            phase: The phase of the run.
            exchange: The exchange of gradients with the other ranks.
            freeze_batch_norm: Whether batch normalization uses its moving averages, as
                in inference, and leaves them as they are, even if the phase doesn't say
                so.
        """
        return cls(
            state.model,
            state.optimizer,
            phase,
            exchange,
            ema=() if phase.is_local else state.ema,  # `Synchronization` moves it.
            num_micro_batches=state.config.accumulation_steps,
            clip_norm=state.config.clip_norm,
            freeze_batch_norm=freeze_batch_norm or phase.freeze_batch_norm,
            rate_factors=layer_rates.factors_of(phase.layer_rates, state.names),
            seed=state.config.seed,
        )

    def accumulate(self, micro_batch: Batch, step: int = 0) -> None:
        """Adds up the gradients of a micro-batch that is not the last of its step.

        Args:
            micro_batch: The micro-batch.
            step: The number of the step, from 0, on which dropout depends.
        """
        self._accumulate(*self._inputs(micro_batch, step))

    def __call__(
        self,
        last: Batch,
        settings: StepSettings,
        stop_requested: bool = False,
        save_requested: bool = False,
    ) -> StepResult:
        """Updates the variables once. Every rank must call it equally often.

        Args:
            last: The last of the equal micro-batches of this rank's part of the global
                batch; without gradient accumulation, the only one.
            settings: The hyperparameters of this step.
            stop_requested: Whether this rank has been asked to stop.
            save_requested: Whether this rank asks for a checkpoint.
        """
        changing = (
            settings.learning_rate,
            settings.velocity_factor,
            settings.ema_decay,
        )
        agreed, account = self._step(
            *self._inputs(last, settings.step),
            tf.constant(changing, tf.float32),
            tf.constant([stop_requested, save_requested], tf.float32),
            tf.constant(settings.step, tf.int64),
            settings.nesterov_momentum,
            settings.weight_decay,
        )
        local_loss, loss, stop, save = agreed.numpy()
        self.is_traced = True
        return StepResult(
            *(local_loss, loss, bool(stop > 0), bool(save > 0)),
            ExchangeAccount(*account.numpy().tolist()),
        )

    def _inputs(self, batch: Batch, step: int) -> tuple[tf.Tensor, ...]:
        """Returns what the graph needs of a batch, and the key of its dropout masks."""
        key = example_order.mix_seed(self._seed, DROPOUT_STREAM, step)
        return (
            *(batch.images, batch.labels, batch.mix_weight, batch.examples),
            tf.constant(key, tf.int64),
        )

    def _accumulate_gradients(self, *inputs: tf.Tensor) -> None:
        loss, gradients = self._gradients(*inputs)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(value)

    def _whole_step(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        mix_weight: tf.Tensor,
        examples: tf.Tensor,
        dropout_key: tf.Tensor,
        changing: tf.Tensor,
        flags: tf.Tensor,
        step: tf.Tensor,
        nesterov_momentum: float,
        weight_decay: float,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns local loss, loss and both flags of all ranks, and the account.

        The former are `[4]` float32, the latter `[5]` float64 (`ExchangeAccount`).
        `nesterov_momentum` and `weight_decay` are constants of the graph: they change
        with the phase only.
        """
        learning_rate, velocity_factor, ema_decay = tf.unstack(changing)
        loss, gradients = self._gradients(
            images, labels, mix_weight, examples, dropout_key
        )
        if self._sums:
            loss, *gradients = (
                (total + value) / self._num_micro_batches
                for total, value in zip(self._sums, [loss, *gradients], strict=True)
            )
        settings = StepSettings(
            learning_rate,
            velocity_factor,
            tf.constant(nesterov_momentum),
            weight_decay,
            *(ema_decay, step, self.phase.layer_rates_scale_decay),
        )
        trained = (place for place, one in enumerate(self._rate_factors) if one != 0)
        exchanged = self._exchange(
            gradients, loss, flags, settings, last=next(trained, 0)
        )
        if isinstance(self._optimizer, Muon):
            self._optimizer.compute = self._muon_work or compute_all
        if self._exchange.has_momentum:
            apply_directions(self._optimizer, exchanged.gradients, settings)
        else:
            apply_update(
                *(self._optimizer, exchanged.gradients, settings),
                *(self._clip_norm, self._rate_factors),
            )
        update_ema(self._ema, self._model.variables, ema_decay)
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        agreed = tf.concat(
            [[exchanged.local_loss, exchanged.loss], exchanged.flags], axis=0
        )
        account = exchanged.account
        if self._muon_work is not None:
            sent = account.bytes_sent + float(self._muon_work.bytes_sent)
            account = account._replace(bytes_sent=sent)
        return agreed, tf.stack(account)

    def _gradients(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        mix_weight: tf.Tensor,
        examples: tf.Tensor,
        dropout_key: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with dropout.keyed(dropout_key, examples):
            loss, gradients = compute_gradients(
                self._model,
                self._optimizer.variables,
                images,
                labels,
                mix_weight,
                self.phase,
                self._training,
            )
        for place, factor in enumerate(self._rate_factors):
            if factor == 0:  # So the graph needs no backward pass of the lowest layers.
                gradients[place] = tf.zeros_like(self._optimizer.variables[place])
        return loss, gradients


def compute_gradients(
    model: keras.Model,
    variables: Sequence[tf.Variable],
    images: tf.Tensor,
    labels: tf.Tensor,
    mix_weight: tf.Tensor,
    phase: Phase,
    training: bool = True,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the mean loss of a micro-batch and its gradients.

    Args:
        model: The network.
        variables: The variables that the gradients are for.
        images: `[batch, height, width, 3]` float32.
        labels: `[batch]` int32, from 0.
        mix_weight: `[batch]` float32: weight of each example's own label where
            examples are mixed.
        phase: The phase, whose loss, label smoothing and mixing count.
        training: Whether batch normalization uses the statistics of the batch.

    Returns:
        A float32 scalar, and one float32 tensor for each variable.
    """
    with tf.GradientTape() as tape:
        loss = mean_loss(model, images, labels, mix_weight, phase, training)
    return loss, tape.gradient(loss, variables)


def mean_loss(
    model: keras.Model,
    images: tf.Tensor,
    labels: tf.Tensor,
    mix_weight: tf.Tensor,
    phase: Phase,
    training: bool = True,
) -> tf.Tensor:
    """Returns the mean loss of a micro-batch, a float32 scalar.

    The arguments are as for `compute_gradients`.
    """
    logits = model(images, training=training)
    return tf.reduce_mean(losses.of_examples(logits, labels, mix_weight, phase))


def apply_update(
    optimizer: Momentum,
    gradients: Sequence[tf.Tensor],
    settings: StepSettings,
    clip_norm: float = 0.0,
    rate_factors: Sequence[float] = (),
) -> None:
    """Clips the gradients and updates the optimizer's variables.

    To be called inside the graph of a step. The optimizer adds the weight decay, after
    the clipping.

    Args:
        optimizer: The optimizer.
        gradients: The mean gradients over the global batch, one for each variable of
            the optimizer.
        settings: The hyperparameters of the step.
        clip_norm: The largest global norm of the gradients; 0 for no clipping.
        rate_factors: The factor of the learning rate of each of the optimizer's
            variables; empty for 1.
    """
    if clip_norm:
        gradients = norms.clip_by_global_norm(gradients, clip_norm)
    optimizer.apply(gradients, settings, rate_factors)


def apply_directions(
    optimizer: Momentum, directions: Sequence[tf.Tensor], settings: StepSettings
) -> None:
    """Updates the optimizer's variables by directions that contain the momentum.

    To be called inside the graph of a step. The optimizer's velocities are those of the
    weight decay alone.

    Args:
        optimizer: The optimizer.
        directions: The mean directions over ranks, one for each variable of the
            optimizer, which the learning rate is yet to multiply.
        settings: The hyperparameters of the step.
    """
    optimizer.apply([tf.zeros_like(one) for one in directions], settings)
    for variable, direction in zip(optimizer.variables, directions, strict=True):
        variable.assign_sub(settings.learning_rate * direction)


def update_ema(
    ema: Sequence[tf.Variable], variables: Sequence[keras.Variable], decay: tf.Tensor
) -> None:
    """Updates the EMA of variables; to be called inside the graph of a step.

    average = decay * average + (1 - decay) * variable

    Args:
        ema: The EMA of each variable; empty for a run without EMA.
        variables: The variables.
        decay: The EMA decay of this step, a float32 scalar.
    """
    weight_of_new = 1 - decay
    for average, variable in zip(ema, variables, strict=False):
        average.assign_sub(weight_of_new * (average - variable.value))
