"""The bytes of messages, as functions of their lengths and of the number of ranks.

The formats are those of `wire`, `sparse`, `ternary` and `qsgd`.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from resnet.config.compression import CASTS, CompressionSettings
from resnet.exchange.codecs import qsgd, sparse, ternary, wire

# How many values these methods keep depends on the values.
OF_UNKNOWN_SIZE = ("thresholdv", "adaptivethreshold")


def of_step(compression: CompressionSettings, sizes: Iterable[int]) -> int | None:
    """Returns the bytes of one rank's coded gradients in a step.

    Args:
        compression: The method, any but powersgd (`of_powersgd`), and its parameters.
        sizes: Lengths of the vectors that are compressed (`vectors.shapes`).

    Returns:
        The bytes; None if they depend on the gradients.
    """
    if compression.method in OF_UNKNOWN_SIZE:
        return None
    return sum(of_vector(compression, size) for size in sizes)


def of_vector(compression: CompressionSettings, num_values: int) -> int:
    """Returns the bytes of the message of a vector; it is dense if that is shorter.

    For topk they are an estimate (`_sparse`), for the other methods exact.

    Args:
        compression: The method, none of `OF_UNKNOWN_SIZE`, and its parameters.
        num_values: Length of the vector, at least 1.
    """
    if num_values < compression.dense_below:
        return 4 * num_values
    if compression.method == "randomk":
        return 4 * sparse.randomk_count(num_values, compression.ratio)
    if compression.method in CASTS:
        return wire.HEADER_BYTES + 2 * num_values
    if compression.method in ("topk", "dgc"):
        coded = _sparse(num_values, compression)
    else:
        coded = _quantized(num_values, compression)
    return min(coded, dense(num_values))


def largest_of_vector(compression: CompressionSettings, num_values: int) -> int:
    """Returns the bytes of the longest message of a vector in any step.

    dgc's are longest in its first epoch. Those of `OF_UNKNOWN_SIZE` may be dense.

    Args:
        compression: The method, any but powersgd, and its parameters.
        num_values: Length of the vector, at least 1.
    """
    if compression.method in OF_UNKNOWN_SIZE:
        return dense(num_values)
    longest = dataclasses.replace(compression, ratio=compression.largest_ratio)
    return of_vector(longest, num_values)


def of_powersgd(
    shapes: Iterable[Sequence[int]], rank: int, dense_below: int = 0
) -> int:
    """Returns the bytes that powersgd sums up of one rank's gradients in a step.

    Those of a matrix of n rows and m columns are 4 rank (n + m); vectors are dense.

    Args:
        shapes: Shapes of the variables.
        rank: Rank of the approximations.
        dense_below: Matrices of fewer values are dense, too.
    """
    total = 0
    for shape in shapes:
        matrix, num_values = matrix_shape(shape), math.prod(shape)
        is_whole = not matrix or num_values < dense_below
        total += num_values if is_whole else rank * sum(matrix)
    return 4 * total


def matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns rows and columns of the gradient as a matrix; nothing for a vector.

    Args:
        shape: Shape of the variable, whose last axis are the columns.
    """
    if len(shape) < 2:
        return ()
    return math.prod(shape[:-1]), shape[-1]


def is_always_dense(compression: CompressionSettings, num_values: int) -> bool:
    """Returns whether any message of a vector would be longer than a dense one.

    The messages of terngrad and qsgd have one length; the other methods choose by the
    values.

    Args:
        compression: The method and its parameters.
        num_values: Length of the vector, at least 1.
    """
    if compression.method not in ("terngrad", "qsgd"):
        return False
    return _quantized(num_values, compression) > dense(num_values)


def dense(num_values: int) -> int:
    """Returns the bytes of a dense message."""
    return wire.HEADER_BYTES + 4 * num_values


def _sparse(num_values: int, compression: CompressionSettings) -> int:
    """Returns the bytes of a message of topk, rounded, if no two values are equal.

    The positions are taken as random. With the probability q that a value is dropped, a
    quotient then has on average q^w / (1 - q^w) zero bits, where w = 2^b is the divisor
    of the gaps: P(gap >= i w) = q^(i w) is summed over i = 1, 2, ...
    """
    count = sparse.topk_count(num_values, compression.ratio)
    bit_width = sparse.rice_width(num_values, count)
    dropped = (1 - count / num_values) ** (1 << bit_width)
    unary_bits = count * (1 + dropped / (1 - dropped))
    value_bytes = 2 if compression.kept_values == "bfloat16" else 4
    return (
        wire.HEADER_BYTES
        + sparse.COUNT_BYTES
        + count * value_bytes
        + wire.num_packed_bytes(count, bit_width)
        + wire.num_packed_bytes(round(unary_bits), 1)
    )


def _quantized(num_values: int, compression: CompressionSettings) -> int:
    if compression.method == "terngrad":
        digits = -(-num_values // ternary.VALUES_PER_BYTE)
        return wire.HEADER_BYTES + ternary.SCALE_BYTES + digits
    bucket = compression.qsgd_bucket or num_values
    return (
        wire.HEADER_BYTES
        + qsgd.FIXED_BYTES
        + 4 * -(-num_values // bucket)
        + wire.num_packed_bytes(num_values, qsgd.level_width(compression.qstates))
    )


def sent_by_allreduce(num_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that each rank sends where all ranks sum tensors in a ring.

    2 (R - 1) / R times the tensor, rounded: each rank sends R - 1 of its R parts while
    they are summed, and R - 1 parts of the sum.

    Args:
        num_bytes: Bytes n of the tensor.
        num_ranks: Number of ranks R; 0 bytes for one rank.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", section 3.
    """
    return round(2 * (num_ranks - 1) * num_bytes / num_ranks)


def sent_by_allgather(num_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that a rank's message takes on its way to all other ranks.

    Args:
        num_bytes: Bytes of the message.
        num_ranks: Number of ranks R: the message travels R - 1 times.
    """
    return (num_ranks - 1) * num_bytes


def sent_by_slices(num_bytes: int, num_ranks: int) -> int:
    """Returns the bytes that a rank sends where each sums up one slice of all messages.

    2 (R - 1) / R times its message, rounded, if the slices are coded as densely as the
    whole.

    Args:
        num_bytes: Bytes of the message.
        num_ranks: Number of ranks R.
    """
    return round(2 * (num_ranks - 1) * num_bytes / num_ranks)
