"""terngrad, qsgd, fp16 and bf16: all values, each with fewer bits.

The random numbers of terngrad and qsgd are Philox4x32-10's: the key is the seed of the
run, and the counter is made of the number of a group of four values, and of the vector,
the step and the rank. So a run that resumes draws the same numbers, whatever number of
threads it has.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import math

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.exchange.codecs import messages
from resnet.exchange.codecs.codec import Context


def encode_ternary(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """TernGrad: each value becomes -1, 0 or 1 times the largest magnitude, at random.

        Q(g) = sign(g) max|g| b,  b = 1 with probability |g| / max|g|, else 0

    Its mean is g. If a value is infinite or NaN, all values in the message are NaN.
    After the header of a message (`messages`) follow

        bytes 8 to 11  the largest magnitude, float32
        digits         five values a byte: the sum of (sign(value) + 1) 3^i over the
                       places i = 0 to 4; the places behind the last value count as 0

    which is 1.6 bits a value, 0.015 above log2(3).

    Source: Wen et al. 2017, arXiv:1705.07878, without its clipping, as in
    sands-lab/layer-wise-aaai20, CIFAR10/core.py, TernGrad.
    """
    return messages.ops().resnet_encode_ternary(values, context.stream)


def encode_qsgd(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """QSGD: each value becomes one of a few levels of its vector's norm, at random.

        Q(g) = sign(g) norm floor(|g| / norm s + u) / s,  u uniform from 0 to 1

    Its mean is g. The norm is that of a bucket of successive values, or of all of them;
    if one of them is infinite or NaN, all values of the bucket in the message are NaN.
    After the header of a message (`messages`), whose bit width (w) is the least with
    2^w > 2 s, follow

        bytes 8 to 11   number of states s, uint32
        bytes 12 to 15  values of a bucket, uint32; 0: all values are one bucket
        norms           one float32 for each bucket
        levels          for each value sign(value) floor(...) + s in w bits; padded with
                        zero bits to a whole byte

    Source: Alistarh et al. 2017, arXiv:1610.02132; with one norm of all values as in
    sands-lab/layer-wise-aaai20, CIFAR10/core.py, RandomDithering; buckets, and the
    largest magnitude as the norm, as in CGX (arXiv:2111.08617).
    """
    settings = context.settings
    return messages.ops().resnet_encode_qsgd(
        values,
        context.stream,
        states=settings.qstates,
        bucket=settings.qsgd_bucket,
        norm=settings.qsgd_norm,
    )


def qsgd_alignment(settings: CompressionSettings, largest_size: int) -> int:
    """Returns the values that end with a whole byte and, of several, a whole bucket.

    A norm of a whole vector is in the message of each piece.
    """
    bucket = settings.qsgd_bucket
    return math.lcm(8, bucket) if 0 < bucket < largest_size else 8


def encode_fp16(values: tf.Tensor, _: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Rounds each value to IEEE half precision, ties to even.

    What is beyond the largest one, 65,504, becomes that; infinite values and NaN stay
    what they are.
    """
    largest = float(tf.float16.max)
    clipped = tf.clip_by_value(values, -largest, largest)
    within_range = tf.where(tf.math.is_finite(values), clipped, values)
    nearest = tf.cast(within_range, tf.float16)
    message = messages.of_values(nearest, messages.FLOAT16)
    return message, values - tf.cast(nearest, tf.float32)


def encode_bf16(values: tf.Tensor, _: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Rounds each value to bfloat16, ties to even."""
    nearest = tf.cast(values, tf.bfloat16)
    message = messages.of_values(nearest, messages.BFLOAT16)
    return message, values - tf.cast(nearest, tf.float32)
