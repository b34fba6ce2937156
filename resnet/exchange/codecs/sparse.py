"""topk, thresholdv and adaptivethreshold: the largest values; the others count as zero.

Zeros are never kept; NaN always is. After the header of a message (`messages`) follow

    bytes 8 to 11  number of kept values k, uint32
    values         k numbers in the order of their indices, float32 or bfloat16; or four
                   levels, float32, and k numbers of levels of 2 bits, padded
    remainders     k integers of `bit_width` bits (b) each, padded to a whole byte
    quotients      k unary numbers to the end of the message: as many zero bits as the
                   quotient, then a one; padded with zero bits to a whole byte

Remainder and quotient are those of each gap divided by `2**b`, a gap being the number
of dropped values before a kept one since the last kept one, and b the largest with
2^b <= ln(2) n / k: Rice's code, whose two parts are in streams of their own. For random
positions it takes 8.1 bits an index where 1 % is kept, 0.04 above their entropy. Levels
are the means of the kept values of a sign above their mean magnitude, and of the others
of this sign, in the order in which they are needed. Where the message would be longer
than that of all values, it is a dense one of the sent values and zeros.

Sources: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Topk, Thresholdv and
AdaptiveThreshold; Rice and Plaunt 1971, "Adaptive variable-length coding".
"""

import tensorflow as tf

from resnet.config.compression import topk_count
from resnet.exchange.codecs import messages
from resnet.exchange.codecs.codec import Context


def encode_topk(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps `topk_count` values, and what is as large as the smallest of them.

    NaN counts as the largest.
    """
    (size,) = values.shape
    if tf.is_tensor(context.ratio):
        num_dropped = tf.cast(tf.math.ceil(size * (1 - context.ratio)), tf.int64)
        count = tf.minimum(size - num_dropped + 1, size)
    else:
        count = tf.constant(topk_count(size, context.ratio), tf.int64)
    threshold = messages.ops().resnet_topk_threshold(values, count)
    return _encode(values, threshold, context)


def encode_above_threshold(
    values: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps the values of at least the magnitude that is set."""
    threshold = tf.constant(context.settings.threshold, tf.float32)
    return _encode(values, threshold, context)


def encode_above_half(
    values: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keeps the values of at least half of the largest magnitude."""
    # By the order of bits, in which NaN is the largest.
    bits = tf.bitcast(values, tf.int32) & 0x7FFFFFFF
    threshold = tf.bitcast(tf.reduce_max(bits), tf.float32) / 2
    return _encode(values, threshold, context)


def _encode(
    values: tf.Tensor, threshold: tf.Tensor, context: Context
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of the values of at least a magnitude, and what it lacks."""
    kept = context.settings.kept_values
    return messages.ops().resnet_encode_sparse(values, threshold, kept_values=kept)
