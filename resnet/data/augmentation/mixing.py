"""Mixup and CutMix: pairs of examples are mixed with each other.

Examples 2i and 2i + 1 of a batch are partners. How they are mixed depends on the seed
of the first example alone. Hence the result doesn't depend on how a global batch is
divided, as long as no pair is separated.
"""

import tensorflow as tf

from resnet.data.augmentation.seeds import MIXING, MIXING_GAMMAS, seed_for

# One selects mixup or CutMix, two draw lambda, two the center of the box.
_NUM_UNIFORM = 5


def mix_pairs(
    images: tf.Tensor, seeds: tf.Tensor, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the images mixed with their partners, and the weights of their labels.

    With lambda drawn from Beta(alpha, alpha) for each pair:

    - mixup: lambda times the image, plus 1 - lambda times its partner.
    - CutMix: a box of 1 - lambda of the area, its center anywhere in the image, is
      copied from the partner. The box is clipped to the image; the weight of the
      example's own label is the fraction of the pixels outside of the box.

    `mixup` and `cutmix` are the alphas, or 0 for none. If both have one, each of them
    is used with probability 1/2. The images are `[batch, side, side, 3]` float32 with
    an even batch, the seeds of the examples `[batch, 2]` int64. The weight of each
    example's own label is `[batch]` float32, from 0 to 1.

    Source: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899,
    section 3.
    """
    side = images.shape[1]
    boxes, own_weights = tf.map_fn(
        lambda seed: _draw(seed, side, mixup, cutmix),
        seeds[::2],
        fn_output_signature=(tf.int32, tf.float32),
    )
    in_rows, in_columns = (
        (tf.range(side) >= boxes[:, axis, :1]) & (tf.range(side) < boxes[:, axis, 1:])
        for axis in range(2)
    )
    # Channels beside columns: operations on long rows are much faster.
    in_columns = tf.repeat(in_columns, 3, axis=1)
    is_inside = in_rows[:, :, tf.newaxis] & in_columns[:, tf.newaxis, :]
    own = tf.where(is_inside, own_weights[:, tf.newaxis, tf.newaxis], 1.0)
    other = 1 - own
    first, second = tf.unstack(tf.reshape(images, [-1, 2, side, side * 3]), axis=1)
    mixed = tf.stack([own * first + other * second, own * second + other * first], 1)
    area = tf.reduce_prod(boxes[..., 1] - boxes[..., 0], axis=1) / side**2
    mix_weight = 1 - tf.cast(area, tf.float32) * (1 - own_weights)
    return tf.reshape(mixed, images.shape), tf.repeat(mix_weight, 2)


def _draw(
    seed: tf.Tensor, side: int, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the box in which a pair is mixed, and the own image's weight inside it.

    The seed is that of the pair's first example. The box is int32 `[2, 2]`: the first
    row and the row after the last one, then the same for the columns.
    """
    uniform = tf.random.stateless_uniform([_NUM_UNIFORM], seed_for(seed, MIXING))

    def mix_whole() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant([[0, side], [0, side]]), _beta(seed, uniform[1:3], mixup)

    def replace_box() -> tuple[tf.Tensor, tf.Tensor]:
        weight = _beta(seed, uniform[1:3], cutmix)
        length = tf.cast(tf.sqrt(1 - weight) * side, tf.int32)
        begin = tf.cast(uniform[3:] * side, tf.int32) - length // 2
        box = tf.stack([begin, begin + length], axis=1)
        return tf.clip_by_value(box, 0, side), tf.constant(0.0)

    if not cutmix:
        return mix_whole()
    if not mixup:
        return replace_box()
    return tf.cond(uniform[0] < 0.5, mix_whole, replace_box)


def _beta(seed: tf.Tensor, uniform: tf.Tensor, alpha: float) -> tf.Tensor:
    """Returns a number drawn from Beta(alpha, alpha): a / (a + b) of two gammas a, b.

    With a small alpha, a gamma variable can be too small for a float32, but its
    logarithm is not: a gamma variable of alpha is the product of a gamma variable of
    alpha + 1 and a uniform variable to the power of 1 / alpha. `uniform` holds two
    numbers in [0, 1), independent of those drawn here with the seed of the example.

    Source: Marsaglia and Tsang 2000, "A Simple Method for Generating Gamma Variables",
    section 6.
    """
    gammas = tf.random.stateless_gamma([2], seed_for(seed, MIXING_GAMMAS), alpha + 1)
    log_a, log_b = tf.unstack(tf.math.log(gammas) + tf.math.log(1 - uniform) / alpha)
    return tf.sigmoid(log_a - log_b)
