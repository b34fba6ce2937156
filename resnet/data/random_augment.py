"""RandAugment: random operations of one magnitude on an image.

Keras's layer of this name would compute all of its operations on every image, draws the
magnitudes too, keeps more bits the stronger it posterizes, and has its random state in
itself; so these are TensorFlow's own ops. What each does is what Pillow's ImageOps,
ImageEnhance and Image.transform do, whose names the sources use.

Source: Cubuk et al. 2019, arXiv:1909.13719: the 14 operations, how they are drawn, and
magnitudes from 0 to 10. Cubuk et al. 2018, arXiv:1805.09501: the operations' ranges. As
in torchvision's RandAugment, and not in tensorflow/tpu's (efficientnet/autoaugment.py),
each operation is the stronger the larger the magnitude.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from resnet.data.augmentation_seeds import OPERATIONS as USE
from resnet.data.augmentation_seeds import seed_for

NUM_OPERATIONS = 2  # On each image.
LARGEST_MAGNITUDE = 10
EMPTY = 128  # What moves in where an image was moved away.

# What they are at the largest magnitude.
_MOST_SHEAR = 0.3
_MOST_SHIFT = 150 / 331  # Of the side: 150 pixels of the source's images.
_MOST_DEGREES = 30
_MOST_CHANGE = 0.9  # Factors from 0.1 to 1.9; 1 changes nothing.
_MOST_LOST_BITS = 4


def augment(image: tf.Tensor, magnitude: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image after two operations, each drawn from all.

    An operation that has two directions, such as a rotation, takes either half of the
    time.

    Args:
        image: `[side, side, 3]` uint8.
        magnitude: From 0 to 10. At 0 only what has no magnitude changes anything.
        seed: Of the example, int64 `[2]`.
    """
    numbers = tf.random.stateless_uniform([2, NUM_OPERATIONS], seed_for(seed, USE))
    operations = tf.unstack(tf.cast(numbers[0] * len(OPERATIONS), tf.int32))
    strength = magnitude / LARGEST_MAGNITUDE
    strengths = tf.unstack(tf.where(numbers[1] < 0.5, -strength, strength))
    for chosen, signed in zip(operations, strengths, strict=True):
        branches = [functools.partial(one, image, signed) for one in OPERATIONS]
        image = tf.switch_case(chosen, branches)
    return image


def _identity(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return tf.identity(image)


def _auto_contrast(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to the whole range."""
    values = tf.cast(image, tf.float32)
    low = tf.reduce_min(values, [0, 1])
    high = tf.reduce_max(values, [0, 1])
    stretched = tf.math.divide_no_nan((values - low) * 255, high - low)
    return _to_bytes(tf.where(high > low, stretched, values))


def _equalize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Makes the values of each channel about equally frequent."""
    # One table for the three channels: 256 entries for each.
    entries = tf.cast(image, tf.int32) + tf.constant([0, 256, 512])
    counts = tf.math.bincount(tf.reshape(entries, [-1]), minlength=768, maxlength=768)
    counts = tf.reshape(counts, [3, 256])
    before = tf.cumsum(counts, axis=1, exclusive=True)
    # Without the pixels of the highest value that occurs.
    num_others = tf.reduce_max(tf.where(counts > 0, before, 0), axis=1, keepdims=True)
    step = num_others // 255
    table = (before + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, table, tf.range(256))
    table = tf.cast(tf.minimum(table, 255), tf.uint8)
    return tf.gather(tf.reshape(table, [-1]), entries)


def _rotate(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Turns the image about its middle, clockwise if `strength` is positive."""
    angle = strength * math.radians(_MOST_DEGREES)
    cos, sin, middle = tf.cos(angle), tf.sin(angle), image.shape[0] / 2
    return _transformed(
        image,
        (cos, sin, middle * (1 - cos - sin)),
        (-sin, cos, middle * (1 + sin - cos)),
    )


def _solarize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Turns bright values into dark ones."""
    threshold = 256 * (1 - tf.abs(strength))
    return tf.where(tf.cast(image, tf.float32) < threshold, image, 255 - image)


def _color(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Makes colours stronger or greyer."""
    return _enhanced(image, _grey(image), strength)


def _posterize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Sets the lowest bits to 0."""
    num_lost = tf.cast(tf.round(_MOST_LOST_BITS * tf.abs(strength)), tf.uint8)
    kept = tf.bitwise.left_shift(tf.constant(255, tf.uint8), num_lost)
    return tf.bitwise.bitwise_and(image, kept)


def _contrast(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Moves all values away from the mean brightness or to it."""
    mean = tf.floor(tf.reduce_mean(_grey(image)) + 0.5)
    return _enhanced(image, mean, strength)


def _brightness(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Makes the image brighter or darker."""
    return _enhanced(image, tf.constant(0.0), strength)


def _sharpness(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Sharpens or blurs the image, but for its outermost pixels."""
    values = tf.cast(image, tf.float32)
    height, width = image.shape[0] - 2, image.shape[1] - 2
    around = [(top, left) for top in range(3) for left in range(3)]
    total = 4 * values[1:-1, 1:-1]  # Of 13, the middle has 5.
    for top, left in around:
        total += values[top : top + height, left : left + width]
    inner = _enhanced(image[1:-1, 1:-1], tf.floor(total / 13 + 0.5), strength)
    rows = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], 1)
    return tf.concat([image[:1], rows, image[-1:]], 0)


def _shear_x(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Moves each row by a share of its height."""
    return _transformed(image, (1, _MOST_SHEAR * strength, 0), (0, 1, 0))


def _shear_y(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Moves each column by a share of its distance from the left."""
    return _transformed(image, (1, 0, 0), (_MOST_SHEAR * strength, 1, 0))


def _shift_x(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _transformed(image, (1, 0, _shift(image, strength)), (0, 1, 0))


def _shift_y(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _transformed(image, (1, 0, 0), (0, 1, _shift(image, strength)))


def _shift(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Returns how many whole pixels to move the image by."""
    pixels = _MOST_SHIFT * image.shape[0] * strength
    return tf.sign(pixels) * tf.floor(tf.abs(pixels))


OPERATIONS: tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], ...] = (
    _identity,
    _auto_contrast,
    _equalize,
    _rotate,
    _solarize,
    _color,
    _posterize,
    _contrast,
    _brightness,
    _sharpness,
    _shear_x,
    _shear_y,
    _shift_x,
    _shift_y,
)


def _grey(image: tf.Tensor) -> tf.Tensor:
    """Returns the brightness of each pixel, `[side, side, 1]` float32, whole numbers.

    Source: ITU-R BT.601, as Pillow rounds it.
    """
    red, green, blue = tf.split(tf.cast(image, tf.int32), 3, axis=2)
    total = 19595 * red + 38470 * green + 7471 * blue  # In units of 1 / 65,536.
    return tf.cast(tf.bitwise.right_shift(total + 32768, 16), tf.float32)


def _enhanced(image: tf.Tensor, without: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Returns the image with more or less of what it has and `without` hasn't.

    Args:
        image: `[height, width, 3]` uint8.
        without: float32, of a shape that fits.
        strength: From -1 to 1; 0 changes nothing.
    """
    factor = 1 + _MOST_CHANGE * strength
    return _to_bytes(without + factor * (tf.cast(image, tf.float32) - without))


def _to_bytes(values: tf.Tensor) -> tf.Tensor:
    """Returns values as bytes, rounded down as Pillow does."""
    return tf.cast(tf.clip_by_value(values, 0, 255), tf.uint8)


Row = tuple[tf.Tensor | float, tf.Tensor | float, tf.Tensor | float]


def _transformed(image: tf.Tensor, of_x: Row, of_y: Row) -> tf.Tensor:
    """Returns an image each of whose pixels is the nearest to a place in the given one.

    Args:
        image: `[side, side, 3]` uint8.
        of_x: (a, b, c) for the place at a * x + b * y + c from the left, (x, y) being
            where the pixel is. The middle of the first pixel is at (0.5, 0.5).
        of_y: The same from the top.
    """
    # The op's coordinates are those of the pixels' indices.
    (a, b, c), (d, e, f) = of_x, of_y
    matrix = [a, b, c + (a + b - 1) / 2, d, e, f + (d + e - 1) / 2, 0.0, 0.0]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=[[tf.cast(number, tf.float32) for number in matrix]],
        output_shape=image.shape[:2],
        fill_value=EMPTY,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]
