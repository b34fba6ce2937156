"""The order of the examples, `example_order`, inside a graph that is traced once."""

import functools
from collections.abc import Callable

import tensorflow as tf

from resnet.data import example_order

_AUGMENTATION_STREAM = 1000  # For `mix_seed`; the streams of the order are lower.


@functools.lru_cache(maxsize=16)
def of_run(
    seed: int, num_examples: int
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the order of a run as a function that is traced once.

    All phases share it, and all datasets that are built again after corrupt records.

    Args:
        seed: The seed of the run.
        num_examples: The number of examples in an epoch.

    Returns:
        A function from positions of the run, `[n]` int64, to the examples there and to
        their keys for the augmentation, both `[n]` int64.
    """

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
    def order(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        epoch = position // num_examples
        example = _shuffled(position % num_examples, seed, epoch, num_examples)
        return example, example_order.mix_seed(seed, _AUGMENTATION_STREAM, epoch)

    return order


def _shuffled(
    position_in_epoch: tf.Tensor, seed: int, epoch: tf.Tensor, num_examples: int
) -> tf.Tensor:
    """Returns what `example_order.shuffled` returns, for tensors inside a graph."""
    keys = tf.unstack(example_order.round_keys(seed, epoch))

    def shuffle(x: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        again = example_order.shuffle_once(x, keys, num_examples)
        x = tf.where(is_due, again, x)
        return x, x >= num_examples

    return tf.while_loop(
        lambda x, is_due: tf.reduce_any(is_due),
        shuffle,
        (position_in_epoch, tf.ones_like(position_in_epoch, tf.bool)),
    )[0]
