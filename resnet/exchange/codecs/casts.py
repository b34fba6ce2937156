"""fp16 and bf16: each value rounded to 16 bits, ties to even.

After the header of a message (`messages`) follow the values, in IEEE half precision or
in bfloat16. What is beyond the largest value of half precision, 65,504, becomes that
value; infinite values and NaN stay what they are.
"""

import tensorflow as tf

from resnet.exchange.codecs import messages
from resnet.exchange.codecs.codec import Context


def encode_fp16(values: tf.Tensor, _: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector in half precision, and what it lacks."""
    largest = float(tf.float16.max)
    clipped = tf.clip_by_value(values, -largest, largest)
    within_range = tf.where(tf.math.is_finite(values), clipped, values)
    nearest = tf.cast(within_range, tf.float16)
    message = messages.of_values(nearest, messages.FLOAT16)
    return message, values - tf.cast(nearest, tf.float32)


def encode_bf16(values: tf.Tensor, _: Context) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector in bfloat16, and what it lacks."""
    nearest = tf.cast(values, tf.bfloat16)
    message = messages.of_values(nearest, messages.BFLOAT16)
    return message, values - tf.cast(nearest, tf.float32)
