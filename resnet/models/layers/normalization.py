"""Batch normalization in training, and its moving averages.

Normalization, residual addition and ReLU are one op. A layer updates its own moving
averages, unless the statistics are collected: in asynchronous training the averages are
on parameter servers.

Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from resnet import native
from resnet.models.options import EPSILON


def batch_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    residual: tf.Tensor | None,
    relu: bool,
    num_copies: int = 1,
    epsilon: float = EPSILON,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor]:
    """Returns the normalized images y, and the mean and variance of each channel.

    y = relu(gamma * (x - mean) / sqrt(variance + epsilon) + beta + residual)

    with the mean and the biased variance of `x`, `[batch, height, width, channels]` in
    float32 or bfloat16, over batch, height and width. y comes `num_copies` times: with
    one for each consumer, the backward op sums their gradients while it reads them. The
    returned mean and variance, the unbiased estimate, are float32 `[channels]`, like
    gamma and beta; no gradients flow through them.
    """
    library = native.fast_ops(x.dtype)
    if library is not None:
        outputs = library.resnet_batch_norm(
            x=x,
            gamma=gamma,
            beta=beta,
            residual=[] if residual is None else [residual],
            epsilon=epsilon,
            relu=relu,
            num_copies=num_copies,
        )
        return tuple(outputs.y), outputs.mean, outputs.variance
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[],
        variance=[],
        epsilon=epsilon,
        is_training=True,
    )
    if residual is not None:
        y = y + residual
    if relu:
        y = tf.nn.relu(y)
    return (y,) * num_copies, mean, variance


def rematerialize(images: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Returns the images, recomputed bit for bit if `batch_norm` is their producer.

    The output of the forward pass then needn't stay in memory until the backward pass,
    which saves a sixth of ResNet-50's activations. The recomputation starts when the
    tensor `after` is available. In eager mode, for other producers, and for a
    `batch_norm` with a residual or several copies (whose outputs stay in memory anyway)
    the images are returned as they are.
    """
    if not tf.is_symbolic_tensor(images) or images.op.type != "ResnetBatchNorm":
        return images
    op = images.op
    if op.get_attr("num_copies") > 1 or op.get_attr("num_residuals"):
        return images
    _, mean, _, inverse_stddev, _ = op.outputs
    x, gamma, beta = op.inputs
    library: Any = native.ops()
    with tf.control_dependencies([after]):
        return library.resnet_normalize(
            x=x,
            gamma=gamma,
            beta=beta,
            mean=mean,
            inverse_stddev=inverse_stddev,
            relu=op.get_attr("relu"),
        )


@tf.RegisterGradient("ResnetBatchNorm")
def _gradients(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor]:
    num_copies = op.get_attr("num_copies")
    mean, _, inverse_stddev, positive = op.outputs[num_copies:]
    x, gamma, beta, *residuals = op.inputs
    library: Any = native.ops()
    results = library.resnet_batch_norm_grad(
        dy=[dy for dy in gradients[:num_copies] if dy is not None],
        x=x,
        positive=positive,
        gamma=gamma,
        beta=beta,
        mean=mean,
        inverse_stddev=inverse_stddev,
        relu=op.get_attr("relu"),
        num_residuals=len(residuals),
    )
    return [results.dx, results.dgamma, results.dbeta, *results.dresidual]


class Statistic(NamedTuple):
    """A statistic of a batch, `[channels]` float32, and the variable averaging it."""

    average: keras.Variable
    value: tf.Tensor
    step_size: float  # 1 - m, the weight of the batch.


_collected = threading.local()


@contextlib.contextmanager
def collected() -> Iterator[list[Statistic]]:
    """Collects the statistics of the block instead of updating the averages."""
    statistics: list[Statistic] = []
    _collected.statistics = statistics
    try:
        yield statistics
    finally:
        _collected.statistics = None


def update_average(average: keras.Variable, value: tf.Tensor, momentum: float) -> None:
    """Moves an average towards the statistic of a batch, or notes the statistic."""
    statistics = getattr(_collected, "statistics", None)
    if statistics is not None:
        statistics.append(Statistic(average, value, 1 - momentum))
        return
    move_averages([Statistic(average, value, 1 - momentum)])


def move_averages(statistics: Sequence[Statistic]) -> None:
    """Moves each average towards its statistic: by its step size of their difference.

    All at once, which takes less time than layer by layer. Both ways, and with or
    without the compiled op, the bits are the same.
    """
    library = native.ops()
    if library is None:
        for average, value, step_size in statistics:
            variable = average.value
            variable.assign_sub((variable - value) * step_size)
    elif statistics:
        library.resnet_move_averages(
            averages=[average.value.handle for average, _, _ in statistics],
            statistics=[value for _, value, _ in statistics],
            steps=[step_size for _, _, step_size in statistics],
        )
