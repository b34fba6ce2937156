"""Muon: momentum whose updates of convolutions are orthogonal matrices.

A kernel of a convolution with n filters is a matrix with n columns. For these

velocity = muon_momentum * velocity + gradient
direction = velocity                                   (plain)
direction = gradient + muon_momentum * velocity        (Nesterov)
variable = variable * sqrt(n) / |variable| - learning_rate * orthogonal(direction)

with the 2-norm and `orthogonalized`. These kernels have no weight decay, since their
norm is fixed; batch normalization makes the network independent of it. All other
variables are updated by `momentum`, with the momentum of the phase. Ranks with the same
velocities divide the orthogonal matrices among themselves. They are computed in the
precision of the network, as in the source, by products with sums in float32.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, with the
normalized kernels of KellerJordan/cifar10-airbench, airbench94_muon.py.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from resnet import native
from resnet.config.phases import StepSettings
from resnet.distributed.collectives import Collectives
from resnet.optim import norms
from resnet.optim.groups import Group, Rule, balanced, descend

# The odd polynomial a x + b x^3 + c x^5 that each iteration applies to the singular
# values, and the number of iterations: Jordan's, after which the singular values of a
# matrix of norm 1 are about 1 if they were not far below 0.1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3
_EPSILON = 1e-7  # Keeps a gradient of zeros finite.


def update(group: Group, gradients: Sequence[tf.Tensor], settings: StepSettings) -> int:
    """Updates a group of kernels (`Rule.update`)."""
    momentum = group.config.muon_momentum
    directions = []
    for velocity, gradient in zip(group.slot("velocity"), gradients, strict=True):
        direction = velocity.assign(momentum * velocity + gradient)
        if group.config.nesterov:
            direction = gradient + momentum * direction
        directions.append(tf.reshape(direction, [-1, gradient.shape[-1]]))
    updates, bytes_sent = orthogonalized_by_ranks(
        directions, group.dtype, group.collectives, f"muon/{group.names[0]}"
    )
    rate = settings.learning_rate * group.rate_factor
    for variable, matrix in zip(group.variables, updates, strict=True):
        variable.assign(variable * normalization_factor(variable))
        direction = tf.cast(tf.reshape(matrix, variable.shape), tf.float32)
        descend(variable, rate, direction)
    return bytes_sent


def orthogonalized_by_ranks(
    matrices: Sequence[tf.Tensor],
    dtype: tf.DType,
    collectives: Collectives | None,
    name: str,
) -> tuple[list[tf.Tensor], int]:
    """Returns the orthogonal matrices of some, and the bytes that this rank sends.

    The matrices are float32 and the same on all ranks. Each result is computed on one
    rank, in `dtype`, and all ranks get all of them, in a message of that dtype and that
    name; without other ranks, this one computes all. To be called inside the graph.
    """
    if collectives is None or collectives.num_ranks == 1:
        return [orthogonalized(matrix, dtype) for matrix in matrices], 0
    shares = balanced(
        [cost(matrix.shape) for matrix in matrices], collectives.num_ranks
    )
    own = [
        tf.reshape(orthogonalized(matrices[place], dtype), [-1])
        for place in shares[collectives.rank]
    ]
    message = tf.concat([tf.zeros([0], dtype), *own], 0)
    order = [place for share in shares for place in share]
    sizes = [matrices[place].shape.num_elements() for place in order]
    parts = tf.split(collectives.allgather(message, name), sizes)
    results = dict(zip(order, parts, strict=True))
    gathered = [
        tf.reshape(results[place], matrix.shape)
        for place, matrix in enumerate(matrices)
    ]
    num_bytes = dtype.size * (message.shape[0] or 0)
    return gathered, num_bytes * (collectives.num_ranks - 1)


def _is_convolution(shape: Sequence[int]) -> bool:
    return len(shape) == 4


def normalization_factor(kernel: tf.Variable) -> tf.Tensor:
    """Returns the factor that gives a kernel with n filters the norm sqrt(n), or 0."""
    return tf.math.divide_no_nan(kernel.shape[-1] ** 0.5, norms.norm(kernel))


def normalize_kernels(network: keras.Model) -> None:
    """Gives the kernels of convolutions the norm that Muon's updates give them.

    The biases and moving averages of their batch normalization, which all have, are
    scaled with them, so that the averages fit after the first update, and the network
    computes the same, apart from the epsilon.
    """
    for layer in network.layers:
        kernel = getattr(layer, "kernel", None)
        if kernel is None or not (kernel.trainable and _is_convolution(kernel.shape)):
            continue
        factor = normalization_factor(kernel.value)
        for name in ("kernel", "bias", "moving_mean"):
            if (variable := getattr(layer, name, None)) is not None:
                variable.assign(variable.value * factor)
        layer.moving_variance.assign(layer.moving_variance.value * factor**2)


def orthogonalized(matrix: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Returns about U V^T, of `dtype`, for a float32 matrix U S V^T of known shape.

    Products are rounded to `dtype`. In bfloat16, singular values below about 0.05 of
    the matrix's norm, whose squares are like rounding errors, are raised less exactly.

    Each iteration of Newton and Schulz applies a polynomial to the singular values,
    without computing them: X = P X with P = a I + b G + c G^2 and G = X X^T. As all of
    these P commute with all G, the product of the three is computed with G alone, whose
    sides are the shorter one of the matrix: G = P G P. So X is read twice instead of
    six times. With more rows than columns, it is X = X P with G = X^T X.
    """
    a, b, c = COEFFICIENTS
    is_wide = matrix.shape[0] < matrix.shape[1]
    x = tf.cast(matrix / (norms.norm(matrix) + _EPSILON), dtype)
    transposed = tf.transpose(x)
    gram = product(x, transposed) if is_wide else product(transposed, x)
    identity = tf.eye(gram.shape[0], dtype=dtype)
    total = identity
    for iteration in range(ITERATIONS):
        factor = a * identity + b * gram + c * product(gram, gram)
        total = product(factor, total) if iteration else factor
        if iteration < ITERATIONS - 1:
            gram = product(factor, product(factor, gram))
    return product(total, x) if is_wide else product(x, total)


def cost(shape: Sequence[int]) -> int:
    """Returns the multiplications and additions of `orthogonalized` by matrix products.

    For sides m <= n, two products have 2 m^2 n of them each. Those of Gram matrices
    have 2 m^3: one in each iteration, and three more between two iterations.
    """
    shorter, longer = sorted(shape)
    num_products = ITERATIONS + 3 * (ITERATIONS - 1)
    return 4 * shorter**2 * longer + 2 * num_products * shorter**3


def product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns the product of two matrices of a dtype, the same bits for any threads.

    As a 1x1 convolution, its compiled op sums each value of the result in one thread;
    TensorFlow's own product, which stands in without the compiled ops, may divide sums.
    """
    library = native.fast_ops(left.dtype)
    if library is None:
        return tf.matmul(left, right)
    images = library.resnet_conv2d(
        images=left[None, None],
        kernel=tf.cast(right, tf.float32)[None, None],
        scale=[],
        bias=[],
        residual=[],
        stride=1,
        relu=False,
    )
    return images[0, 0]


RULE = Rule(
    update, takes=_is_convolution, decays=lambda _, shape: not _is_convolution(shape)
)
