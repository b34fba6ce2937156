"""One step of training: from a batch to new weights, the same on all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from resnet.data.input_pipeline import Batch
from resnet.distributed import Communicator
from resnet.optim import losses
from resnet.optim.optimizers import StepSettings
from resnet.phases import Phase
from resnet.train_state import TrainState

NUM_VOTES = 2  # Whether to leave, and whether to save.


class StepRates(NamedTuple):
    """What changes from step to step.

    Attributes:
        learning_rate: Of the step.
        momentum: What the velocities are multiplied with.
        ema_decay: Of the moving average of the weights.
    """

    learning_rate: float
    momentum: float = 0.0
    ema_decay: float = 0.0


class Outcome(NamedTuple):
    """What a rank knows after a step.

    Attributes:
        own_loss: Mean cross-entropy of this rank's examples; NaN if its gradients have
            one.
        loss: The same of the whole global batch.
        votes: The mean over ranks of each vote, `[NUM_VOTES]` float32.
    """

    own_loss: float
    loss: float
    votes: np.ndarray


class TrainStep:
    """The step of one phase, made into a graph."""

    def __init__(
        self,
        state: TrainState,
        phase: Phase,
        communicator: Communicator,
        freeze_batch_norm: bool = False,
    ) -> None:
        """Prepares it; the first step makes the graph.

        Args:
            state: What the steps change.
            phase: Of the run.
            communicator: The ranks, whose gradients are averaged.
            freeze_batch_norm: Whether to normalize by the moving averages, which then
                stay.
        """
        self._state = state
        self._phase = phase
        self._communicator = communicator
        self._is_training = not freeze_batch_norm
        self._names = [f"gradient/{name}" for name in state.names]
        self._num_parts = state.config.accumulation_steps
        self._sums: list[tf.Variable] = []
        if self._num_parts > 1:
            variables = state.trainable_variables
            self._sums = [tf.Variable(0.0)]  # Of the loss.
            self._sums += [tf.Variable(tf.zeros_like(one)) for one in variables]
        self._add = tf.function(self._add_part)
        self._step = tf.function(self._last_part)

    def add(self, part: Batch) -> None:
        """Adds up the gradients of a part of a step that is not its last."""
        self._add(part.images, part.labels, part.mix_weight)

    def __call__(
        self, last: Batch, rates: StepRates, votes: Sequence[float]
    ) -> Outcome:
        """Moves the variables by one step. Each rank must call it as often.

        Args:
            last: The last of the equal parts of this rank's batch that the gradients
                are accumulated over; usually the only one.
            rates: Of this step.
            votes: Of this rank, `NUM_VOTES`; they travel while the gradients are
                computed, and cost no time of their own.
        """
        own_loss, loss, *means = self._step(
            last.images,
            last.labels,
            last.mix_weight,
            tf.constant(rates, tf.float32),
            tf.constant(votes, tf.float32),
        ).numpy()
        return Outcome(own_loss, loss, np.array(means))

    def _add_part(
        self, images: tf.Tensor, labels: tf.Tensor, mix_weight: tf.Tensor
    ) -> None:
        loss, tape = self._loss(images, labels, mix_weight)
        gradients = tape.gradient(loss, self._state.optimizer.variables)
        for total, one in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(one)

    def _last_part(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        mix_weight: tf.Tensor,
        rates: tf.Tensor,
        votes: tf.Tensor,
    ) -> tf.Tensor:
        state, communicator = self._state, self._communicator
        learning_rate, momentum, ema_decay = tf.unstack(rates)
        loss, tape = self._loss(images, labels, mix_weight)
        mean_loss = loss
        if self._sums:
            mean_loss = (self._sums[0] + loss) / self._num_parts
        own = tf.concat([[mean_loss], votes], axis=0)
        (of_all,) = communicator.average([own], ["loss_and_votes"])
        gradients = tape.gradient(loss, state.optimizer.variables)
        if self._sums:
            gradients = [
                (total + one) / self._num_parts
                for total, one in zip(self._sums[1:], gradients, strict=True)
            ]
        own_loss = nan_unless_finite(mean_loss, gradients[0])
        gradients = communicator.average(gradients, self._names)
        if clip_norm := state.config.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, clip_norm)
        settings = StepSettings(
            learning_rate,
            momentum,
            tf.constant(self._phase.momentum),
            self._phase.weight_decay,
        )
        state.optimizer.apply(gradients, settings)
        state.move_ema(ema_decay)
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        loss_of_all = nan_unless_finite(of_all[0], gradients[0])
        return tf.concat([[own_loss, loss_of_all], of_all[1:]], axis=0)

    def _loss(
        self, images: tf.Tensor, labels: tf.Tensor, mix_weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.GradientTape]:
        """Returns the mean loss of a part, and what its gradients are got from."""
        phase = self._phase
        with tf.GradientTape() as tape:
            logits = self._state.model(images, training=self._is_training)
            if phase.mixup or phase.cutmix:
                each = losses.mixed_cross_entropy(
                    logits, labels, mix_weight, phase.label_smoothing
                )
            else:
                each = losses.cross_entropy(logits, labels, phase.label_smoothing)
            loss = tf.reduce_mean(each)
        return loss, tape


def nan_unless_finite(loss: tf.Tensor, first_gradient: tf.Tensor) -> tf.Tensor:
    """Returns the loss; or NaN if the gradient of the first variable has one.

    That gradient is the last to be computed, and what is no number anywhere reaches it.
    The loss alone doesn't tell: TensorFlow's max pooling lets a NaN vanish.
    """
    is_finite = tf.math.is_finite(tf.reduce_sum(first_gradient))
    return tf.where(is_finite, loss, np.float32(np.nan))
