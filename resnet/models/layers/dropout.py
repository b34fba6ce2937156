"""Dropout whose masks are a function of the step and of each example.

The step of the training passes a key for each example around its call of the network.
So a mask depends neither on the number of ranks, nor on micro-batches, nor on where a
run was interrupted.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

from resnet.models.layers.base import Layer

_MULTIPLIER = 0x45D9F3B  # The multiplier of `_mix` in `resnet.data.example_order`.
_GOLDEN = 0x9E3779B9  # 2**32 divided by the golden ratio: spreads consecutive numbers.
_example_keys: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar(
    "example_keys", default=None
)


@contextlib.contextmanager
def keyed(step_key: tf.Tensor, examples: tf.Tensor) -> Iterator[None]:
    """Determines the masks of the networks that are called inside the block.

    The key is a 32-bit number of the run and the step, int64; the examples are their
    indices in the data set, `[batch]` int64.
    """
    keys = _mix(tf.cast(step_key, tf.uint32) + _mix(tf.cast(examples, tf.uint32)))
    token = _example_keys.set(keys)
    try:
        yield
    finally:
        _example_keys.reset(token)


class Dropout(Layer):
    """Sets each feature to 0 with probability `rate`, and scales up the others.

    It does so in training only. Outside of `keyed`, the masks are random. No two layers
    have the same masks if their seeds differ.

    Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks
    from Overfitting"; the scaling in training is PyTorch's.
    """

    def __init__(self, rate: float, seed: int, name: str) -> None:
        super().__init__(name)
        self.rate = rate
        self.seed = seed

    def call(self, features: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the features, `[batch, num_features]`, some of them dropped."""
        if not training:
            return features
        examples = _example_keys.get()
        if examples is None:
            shape = [tf.shape(features)[0]]
            examples = tf.random.uniform(shape, maxval=2**32, dtype=tf.int64)
            examples = tf.cast(examples, tf.uint32)
        numbers = tf.cast(tf.range(features.shape[-1]), tf.uint32)
        columns = _mix(numbers * _constant(_GOLDEN) + _constant(self.seed & 0xFFFFFFFF))
        bits = _mix(examples[:, tf.newaxis] ^ columns[tf.newaxis])
        kept = bits >= _constant(round(self.rate * 2**32))
        return tf.where(kept, features / (1 - self.rate), tf.zeros_like(features))


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Returns a hash of each number, uint32; the hash is a bijection."""
    half, multiplier = _constant(16), _constant(_MULTIPLIER)
    for _ in range(2):
        x = (x ^ tf.bitwise.right_shift(x, half)) * multiplier
    return x ^ tf.bitwise.right_shift(x, half)


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
