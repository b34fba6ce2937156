"""Measures the peak rates of the machine while all ranks compute concurrently."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from eval.benchmark_report import Limits
from resnet.distributed.communicator import Communicator
from resnet.models.layers import convolution
from resnet.models.names import COMPUTE_DTYPES

REPEATS = 8
MATRIX_SIDE = 2048
# The fastest of ResNet-50's convolutions: a 3x3 kernel with a stride of 1.
CONVOLUTION_SIDE = 28
CONVOLUTION_CHANNELS = 128
CONVOLUTION_IMAGES = 16  # Per thread.
COPIED_BYTES = 64 * 2**20  # Per thread: more than its part of any cache.


def measure(precision: str, num_threads: int, communicator: Communicator) -> Limits:
    """Returns the peak rates of all ranks together, on each rank.

    Args:
        precision: The precision of matrices and images, "float32" or "bf16".
        num_threads: The number of intra-op threads of this rank.
        communicator: The ranks that compute concurrently.
    """
    dtype = tf.as_dtype(COMPUTE_DTYPES[precision])
    return Limits(
        _matmul_gflops(dtype, communicator),
        _convolution_gflops(dtype, num_threads, communicator),
        _copy_gigabytes(num_threads, communicator),
    )


def _matmul_gflops(dtype: tf.DType, communicator: Communicator) -> float:
    matrix = tf.cast(tf.random.normal([MATRIX_SIDE, MATRIX_SIDE]), dtype)
    matmul = tf.function(tf.matmul)
    operations = 2 * MATRIX_SIDE**3
    return best_rate(lambda: matmul(matrix, matrix), operations, communicator) / 1e9


def _convolution_gflops(
    dtype: tf.DType, num_threads: int, communicator: Communicator
) -> float:
    """Returns the higher rate of TensorFlow's and this project's convolution."""
    side, channels = CONVOLUTION_SIDE, CONVOLUTION_CHANNELS
    num_images = CONVOLUTION_IMAGES * num_threads
    images = tf.cast(tf.random.normal([num_images, side, side, channels]), dtype)
    kernel = tf.random.normal([3, 3, channels, channels])
    operations = 2 * 9 * channels**2 * num_images * side**2

    @tf.function
    def stock(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(images, tf.cast(kernel, dtype), 1, "SAME")

    @tf.function
    def ours(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return convolution.conv2d(images, kernel, 1)

    rates = [
        best_rate(functools.partial(convolve, images, kernel), operations, communicator)
        for convolve in (stock, ours)
    ]
    return max(rates) / 1e9


def _copy_gigabytes(num_threads: int, communicator: Communicator) -> float:
    """Returns the rate of copies between allocated arrays, in 10**9 bytes per second.

    NumPy releases the global interpreter lock while it copies.
    """
    pairs = [
        (np.ones(COPIED_BYTES, np.uint8), np.ones(COPIED_BYTES, np.uint8))
        for _ in range(num_threads)
    ]
    with ThreadPoolExecutor(num_threads) as pool:

        def copy_all() -> None:
            list(pool.map(lambda pair: np.copyto(*pair), pairs))

        return best_rate(copy_all, 2 * COPIED_BYTES * num_threads, communicator) / 1e9


def best_rate(
    work: Callable[[], object], amount: float, communicator: Communicator
) -> float:
    """Returns the best total rate of all ranks, in units of work per second.

    Args:
        work: The work of this rank; the first, untimed call is for warmup.
        amount: The amount of work in one call, such as operations or bytes.
        communicator: The ranks that work concurrently.
    """
    work()
    rates = []
    for _ in range(REPEATS):
        communicator.allgather(None)  # A barrier: all ranks start together.
        start = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - start))
    return float(communicator.allreduce_sum(np.array(rates)).max())
