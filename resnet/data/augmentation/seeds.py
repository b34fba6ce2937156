"""The random seeds of an example: one for each use of random numbers.

An example has one seed each time it is read, such as once an epoch: int64 `[2]`, the
first number not negative and below 2**32. Each use derives a seed of its own from it,
so that no two uses share their random numbers.
"""

import tensorflow as tf

WINDOW = 0  # The position and size of the crop; its seed is the example's seed.
FLIP = 1
CUTOUT = 2
RANDOM_AUGMENT = 3
MIXING = 4
MIXING_GAMMAS = 5


def seed_for(seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns the seed of one use, which differs from the seeds of all other uses.

    Args:
        seed: The seed of the example, int64 `[2]`.
    """
    return seed - tf.constant([use << 32, 0], tf.int64)
