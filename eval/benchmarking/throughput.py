"""Measures the steps of training or evaluation, and the peak rates of the machine."""

import dataclasses
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from eval.benchmarking import step_profile
from eval.benchmarking.settings import Settings
from resnet import models, native
from resnet.config.config import Config
from resnet.config.networks import COMPUTE_DTYPES
from resnet.config.phases import Phase, StepSettings
from resnet.data import batches
from resnet.data.input_pipeline import Batch, Reading
from resnet.data.record_files import ExampleShard
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.exchange.gradients import GradientExchange
from resnet.hardware import cpu_features, host
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.models import layers
from resnet.models.layers import convolution
from resnet.optim.train_state import TrainState
from resnet.runtime import precision
from resnet.training.train_step import TrainStep

LEARNING_RATE = 0.01  # Small, so that repeated steps on one batch do not diverge.
REPEATS = 8  # Of each work whose peak rate is measured.
MATRIX_SIDE = 2048
# The fastest of ResNet-50's convolutions: a 3x3 kernel with a stride of 1.
CONVOLUTION_SIDE = 28
CONVOLUTION_CHANNELS = 128
CONVOLUTION_IMAGES = 16  # Per thread.
COPIED_BYTES = 64 * 2**20  # Per thread: more than its part of any cache.

Images = tuple[tf.Tensor, tf.Tensor]  # Images and labels of one step.
Step = Callable[[tf.Tensor, tf.Tensor], float]


class Timing(NamedTuple):
    """The times and the memory that one rank measured."""

    seconds: list[float]  # Of each timed step, including the wait for its images.
    waited_seconds: float  # In all, of the timed steps for their images.
    first_step_seconds: float  # With the tracing of the graph.
    start_seconds: float  # From the start of the process to the end of the first step.
    peak_memory_mb: float  # Of the process, in 10**6 bytes.
    last_value: float  # Which the last step returned.


@dataclass(frozen=True)
class Report:
    """The results of all ranks together."""

    figures: dict[str, Any]  # What --json prints.
    images_per_second: Sequence[float]  # Of all ranks together in each timed step.
    step_seconds: Sequence[float]  # Of each timed step on the slowest rank.
    flops_per_image: int

    def table(self) -> str:
        """Returns the results as a table."""
        values = self.figures
        work = "evaluation" if values["infer"] else "training"
        if values["ranks"] > 1 and not (values["infer"] or values["average_gradients"]):
            work += " without gradient exchange"
        ops = "stock ops"
        if values["compiled_ops"]:
            ops = f"compiled ops ({values['instruction_set']})"
        versions = ", ".join(f"{name} {v}" for name, v in values["versions"].items())
        flops, share = self.flops_per_image / 1e9, values["input_wait_share"]
        waiting = "" if share is None else f"{share:.1%} of the time"
        rows = {
            "images/s, all ranks": _spread(self.images_per_second, 1),
            "seconds per step": _spread(self.step_seconds, 3),
            "first step": "{first_step_seconds:.1f} s, with graph tracing",
            "startup to first step": "{start_seconds:.1f} s",
            "peak memory per rank": "{peak_memory_mb:,.0f} MB",
            "waiting for images": waiting,
            "arithmetic": "{gflops:,.0f} GFLOP/s, " + f"{flops:.2f} GFLOP per image",
            "limit: matrix product": "{matmul_gflops:,.0f} GFLOP/s, {flops_share:.1%}"
            " of peak",
            "limit: 3x3 convolution": "{convolution_gflops:,.0f} GFLOP/s,"
            " {convolution_flops_share:.1%} of peak",
            "limit: copies in memory": "{copy_gigabytes_per_second:.1f} GB/s read and"
            " written",
        }
        lines = [
            f"{values['model']}, {work}, {values['precision']},"
            f" {values['image_size']} px,"
            f" ranks: {values['ranks']} x {values['batch_size']} images,"
            f" {values['num_intra_threads']} + {values['num_inter_threads']} threads"
            " each",
            f"images from {values['data_dir'] or 'memory'}; {ops}; {versions};"
            f" {values['cpu']}",
            f"{'':28} {'median':>10} {'min':>10} {'max':>10}",
            *(
                f"{name:28} {text.format(**values)}"
                for name, text in rows.items()
                if text
            ),
        ]
        return "\n".join(lines)


def _spread(values: Sequence[float], digits: int) -> str:
    shown = (statistics.median(values), min(values), max(values))
    return " ".join(f"{value:10,.{digits}f}" for value in shown)


def measure(
    settings: Settings,
    num_classes: int,
    shard: ExampleShard | None,
    threads: Threads,
    with_profile: bool,
    communicator: Communicator,
) -> tuple[Report, step_profile.Profile | None]:
    """Returns the results of all ranks, and rank 0's profile of a step if asked for.

    Without a shard, the images are from memory. Raises AgreedFailure, on all ranks, if
    the last step returned a non-finite value.
    """
    if settings.stock_ops:
        native.disable()
    if settings.precision == "auto":
        chosen = precision.choose("auto", communicator)
        settings = dataclasses.replace(settings, precision=chosen)
    model = build_network(settings, num_classes)
    if settings.infer:
        step, flops_per_image = evaluation_step(model), count_forward_pass(model)
    else:
        exchanging = communicator
        if not settings.average_gradients:
            exchanging = Communicator(ProcessInfo())
        step = training_step(model, settings.phase, exchanging)
        flops_per_image = count_training_step(model)
    if shard:
        images = _images_of_records(settings, num_classes, shard, threads)
    else:
        size, side = settings.batch_size, settings.side
        images = images_from_memory(size, side, num_classes, communicator.rank)
    warmup_steps = settings.warmup_steps
    timing = time_steps(step, images, warmup_steps, settings.steps, communicator)
    profile = None
    if with_profile:  # Of one more step of all ranks.
        batch = next(images)
        communicator.allgather(None)
        if communicator.rank == 0:
            profile = step_profile.record(lambda: step(*batch))
        else:
            step(*batch)
    limits = machine_limits(settings.precision, threads.num_intra_threads, communicator)
    timings = communicator.allgather(timing)
    if not np.isfinite([timing.last_value for timing in timings]).all():
        raise AgreedFailure(
            f"{model.name} computed NaN or infinity in {settings.precision} in the last"
            " step. Compare with --precision=float32 or --stock_ops to find the cause."
        )
    seconds = np.array([timing.seconds for timing in timings])
    rates = (settings.batch_size / seconds).sum(0).tolist()
    gflops = statistics.median(rates) * flops_per_image / 1e9
    waited = [timing.waited_seconds / sum(timing.seconds) for timing in timings]
    numbers = {
        "images_per_second": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
        "peak_memory_mb": max(timing.peak_memory_mb for timing in timings),
        "gflops": gflops,
        "flops_share": gflops / limits["matmul_gflops"],
        "convolution_flops_share": gflops / limits["convolution_gflops"],
        **limits,
        "first_step_seconds": max(timing.first_step_seconds for timing in timings),
        "start_seconds": max(timing.start_seconds for timing in timings),
    }
    figures = {
        **{name: round(value, 4) for name, value in numbers.items()},
        "input_wait_share": round(max(waited), 4) if shard else None,
        "profile_ms": profile.as_dict() if profile else None,
        **dataclasses.asdict(settings),
        "image_size": settings.side,
        "compiled_ops": native.ops() is not None,
        "instruction_set": native.instruction_set(),
        "ranks": communicator.num_ranks,
        "num_intra_threads": threads.num_intra_threads,
        "num_inter_threads": threads.num_inter_threads,
        "cpu": cpu_features.model_name(),
        "versions": {"TensorFlow": tf.__version__, "Keras": keras.__version__},
    }
    return Report(figures, rates, seconds.max(0).tolist(), flops_per_image), profile


def build_network(settings: Settings, num_classes: int) -> keras.Model:
    """Returns a new network of the settings, whose precision isn't "auto"."""
    dtype = COMPUTE_DTYPES[settings.precision]
    side = settings.side
    return models.build(settings.model, num_classes, side, compute_dtype=dtype)


def training_step(model: keras.Model, phase: Phase, communicator: Communicator) -> Step:
    """Returns the step of training with a phase's settings, which returns the loss."""
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
    momentum = phase.momentum
    settings = StepSettings(LEARNING_RATE, momentum, momentum, phase.weight_decay)
    nothing = tf.zeros([0])  # For the parts of a batch that this step doesn't use.

    def step(images: tf.Tensor, labels: tf.Tensor) -> float:
        examples = tf.range(len(labels), dtype=tf.int64)  # For dropout.
        batch = Batch(images, labels, examples, nothing, nothing)
        return train_step(batch, settings).local_loss

    return step


def evaluation_step(model: keras.Model) -> Step:
    """Returns the step that evaluates a network, which returns a logit."""
    infer = tf.function(lambda images: model(images, training=False))
    return lambda images, labels: float(infer(images)[0, 0])


def images_from_memory(
    batch_size: int, image_size: int, num_classes: int, rank: int
) -> Iterator[Images]:
    """Returns an endless iterator over one random batch, which differs by rank."""
    random = tf.random.Generator.from_seed(rank)
    shape = [batch_size, image_size, image_size, 3]
    labels = random.uniform([batch_size], 0, num_classes, tf.int32)
    return itertools.repeat((random.normal(shape), labels))


def _images_of_records(
    settings: Settings, num_classes: int, shard: ExampleShard, threads: Threads
) -> Iterator[Images]:
    reading = Reading(
        shard=shard,
        phases=[settings.phase],
        local_batch_size=settings.batch_size,
        num_parallel_calls=settings.num_parallel_calls or len(threads.cpus),
        on_bad_record=settings.on_bad_record,
    )
    read = batches.train_batches(reading)
    return ((batch.images, batch.labels) for batch in read)


def time_steps(
    step: Step,
    images_and_labels: Iterator[Images],
    warmup_steps: int,
    steps: int,
    communicator: Communicator,
) -> Timing:
    """Returns the durations of steps, timed after warmup steps and a barrier."""
    first = next(images_and_labels)
    start = time.perf_counter()
    value = step(*first)
    first_step_seconds = time.perf_counter() - start
    start_seconds = host.process_age_seconds()
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
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return Timing(
        seconds, waited_seconds, first_step_seconds, start_seconds, memory_mb, value
    )


def machine_limits(
    precision: str, num_threads: int, communicator: Communicator
) -> dict[str, float]:
    """Returns the peak rates of all ranks together, the best of several runs.

    They are those of a product of large matrices and of a 3x3 convolution, the faster
    of TensorFlow's and this project's, in 10**9 FLOP/s; and of copies, in 10**9 bytes
    read and written per second.
    """
    dtype = tf.as_dtype(COMPUTE_DTYPES[precision])
    matrix = tf.cast(tf.random.normal([MATRIX_SIDE, MATRIX_SIDE]), dtype)
    matmul = tf.function(tf.matmul)
    side, channels = CONVOLUTION_SIDE, CONVOLUTION_CHANNELS
    num_images = CONVOLUTION_IMAGES * num_threads
    images = tf.cast(tf.random.normal([num_images, side, side, channels]), dtype)
    kernel = tf.random.normal([3, 3, channels, channels])

    @tf.function
    def stock(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(images, tf.cast(kernel, dtype), 1, "SAME")

    @tf.function
    def ours(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return convolution.conv2d(images, kernel, 1)

    operations = 2 * 9 * channels**2 * num_images * side**2
    pairs = np.ones([num_threads, 2, COPIED_BYTES], np.uint8)
    with ThreadPoolExecutor(num_threads) as pool:  # NumPy copies without the GIL.

        def copy_all() -> None:
            list(pool.map(lambda pair: np.copyto(*pair), pairs))

        rates = [
            best_rate(work, amount, communicator) / 1e9
            for work, amount in (
                (lambda: matmul(matrix, matrix), 2 * MATRIX_SIDE**3),
                (lambda: stock(images, kernel), operations),
                (lambda: ours(images, kernel), operations),
                (copy_all, 2 * COPIED_BYTES * num_threads),
            )
        ]
    return {
        "matmul_gflops": rates[0],
        "convolution_gflops": max(rates[1:3]),
        "copy_gigabytes_per_second": rates[3],
    }


def best_rate(
    work: Callable[[], object], amount: float, communicator: Communicator
) -> float:
    """Returns the best total rate of all ranks in amounts of work per second."""
    work()  # Warmup.
    rates = []
    for _ in range(REPEATS):
        communicator.allgather(None)  # A barrier: all ranks start together.
        start = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - start))
    return float(communicator.allreduce_sum(np.array(rates)).max())


def count_forward_pass(model: keras.Model) -> int:
    """Returns the floating-point operations (FLOPs) of the forward pass for one image.

    Only convolutions and dense layers count, which are nearly all of the work. A
    multiplication and an addition count as two operations.
    """
    return sum(count for count, _ in _count_kernels(model))


def count_training_step(model: keras.Model) -> int:
    """Returns the number of operations of forward and backward pass for one image.

    In each layer the outputs, the gradient of the kernel and that of the inputs take as
    many operations. The first layer has no gradient of its inputs, the images. If only
    its bias is trained, it computes its outputs alone, and the next layer all three.
    """
    counts = _count_kernels(model)
    trained = [count for count, is_trained in counts if is_trained]
    constant = [count for count, is_trained in counts if not is_trained]
    if constant:
        return 3 * sum(trained) + sum(constant)
    return 3 * sum(trained) - trained[0]


def _count_kernels(model: keras.Model) -> list[tuple[int, bool]]:
    """Returns the operations of each kernel's forward pass, and whether it learns.

    A kernel `[height, width, channels, filters]` is applied at every position of its
    layer's output, or of what the layer pools; a kernel `[features, classes]` once.
    """
    counts = []
    for layer in model.layers:
        for weight in layer.weights:
            size = 2 * math.prod(weight.shape)
            if len(weight.shape) == 4:
                counts.append((size * num_positions(layer), weight.trainable))
            elif len(weight.shape) == 2:
                counts.append((size, weight.trainable))
    return counts


def num_positions(layer: keras.layers.Layer) -> int:
    """Returns the number of positions that a layer's kernel is applied at."""
    if isinstance(layer, layers.PooledConvNorm):
        return math.prod(-(-side // layer.stride) for side in layer.input.shape[1:3])
    output, *_ = keras.tree.flatten(layer.output)
    return math.prod(output.shape[1:3])
