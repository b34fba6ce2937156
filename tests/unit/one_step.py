"""One training step of a small network on 8 images."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from resnet.config.config import Config
from resnet.config.phases import Phase, StepSettings
from resnet.data.input_pipeline import Batch
from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.optim.train_state import TrainState
from resnet.training.train_step import StepResult, TrainStep

ALONE = Communicator(ProcessInfo())
SETTINGS = StepSettings(
    learning_rate=0.1, velocity_factor=0.9, nesterov_momentum=0.9, decay=0.01
)


def config_of(make_config: Callable[..., Config]) -> Config:
    """Returns the settings of a run with batches of 8 images."""
    return make_config(
        seed=3,
        global_batch_size=8,
        weight_decay=0.01,
        batch_norm_momentum=0.9,
        label_smoothing=0.0,
    )


def batch(num_examples: int = 8, seed: int = 1, size: int = 32) -> Batch:
    images = np.random.default_rng(seed).normal(size=(num_examples, size, size, 3))
    numbers = tf.range(num_examples, dtype=tf.int64)
    return Batch(
        images=tf.constant(images, tf.float32),
        labels=tf.cast(numbers % 3, tf.int32),
        examples=numbers,
        mask=numbers >= 0,
        mix_weight=tf.ones([num_examples]),
    )


def in_parts(
    step: TrainStep, parts: list[Batch], settings: StepSettings, number: int = 0
) -> StepResult:
    for part in parts[:-1]:
        step.accumulate(part, number)
    return step(parts[-1], settings._replace(step=number))


def parts_of(whole: Batch, num_parts: int) -> list[Batch]:
    """Takes a batch apart in order."""
    parts = zip(*(tf.split(values, num_parts) for values in whole), strict=True)
    return [Batch(*part) for part in parts]


def step_of_phase(
    state: TrainState, phase: Phase, freeze_batch_norm: bool = False
) -> TrainStep:
    if freeze_batch_norm:
        phase = dataclasses.replace(phase, freeze_batch_norm=True)
    return TrainStep(state, phase, GradientExchange(ALONE.collectives, state.names))


def step_of(state: TrainState) -> TrainStep:
    return step_of_phase(state, state.config.phases[0])


def values_of(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def gradients_of(
    state: TrainState, one: Batch, is_training: bool = True
) -> tuple[float, list[np.ndarray]]:
    """Returns loss and gradients; the network stays as it was."""
    averages = values_of(state.batch_norm_averages)
    with tf.GradientTape() as tape:
        logits = state.model(one.images, training=is_training)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(one.labels, logits)
        )
    gradients = tape.gradient(loss, state.trainable_variables)
    for variable, value in zip(state.batch_norm_averages, averages, strict=True):
        variable.assign(value)
    return float(loss), values_of(gradients)
