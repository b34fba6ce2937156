"""Measures step times, a profile of one step and the peak rates of the machine."""

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from eval import machine_limits, step_profile, step_timing
from eval.benchmark_report import Report
from eval.benchmark_settings import Settings
from eval.step_timing import Images, Step, Timing
from resnet import models, native
from resnet.data import batches
from resnet.data.example_shard import ExampleShard
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.models import flops
from resnet.models.names import COMPUTE_DTYPES
from resnet.runtime import precision


def measure(
    settings: Settings,
    num_classes: int,
    shard: ExampleShard | None,
    threads: Threads,
    with_profile: bool,
    communicator: Communicator,
) -> tuple[Report, step_profile.Profile | None]:
    """Returns the results of all ranks, and rank 0's profile of a step.

    Args:
        settings: The settings of the measurement.
        num_classes: The number of classes of the images.
        shard: The examples that this rank trains on; None for images from memory.
        threads: The numbers of threads of this rank.
        with_profile: Whether to profile a step.
        communicator: The ranks that measure together.

    Raises:
        AgreedFailure: On all ranks, if the last step returned a non-finite value.
    """
    if settings.stock_ops:
        native.disable()
    if settings.precision == "auto":
        chosen = precision.choose("auto", communicator)
        settings = dataclasses.replace(settings, precision=chosen)
    model = build_network(settings, num_classes)
    step, flops_per_image = _step(settings, model, communicator)
    timing, profile = _run(
        step,
        _images(settings, num_classes, shard, threads, communicator),
        settings,
        with_profile,
        communicator,
    )
    limits = machine_limits.measure(
        settings.precision, threads.num_intra_threads, communicator
    )
    timings = communicator.allgather(timing)
    if not np.isfinite([timing.last_value for timing in timings]).all():
        raise AgreedFailure(
            f"{model.name} computed NaN or infinity in {settings.precision} in the last"
            " step. Compare with --precision=float32 or --stock_ops to find the cause."
        )
    seconds = np.array([timing.seconds for timing in timings])
    report = Report(
        settings=settings,
        image_size=settings.side,
        num_ranks=communicator.num_ranks,
        num_intra_threads=threads.num_intra_threads,
        num_inter_threads=threads.num_inter_threads,
        compiled_ops=native.ops() is not None,
        instruction_set=native.instruction_set(),
        versions={"TensorFlow": tf.__version__, "Keras": keras.__version__},
        images_per_second=tuple((settings.batch_size / seconds).sum(0).tolist()),
        step_seconds=tuple(seconds.max(0).tolist()),
        first_step_seconds=max(timing.first_step_seconds for timing in timings),
        start_seconds=max(timing.start_seconds for timing in timings),
        peak_memory_mb=max(timing.peak_memory_mb for timing in timings),
        input_wait_share=(
            max(timing.waited_seconds / sum(timing.seconds) for timing in timings)
            if shard
            else None
        ),
        flops_per_image=flops_per_image,
        limits=limits,
        profile=profile.as_dict() if profile else None,
    )
    return report, profile


def build_network(settings: Settings, num_classes: int) -> keras.Model:
    """Returns a new network of the settings, whose precision isn't "auto"."""
    return models.build(
        settings.model,
        num_classes,
        settings.side,
        compute_dtype=COMPUTE_DTYPES[settings.precision],
    )


def _step(
    settings: Settings, model: keras.Model, communicator: Communicator
) -> tuple[Step, int]:
    """Returns the step of a network, and its number of operations per image."""
    if settings.infer:
        return step_timing.evaluation_step(model), flops.count_forward_pass(model)
    if not settings.average_gradients:
        communicator = Communicator(ProcessInfo())
    step = step_timing.training_step(model, settings.phase, communicator)
    return step, flops.count_training_step(model)


def _images(
    settings: Settings,
    num_classes: int,
    shard: ExampleShard | None,
    threads: Threads,
    communicator: Communicator,
) -> Iterator[Images]:
    """Returns the images and labels of each step, random ones without a shard."""
    if shard is None:
        return step_timing.images_from_memory(
            settings.batch_size, settings.side, num_classes, communicator.rank
        )
    read = batches.train_batches(
        shard,
        [settings.phase],
        seed=0,
        local_batch_size=settings.batch_size,
        num_classes=num_classes,
        num_parallel_calls=settings.num_parallel_calls or len(threads.cpus),
        on_bad_record=settings.on_bad_record,
    )
    return ((batch.images, batch.labels) for batch in read)


def _run(
    step: Step,
    images: Iterator[Images],
    settings: Settings,
    with_profile: bool,
    communicator: Communicator,
) -> tuple[Timing, step_profile.Profile | None]:
    """Returns the step times, and rank 0's profile of one more step."""
    timing = step_timing.time_steps(
        step, images, settings.warmup_steps, settings.steps, communicator
    )
    if not with_profile:
        return timing, None
    one_more = next(images)
    communicator.allgather(None)
    if communicator.rank == 0:
        return timing, step_profile.record(lambda: step(*one_more))
    step(*one_more)
    return timing, None
