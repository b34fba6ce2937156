"""Times steps of training or evaluation while all ranks run them concurrently."""

import itertools
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import tensorflow as tf

from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.step_settings import StepSettings
from resnet.data.input_pipeline import Batch
from resnet.distributed.communicator import Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware import process_age
from resnet.optim.train_state import TrainState
from resnet.training.train_step import TrainStep

LEARNING_RATE = 0.01  # Small, so that repeated steps on one batch do not diverge.

Images = tuple[tf.Tensor, tf.Tensor]  # Images and labels of one step.
Step = Callable[[tf.Tensor, tf.Tensor], float]


@dataclass(frozen=True)
class Timing:
    """The times and the memory that one rank measured.

    Attributes:
        seconds: The duration of each timed step, including the wait for its images.
        waited_seconds: The total time that the timed steps waited for images.
        first_step_seconds: The duration of the first step, which traces the graph.
        start_seconds: The time from the start of the process to the end of the first
            step.
        peak_memory_mb: The peak memory of the process, in 10**6 bytes.
        last_value: The value that the last step returned.
    """

    seconds: tuple[float, ...]
    waited_seconds: float
    first_step_seconds: float
    start_seconds: float
    peak_memory_mb: float
    last_value: float


def training_step(model: keras.Model, phase: Phase, communicator: Communicator) -> Step:
    """Returns the step of training, which returns the loss.

    Args:
        model: The network.
        phase: The phase whose settings the step has.
        communicator: The ranks that average their gradients.
    """
    config = Config(
        recipe="benchmark",
        model="",
        image_size=model.input_shape[1],
        global_batch_size=1,
        num_classes=model.output_shape[-1],
        class_names=(),
        num_train_examples=1,
        phases=(phase,),
    )
    state = TrainState(config, model)
    exchange = GradientExchange(communicator.collectives, state.names)
    train_step = TrainStep(state, phase, exchange)
    settings = StepSettings(
        LEARNING_RATE, phase.momentum, phase.momentum, phase.weight_decay
    )
    nothing = tf.zeros([0])  # For the parts of a batch that this step doesn't use.

    def step(images: tf.Tensor, labels: tf.Tensor) -> float:
        examples = tf.range(len(labels), dtype=tf.int64)  # For dropout.
        batch = Batch(images, labels, examples, nothing, nothing)
        return train_step(batch, settings).local_loss

    return step


def evaluation_step(model: keras.Model) -> Step:
    """Returns the step that evaluates a network, which returns a logit."""
    infer = tf.function(lambda images: model(images, training=False))

    def step(images: tf.Tensor, labels: tf.Tensor) -> float:
        return float(infer(images)[0, 0])

    return step


def images_from_memory(
    batch_size: int, image_size: int, num_classes: int, rank: int
) -> Iterator[Images]:
    """Returns an endless iterator over one random batch, which differs by rank."""
    random = tf.random.Generator.from_seed(rank)
    shape = [batch_size, image_size, image_size, 3]
    labels = random.uniform([batch_size], 0, num_classes, tf.int32)
    return itertools.repeat((random.normal(shape), labels))


def time_steps(
    step: Step,
    images_and_labels: Iterator[Images],
    warmup_steps: int,
    steps: int,
    communicator: Communicator,
) -> Timing:
    """Returns the durations of steps, timed after a barrier of all ranks.

    Args:
        step: The function to time; it takes images and labels.
        images_and_labels: The images and labels of each step.
        warmup_steps: The number of untimed steps before the timed ones, at least 1.
        steps: The number of timed steps.
        communicator: The ranks that run the steps.
    """
    first = next(images_and_labels)
    start = time.perf_counter()
    value = step(*first)
    first_step_seconds = time.perf_counter() - start
    start_seconds = process_age.seconds()
    for _ in range(warmup_steps - 1):
        value = step(*next(images_and_labels))
    communicator.allgather(None)
    seconds = []
    waited_seconds = 0.0
    for _ in range(steps):
        start = time.perf_counter()
        images, labels = next(images_and_labels)
        waited_seconds += time.perf_counter() - start
        value = step(images, labels)
        seconds.append(time.perf_counter() - start)
    return Timing(
        seconds=tuple(seconds),
        waited_seconds=waited_seconds,
        first_step_seconds=first_step_seconds,
        start_seconds=start_seconds,
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        last_value=value,
    )
