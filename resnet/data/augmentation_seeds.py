"""Which random numbers of an example are for what.

An example has one seed in each epoch: int64 `[2]`, the first not negative and below
2**32. Each use takes another seed from it, so that no two uses share their numbers.
"""

import tensorflow as tf

WINDOW = 0  # The seed itself: where a picture is cut or moved to.
MIRROR = 1
HOLE = 2
OPERATIONS = 3  # Of RandAugment.
MIXING = 4
MIXING_GAMMAS = 5


def seed_for(seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns the seed of a use; those of two uses never meet.

    Args:
        seed: Of the example.
        use: One of those above.
    """
    return seed - tf.constant([use << 32, 0], tf.int64)
