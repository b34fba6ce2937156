"""TernGrad: each value becomes -1, 0 or 1 times the largest magnitude, at random.

    Q(g) = sign(g) max|g| b,  b = 1 with probability |g| / max|g|, else 0

Its mean is g. If a value is infinite or NaN, all values in the message are NaN. After
the header of a message (`messages`) follow

    bytes 8 to 11  the largest magnitude, float32
    digits         five values a byte: the sum of (sign(value) + 1) 3^i over the places
                   i = 0 to 4; the places behind the last value count as 0

which is 1.6 bits a value, 0.015 above log2(3).

The random numbers are Philox4x32-10's, here and in `qsgd`: the key is the seed of the
run, and the counter is made of the number of a group of four values, and of the vector,
the step and the rank. So a run that resumes draws the same numbers, whatever number of
threads it has.

Sources: Wen et al. 2017, arXiv:1705.07878, without its clipping, as in
sands-lab/layer-wise-aaai20, CIFAR10/core.py, TernGrad; Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3".
"""

import tensorflow as tf

from resnet.exchange.codecs import messages
from resnet.exchange.codecs.codec import Context


def encode(values: tf.Tensor, context: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector, and what it lacks."""
    return messages.ops().resnet_encode_ternary(values, context.stream)
