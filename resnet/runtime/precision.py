"""Chooses the precision to compute in, by measuring this machine.

bfloat16 takes half the memory, but the speed of its multiplications ranges from several
times that of float32 (with AMX) to a small fraction of it (on CPUs without bfloat16
instructions).
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import logging

from resnet import native
from resnet.distributed.communicator import Communicator
from resnet.hardware import cpu_features
from resnet.models.layers import convolution

# (side, channels in, kernel size, channels out): a reducing 1x1, a 3x3 and a late 3x3
# convolution of ResNet-50 at 128 pixels.
_PROBES = ((32, 256, 1, 64), (16, 128, 3, 128), (4, 512, 3, 512))
_PROBE_BATCH_SIZE = 16
_PROBE_REPEATS = 5
# Products of widened numbers must be so many times as fast to be taken: a resumed run,
# whose weights are to have the same bits, decides again.
_WIDENED_GAIN = 1.2
# Other ratios below 1 may be noise: repeated measurements differ by some per cent.
_CLEARLY_SLOWER = 0.9


def choose(requested: str, communicator: Communicator) -> str:
    """Returns the precision to compute in, "float32" or "bf16", the same on all ranks.

    "auto" takes the faster of the two. Unless float32 is requested, both are measured
    on all ranks concurrently, and the sums over ranks are compared. It logs a warning
    if the compiled ops can't compute in this precision.
    """
    chosen = requested
    if requested != "float32":
        ratio = _gain_of_bf16(communicator)
        if requested == "auto":
            chosen = "bf16" if ratio > 1 else "float32"
        elif not cpu_features.has_bf16(cpu_features.flags()):
            logging.warning("this CPU has no bf16 instructions")
        if requested != "auto" and ratio < _CLEARLY_SLOWER:
            logging.warning(
                "float32 is faster here: bf16 convolutions take"
                f" {1 / ratio:.2f} times as long"
            )
        else:
            logging.info(
                f"precision {chosen}: bf16 convolutions are {ratio:.2f} times as fast"
                " as float32 here"
            )
    native.fast_ops(tf.bfloat16 if chosen == "bf16" else tf.float32)
    return chosen


def _gain_of_bf16(communicator: Communicator) -> float:
    """Returns how many times as fast bf16 is; sets how it is multiplied."""
    seconds = np.array([_seconds(tf.float32), *_bf16_seconds()])
    float32_seconds, bf16_seconds, widened_seconds = communicator.allreduce_sum(seconds)
    if widened_seconds * _WIDENED_GAIN < bf16_seconds:
        if native.has_two_bf16_products():
            native.widen_bf16(True)
        logging.info(
            f"bf16 is multiplied as float32, {bf16_seconds / widened_seconds:.2f} times"
            " as fast as by AVX512_BF16 here"
        )
        bf16_seconds = widened_seconds
    return float(float32_seconds / bf16_seconds)


def _bf16_seconds() -> tuple[float, float]:
    """Returns `_seconds` of bfloat16, as it is and multiplied as float32, if it can."""
    if not native.has_two_bf16_products():
        seconds = _seconds(tf.bfloat16)
        return seconds, seconds
    native.widen_bf16(True)
    widened = _seconds(tf.bfloat16)
    native.widen_bf16(False)
    return _seconds(tf.bfloat16), widened


def _seconds(dtype: tf.DType) -> float:
    """Returns the sum of the median times of `_PROBES` and their gradients, in s."""

    @tf.function
    def gradients(images: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            outputs = convolution.conv2d(images, kernel, 1)
            loss = tf.reduce_sum(outputs * outputs)
        return tape.gradient(loss, [images, kernel])

    total = 0.0
    for side, channels, kernel_size, filters in _PROBES:
        images = tf.ones([_PROBE_BATCH_SIZE, side, side, channels], dtype)
        kernel = tf.ones([kernel_size, kernel_size, channels, filters])
        gradients(images, kernel)
        times = []
        for _ in range(_PROBE_REPEATS):
            note = f"measuring convolutions in {dtype.name}, to choose how to compute"
            logging.log_every_n_seconds(logging.INFO, note, 15)
            start = time.perf_counter()
            gradients(images, kernel)
            times.append(time.perf_counter() - start)
        total += statistics.median(times)
    return total
