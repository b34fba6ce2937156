"""From a vector to its message and from the messages of all ranks to their mean.

Each method has an op of `resnet.native`, and its reference implementation in NumPy,
which takes the op's place where there is no library of compiled ops.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from resnet import native
from resnet.config.compression import CompressionSettings
from resnet.exchange.codecs import (
    casts,
    message_sizes,
    pieces,
    qsgd,
    sparse,
    ternary,
    wire,
)
from resnet.exchange.codecs.random_bits import Stream


def encode(
    values: tf.Tensor,
    compression: CompressionSettings,
    stream: tf.Tensor,
    ratio: Any = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector, and what it lacks.

    Where the message would be longer than that of all values in float32, it is this
    dense one.

    Args:
        values: `[n]` float32; n is known in the graph, and at least 1.
        compression: The method, any but "randomk" and "powersgd", and its parameters.
        stream: `[4]` int64: the numbers of a `random_bits.Stream`.
        ratio: Fraction of the values that topk and dgc keep, a number or a float64
            scalar; None for that of the settings.

    Returns:
        The message, uint8; and `values` minus the values in the message, float32.
    """
    if message_sizes.is_always_dense(compression, values.shape.num_elements()):
        return _dense(values), tf.zeros_like(values)
    return encode_by_method(values, compression, stream, ratio)


def encode_by_method(
    values: tf.Tensor,
    compression: CompressionSettings,
    stream: tf.Tensor,
    ratio: Any = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message that a method makes, and what it lacks; see `encode`.

    That of terngrad or qsgd may be longer than a dense one.
    """
    ops = native.ops()
    (size,) = values.shape
    if compression.method in casts.KINDS:
        return casts.encode(values, compression.method)
    if compression.method == "terngrad":
        if ops:
            return ops.resnet_encode_ternary(values, stream)
        return _in_numpy(
            lambda one, numbers: ternary.encode(one, Stream(*numbers.tolist())),
            *(values, stream),
        )
    if compression.method == "qsgd":
        states, bucket = compression.qstates, compression.qsgd_bucket
        norm = compression.qsgd_norm
        if ops:
            return ops.resnet_encode_qsgd(
                values, stream, states=states, bucket=bucket, norm=norm
            )
        return _in_numpy(
            lambda one, numbers: qsgd.encode(
                one, Stream(*numbers.tolist()), states, bucket, norm
            ),
            *(values, stream),
        )
    threshold = _threshold(values, size, compression, ratio)
    is_bfloat16 = compression.kept_values == "bfloat16"
    if ops:
        return ops.resnet_encode_sparse(values, threshold, is_bfloat16=is_bfloat16)
    return _in_numpy(
        lambda one, smallest: sparse.encode(one, smallest, is_bfloat16),
        *(values, threshold),
    )


def cut(message: tf.Tensor, sizes: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the messages of successive pieces of a vector, as `pieces.cut` does.

    Args:
        message: The message of the vector, uint8.
        sizes: Length of each piece.

    Returns:
        The messages, one behind the other, uint8; and their lengths in bytes, `[n]`
        int32.

    Raises:
        tf.errors.OpError: In the graph, if the message is corrupt.
    """
    ops = native.ops()
    if ops:
        return ops.resnet_cut_message(message, sizes=sizes)

    def in_numpy(given: wire.Bytes) -> tuple[wire.Bytes, np.ndarray]:
        found = pieces.cut(given, sizes)
        return np.concatenate(found), np.array([one.size for one in found], np.int32)

    cut_pieces, lengths = tf.numpy_function(in_numpy, [message], [tf.uint8, tf.int32])
    cut_pieces.set_shape([None])
    lengths.set_shape([len(sizes)])
    return cut_pieces, lengths


def decode_mean(
    messages: tf.Tensor, sizes: Sequence[int], num_ranks: int
) -> list[tf.Tensor]:
    """Returns the means over ranks of vectors, `[n]` float32 each.

    Args:
        messages: uint8: those of all vectors of rank 0, then those of rank 1, and so
            on.
        sizes: Length of each vector.
        num_ranks: Number of ranks.

    Raises:
        tf.errors.DataLossError: In the graph, if they are corrupt.
    """
    ops = native.ops()
    if ops:
        return ops.resnet_decode_mean(
            messages, num_vectors=len(sizes), sizes=sizes, num_ranks=num_ranks
        )
    means = tf.numpy_function(
        lambda given: decode_mean_in_numpy(given, sizes, num_ranks),
        [messages],
        [tf.float32] * len(sizes),
    )
    means = tf.nest.flatten(means)  # Outside a graph, one result isn't in a list.
    for mean, size in zip(means, sizes, strict=True):
        mean.set_shape([size])
    return means


def decode_mean_in_numpy(
    messages: wire.Bytes, sizes: Sequence[int], num_ranks: int
) -> list[wire.Values]:
    """Returns the means over ranks of vectors, as `decode_mean` does.

    Raises:
        ValueError: If the messages are corrupt.
    """
    factor = np.float32(1) / np.float32(num_ranks)
    means = [np.zeros(size, np.float32) for size in sizes]
    for _ in range(num_ranks):
        for mean in means:
            kind, bit_width, body, messages = wire.split(messages)
            with np.errstate(invalid="ignore", over="ignore"):
                mean += decode(kind, bit_width, body, mean.size) * factor
    if messages.size:
        raise ValueError(f"{messages.size} bytes are behind the last message")
    return means


def decode(kind: int, bit_width: int, body: bytes, num_values: int) -> wire.Values:
    """Returns the vector of a message.

    Args:
        kind: Kind of the message.
        bit_width: Bit width in its header.
        body: The message without its header.
        num_values: Length of the vector.

    Raises:
        ValueError: If the message is corrupt.
    """
    if kind == wire.TERNARY:
        return ternary.decode(body, num_values)
    if kind == wire.QSGD:
        return qsgd.decode(bit_width, body, num_values)
    if kind in casts.KINDS.values():
        return casts.decode(kind, body, num_values)
    if kind in (wire.SPARSE_FLOAT32, wire.SPARSE_BFLOAT16):
        return sparse.decode(kind, bit_width, body, num_values)
    if len(body) != 4 * num_values:
        raise ValueError(f"a message of {num_values} values has {len(body)} bytes")
    return np.frombuffer(body, "<f4").astype(np.float32)


def is_dense(message: tf.Tensor) -> tf.Tensor:
    """Returns whether a message, uint8, holds all values in float32; a bool scalar."""
    return tf.equal(message[wire.KIND_BYTE], wire.DENSE)


def _dense(values: tf.Tensor) -> tf.Tensor:
    header = wire.header(wire.DENSE, 0, 4 * values.shape[0])
    body = tf.reshape(tf.bitcast(values, tf.uint8), [-1])
    return tf.concat([np.frombuffer(header, np.uint8), body], axis=0)


def _threshold(
    values: tf.Tensor, size: int, compression: CompressionSettings, ratio: Any
) -> tf.Tensor:
    """Returns the smallest magnitude that a method keeps, a float32 scalar."""
    if compression.method == "thresholdv":
        return tf.constant(compression.threshold, tf.float32)
    if compression.method == "adaptivethreshold":
        # By the order of bits, in which NaN is the largest.
        bits = tf.bitcast(values, tf.int32) & 0x7FFFFFFF
        return tf.bitcast(tf.reduce_max(bits), tf.float32) / 2
    count = _topk_count(size, compression.ratio if ratio is None else ratio)
    ops = native.ops()
    if ops:
        return ops.resnet_topk_threshold(values, count)
    threshold = tf.numpy_function(sparse.threshold_of_topk, [values, count], tf.float32)
    threshold.set_shape([])
    return threshold


def _topk_count(size: int, ratio: Any) -> tf.Tensor:
    """Returns `sparse.topk_count`, an int64 scalar."""
    if not tf.is_tensor(ratio):
        return tf.constant(sparse.topk_count(size, ratio), tf.int64)
    num_dropped = tf.cast(tf.math.ceil(size * (1 - ratio)), tf.int64)
    return tf.minimum(size - num_dropped + 1, size)


def _in_numpy(
    function: Callable[..., Any], values: tf.Tensor, other: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a message and what it lacks, which a function of NumPy computes."""
    message, left = tf.numpy_function(function, [values, other], [tf.uint8, tf.float32])
    message.set_shape([None])
    left.set_shape(values.shape)
    return message, left
