"""Mixup and CutMix: pairs of examples, each with something of the other.

Examples 2i and 2i + 1 of a batch are partners. What they are mixed by depends on the
seed of the first alone, so the same pairs are mixed alike however a global batch is
divided, as long as no pair is.
"""

import tensorflow as tf

from resnet.data.augmentation_seeds import MIXING, MIXING_GAMMAS, seed_for

_NUM_UNIFORM = 5  # Which of the two, two for the share, and the middle of the box.


def mix_pairs(
    images: tf.Tensor, seeds: tf.Tensor, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the images with parts of their partners, and the share of each's label.

    With lambda drawn from Beta(alpha, alpha) for each pair:

    - mixup: lambda times the image, plus 1 - lambda times its partner.
    - CutMix: a box of 1 - lambda of the area, its middle anywhere in the image, is its
      partner's. What of it lies outside is cut off; the label's share is that of the
      pixels.

    If both have an alpha, a pair takes either half of the time.

    Args:
        images: `[batch, side, side, 3]` float32; an even number.
        seeds: `[batch, 2]` int64, of the examples.
        mixup: The alpha of mixup; 0 for none.
        cutmix: The alpha of CutMix; 0 for none.

    Returns:
        As `images`, and `[batch]` float32, from 0 to 1.

    Source: Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899,
    section 3.
    """
    side = images.shape[1]
    boxes, own_shares = tf.map_fn(
        lambda seed: _draw(seed, side, mixup, cutmix),
        seeds[::2],
        fn_output_signature=(tf.int32, tf.float32),
    )
    in_rows, in_columns = (
        (tf.range(side) >= boxes[:, axis, :1]) & (tf.range(side) < boxes[:, axis, 1:])
        for axis in range(2)
    )
    # Channels beside columns: long rows are computed far faster than short ones.
    in_columns = tf.repeat(in_columns, 3, axis=1)
    is_inside = in_rows[:, :, tf.newaxis] & in_columns[:, tf.newaxis, :]
    own = tf.where(is_inside, own_shares[:, tf.newaxis, tf.newaxis], 1.0)
    other = 1 - own
    first, second = tf.unstack(tf.reshape(images, [-1, 2, side, side * 3]), axis=1)
    mixed = tf.stack([own * first + other * second, own * second + other * first], 1)
    area = tf.reduce_prod(boxes[..., 1] - boxes[..., 0], axis=1) / side**2
    mix_weight = 1 - tf.cast(area, tf.float32) * (1 - own_shares)
    return tf.reshape(mixed, images.shape), tf.repeat(mix_weight, 2)


def _draw(
    seed: tf.Tensor, side: int, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the box in which a pair is mixed, and each image's own share in it.

    Args:
        seed: int64 `[2]`, of the pair's first example.
        side: Of the images.
        mixup: As `mix_pairs` takes it.
        cutmix: As `mix_pairs` takes it.

    Returns:
        int32 `[2, 2]`: the first row and that behind the last, the same of the columns;
        and a float32 scalar.
    """
    uniform = tf.random.stateless_uniform([_NUM_UNIFORM], seed_for(seed, MIXING))

    def mix_whole() -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant([[0, side], [0, side]]), _beta(seed, uniform[1:3], mixup)

    def replace_box() -> tuple[tf.Tensor, tf.Tensor]:
        share = _beta(seed, uniform[1:3], cutmix)
        length = tf.cast(tf.sqrt(1 - share) * side, tf.int32)
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

    A gamma of a small alpha may be too small for any float; its logarithm isn't: it is
    that of one of alpha + 1, and of a uniform number to the power of 1 / alpha.

    Args:
        seed: int64 `[2]`, of the example.
        uniform: `[2]` float32, from 0 to below 1, independent of what `seed_for` gives.
        alpha: More than 0.

    Source: Marsaglia and Tsang 2000, "A Simple Method for Generating Gamma Variables",
    section 6.
    """
    gammas = tf.random.stateless_gamma([2], seed_for(seed, MIXING_GAMMAS), alpha + 1)
    log_a, log_b = tf.unstack(tf.math.log(gammas) + tf.math.log(1 - uniform) / alpha)
    return tf.sigmoid(log_a - log_b)
