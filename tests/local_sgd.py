"""Local SGD of tiny networks: as the program trains them, and in NumPy."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from resnet import models
from resnet.config import phases as phase_list
from resnet.config import rounds
from resnet.config.compression import topk_count
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.config.schedules import Schedule
from resnet.data.input_pipeline import Batch
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount
from resnet.exchange.gradients import make_exchange
from resnet.models import layers
from resnet.models.options import NormOptions
from resnet.optim.train_state import TrainState
from resnet.training import loop
from resnet.training.local_sgd import Synchronization
from resnet.training.train_step import TrainStep
from tests.unit.changed_settings import changed

NO_EXCHANGE = ExchangeAccount(0, 0, 0, 0.0, 0.0)
NUM_CLASSES = 3
SIDE = 32
_BATCH = 4  # Of a rank.


def phase(num_steps: int, name: str = "train", **settings: Any) -> Phase:
    """Returns a phase with a falling rate and, unless it says otherwise, momentum."""
    settings.setdefault("schedule", Schedule(peak_value=0.1, decay_end=40))
    settings.setdefault("momentum", 0.9)
    settings.setdefault("weight_decay", 0.01)
    return Phase(name=name, num_steps=num_steps, image_size=SIDE, **settings)


def make_state(
    phases: Sequence[Phase], has_batch_norm: bool = False, **changes: Any
) -> TrainState:
    """Returns the state of a new run, with changed settings, the same on all ranks.

    Without batch normalization, the network is a classifier of mean colors.
    """
    run: Config = resolve(
        digits.DIGITS, {"train_steps": 9, "warmup_steps": 0}, 500, ("a", "b", "c")
    )
    run = changed(run, phases=tuple(phases), **changes)
    inputs = keras.Input((SIDE, SIDE, 3))
    x = inputs
    if has_batch_norm:
        x = layers.ConvNorm(2, 1, 4, 7, "one", NormOptions(momentum=0.9))(inputs)
    network = keras.Model(inputs, layers.Classifier(NUM_CLASSES, 0, "classifier")(x))
    with mock.patch.object(models, "build", return_value=network):
        return TrainState(run)


def examples(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a rank's images, `[n, side, side, 3]`, and labels of a step."""
    draw = np.random.default_rng([rank, step])
    colors = draw.normal(size=(_BATCH, 1, 1, 3))
    images = np.broadcast_to(colors, (_BATCH, SIDE, SIDE, 3)).astype(np.float32)
    return images, draw.integers(0, NUM_CLASSES, _BATCH)


def do_step(
    state: TrainState, communicator: Communicator, train_step: TrainStep | None = None
) -> TrainStep:
    """Does the next step of the run, without the average that may follow it.

    Returns what did the step, which the next one can take, since it is traced.
    """
    images, labels = examples(communicator.rank, state.step)
    numbers = tf.range(_BATCH, dtype=tf.int64)
    batch = Batch(
        images=tf.constant(images),
        labels=tf.constant(labels, tf.int32),
        examples=numbers,
        mask=numbers >= 0,
        mix_weight=tf.ones([_BATCH]),
    )
    run = state.config
    if train_step is None or train_step.phase is not phase_list.at(
        run.phases, state.step
    ):
        exchange = make_exchange(run, state.shapes, communicator)
        train_step = loop._step_of_phase(state, exchange, communicator)
    state.begin_step()
    train_step(batch, run.settings_at(state.step))
    state.step += 1
    return train_step


def each_step(state: TrainState, communicator: Communicator) -> Iterator[int]:
    """Trains to the end of the run; yields the number of each step that is done."""
    exchange = make_exchange(state.config, state.shapes, communicator)
    state.rank_variables.update(exchange.rank_variables)
    synchronize, train_step = Synchronization(state, communicator, exchange), None
    while state.step < state.config.train_steps:
        train_step = do_step(state, communicator, train_step)
        synchronize(NO_EXCHANGE)
        yield state.step - 1


def train_to(state: TrainState, communicator: Communicator, last_step: int) -> None:
    """Trains until so many steps are done."""
    next(step for step in each_step(state, communicator) if step == last_step - 1)


def values(variables: Sequence[tf.Variable]) -> np.ndarray:
    """Returns the values of variables one after the other, `[n]`."""
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def gradient_in_numpy(weights: np.ndarray, rank: int, step: int) -> np.ndarray:
    """Returns the gradient of the classifier of mean colors, `[12]` float64."""
    images, labels = examples(rank, step)
    colors = images[:, 0, 0].astype(np.float64)
    logits = colors @ weights[:9].reshape(3, 3) + weights[9:]
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    likely[np.arange(_BATCH), labels] -= 1
    likely /= _BATCH
    return np.concatenate([(colors.T @ likely).ravel(), likely.sum(axis=0)])


class Reference:
    """All ranks of a run with the classifier of mean colors, in NumPy.

    `weights`, `velocities` and `residuals` are `[num_ranks, 12]`; `outer`, the velocity
    of the outer momentum, and `ema` are `[12]`.
    """

    def __init__(self, run: Config, first_weights: np.ndarray, num_ranks: int) -> None:
        self.run = run
        self.weights = np.tile(np.float64(first_weights), (num_ranks, 1))
        self.velocities = np.zeros_like(self.weights)
        self.outer = np.zeros(first_weights.size)
        self.ema = np.float64(first_weights)
        self.residuals = np.zeros_like(self.weights)
        self._start = np.float64(first_weights)

    def do_step(self, step: int) -> None:
        """Does a step on all ranks, and the average if it ends a round."""
        run = self.run
        phase = phase_list.at(run.phases, step)
        rate = phase_list.learning_rate(run.phases, step)
        if phase_list.resets_momentum_at(run.phases, step):
            self.velocities[:] = 0
            self.outer[:] = 0
        gradients = np.stack(
            [
                gradient_in_numpy(weights, rank, step)
                for rank, weights in enumerate(self.weights)
            ]
        )
        if not phase.is_local:
            gradients[:] = gradients.mean(axis=0)
        gradients += phase.weight_decay * self.weights
        self.velocities = phase.momentum * self.velocities + gradients
        direction = self.velocities
        if run.nesterov:
            direction = gradients + phase.momentum * self.velocities
        self.weights = self.weights - rate * direction
        decay = min(run.ema_decay, (1 + step) / (10 + step))
        steps = rounds.of_step(run.phases, step)
        if phase.is_local and step == steps[-1]:
            self._average(phase, rate, phase_list.at(run.phases, step + 1))
            decay = np.prod([min(run.ema_decay, (1 + n) / (10 + n)) for n in steps])
        if step == steps[-1]:
            self.ema = decay * self.ema + (1 - decay) * self.weights[0]
            self._start = self.weights[0].copy()

    def _average(self, phase: Phase, rate: float, after: Phase) -> None:
        mean = self.weights.mean(axis=0)
        if self.run.compress != "none":
            mean = self._start - self._sent(self._start - self.weights).mean(axis=0)
        if phase.outer_momentum:
            gradient = (self._start - mean) / rate
            self.outer = phase.outer_momentum * self.outer + gradient
            moved = self.outer
            if phase.outer_nesterov:
                moved = gradient + phase.outer_momentum * self.outer
            mean = self._start - phase.outer_learning_rate * rate * moved
        self.weights[:] = mean
        if phase.local_velocities == "reset":
            self.velocities[:] = 0
        elif phase.local_velocities == "average" or not after.is_local:
            self.velocities[:] = self.velocities.mean(axis=0)

    def _sent(self, changes: np.ndarray) -> np.ndarray:
        """Returns what topk sends of all ranks' changes, `[num_ranks, 12]`."""
        changes = changes + self.run.residual_decay * self.residuals
        count = topk_count(changes.shape[1], self.run.ratio)
        least = np.sort(np.abs(changes), axis=1)[:, -count, np.newaxis]
        sent = np.where(np.abs(changes) >= least, changes, 0)
        if self.run.error_feedback:
            self.residuals = changes - sent
        return sent
