"""QSGD: each value becomes one of a few levels of its vector's norm, at random.

    Q(g) = sign(g) norm floor(|g| / norm s + u) / s,  u uniform from 0 to 1

Its mean is g. The norm is that of a bucket of successive values, or of all of them; if
one of them is infinite or NaN, all values of the bucket in the message are NaN. After
the header of a message (`messages`), whose bit width (w) is the least with 2^w > 2 s,
follow

    bytes 8 to 11   number of states s, uint32
    bytes 12 to 15  values of a bucket, uint32; 0: all values are one bucket
    norms           one float32 for each bucket
    levels          for each value sign(value) floor(...) + s in w bits; padded with
                    zero bits to a whole byte

Source: Alistarh et al. 2017, arXiv:1610.02132; with one norm of all values as in
sands-lab/layer-wise-aaai20, CIFAR10/core.py, RandomDithering; buckets, and the largest
magnitude as the norm, as in CGX (arXiv:2111.08617).
"""

import math

import tensorflow as tf

from resnet.config.compression import CompressionSettings
from resnet.exchange.codecs import messages
from resnet.exchange.codecs.codec import Context


def encode(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector, and what it lacks."""
    settings = context.settings
    return messages.ops().resnet_encode_qsgd(
        values,
        context.stream,
        states=settings.qstates,
        bucket=settings.qsgd_bucket,
        norm=settings.qsgd_norm,
    )


def alignment(settings: CompressionSettings, largest_size: int) -> int:
    """Returns the values that end with a whole byte and, of several, a whole bucket.

    A norm of a whole vector is in the message of each piece.
    """
    bucket = settings.qsgd_bucket
    return math.lcm(8, bucket) if 0 < bucket < largest_size else 8
