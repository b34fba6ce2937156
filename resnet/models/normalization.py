"""Batch normalization in training, with the sum with a residual and ReLU in one op.

Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
"""

from typing import Any

import tensorflow as tf

from resnet import native

EPSILON = 1e-5  # As in the TPU recipe.


def batch_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    residual: tf.Tensor | None,
    relu: bool,
    num_copies: int = 1,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor]:
    """Returns the normalized images, the mean and the variance of each channel.

    y = relu(gamma * (x - mean) / sqrt(biased variance + EPSILON) + beta + residual),
    by the moments of these images. The variance that is returned is the unbiased one.
    Mean and variance pass no gradients.

    Args:
        x: `[batch, height, width, channels]`, float32 or bfloat16.
        gamma: `[channels]`, float32.
        beta: `[channels]`, float32.
        residual: What to add, shaped like `x` and of its dtype, or None.
        relu: Whether negative results become 0.
        num_copies: How often y is returned, the same each time. With one for each layer
            that takes it, their gradients are summed where they are read anyway.
    """
    library = native.fast_ops(x.dtype)
    if library is None:
        return batch_norm_with_stock_ops(x, gamma, beta, residual, relu, num_copies)
    outputs = library.resnet_batch_norm(
        x=x,
        gamma=gamma,
        beta=beta,
        residual=[] if residual is None else [residual],
        epsilon=EPSILON,
        relu=relu,
        num_copies=num_copies,
    )
    return tuple(outputs.y), outputs.mean, outputs.variance


def batch_norm_with_stock_ops(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    residual: tf.Tensor | None,
    relu: bool,
    num_copies: int = 1,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor]:
    """Returns what `batch_norm` does, made of TensorFlow's own ops."""
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[],
        variance=[],
        epsilon=EPSILON,
        is_training=True,
    )
    if residual is not None:
        y = y + residual
    if relu:
        y = tf.nn.relu(y)
    return (y,) * num_copies, mean, variance


def computed_again(images: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Returns the images; those of `batch_norm` are computed again, to the same bits.

    Until then they needn't be kept, which is a sixth of what ResNet-50's forward pass
    would leave in memory for its backward pass. In a graph only, and not where there
    are copies or a residual.

    Args:
        images: What a forward pass has computed.
        after: What has to be there first.
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
    """Returns the gradients of x, gamma, beta, and of the residual if there is one."""
    num_copies = op.get_attr("num_copies")
    mean, _, inverse_stddev, positive = op.outputs[num_copies:]
    x, gamma, beta, *residuals = op.inputs
    library: Any = native.ops()
    found = library.resnet_batch_norm_grad(
        dy=[one for one in gradients[:num_copies] if one is not None],
        x=x,
        positive=positive,
        gamma=gamma,
        beta=beta,
        mean=mean,
        inverse_stddev=inverse_stddev,
        relu=op.get_attr("relu"),
        num_residuals=len(residuals),
    )
    return [found.dx, found.dgamma, found.dbeta, *found.dresidual]
