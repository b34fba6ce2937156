"""fp16 and bf16: each value rounded to 16 bits, ties to even.

After the header (`wire`) of a message follow the values, in IEEE half precision or in
bfloat16. What is beyond the largest value of half precision, 65,504, becomes that
value; infinite values and NaN stay what they are.
"""

import numpy as np
import tensorflow as tf

from resnet.exchange.codecs import wire
from resnet.exchange.codecs.wire import Values

KINDS = {"fp16": wire.FLOAT16, "bf16": wire.BFLOAT16}
_DTYPES = {"fp16": tf.float16, "bf16": tf.bfloat16}


def encode(values: tf.Tensor, method: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the message of a vector, and what it lacks.

    Args:
        values: `[n]` float32; n is known in the graph.
        method: "fp16" or "bf16".

    Returns:
        The message, uint8; and `values` minus the values in the message, float32.
    """
    dtype = _DTYPES[method]
    nearest = tf.cast(_within_range(values, dtype), dtype)
    header = wire.header(KINDS[method], 0, 2 * values.shape[0])
    body = tf.reshape(tf.bitcast(nearest, tf.uint8), [-1])
    message = tf.concat([np.frombuffer(header, np.uint8), body], axis=0)
    return message, values - tf.cast(nearest, tf.float32)


def decode(kind: int, body: bytes, num_values: int) -> Values:
    """Returns the values of a message.

    Args:
        kind: Kind of the message, one of `KINDS`.
        body: The message without its header.
        num_values: Length of the vector.

    Raises:
        ValueError: If the body is not that of such a vector.
    """
    if len(body) != 2 * num_values:
        raise ValueError(f"a message of {num_values} values has {len(body)} bytes")
    if kind == wire.FLOAT16:
        return np.frombuffer(body, "<f2").astype(np.float32)
    return (np.frombuffer(body, "<u2").astype(np.uint32) << 16).view(np.float32)


def _within_range(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype != tf.float16:
        return values
    largest = float(dtype.max)
    clipped = tf.clip_by_value(values, -largest, largest)
    return tf.where(tf.math.is_finite(values), clipped, values)
