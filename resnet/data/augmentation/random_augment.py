"""RandAugment: random operations of one magnitude on an image.

The operations are TensorFlow ops that compute what Pillow's ImageOps, ImageEnhance and
Image.transform compute, whose names the sources use. Keras's RandAugment layer isn't
used because it computes all of its operations on every image, draws the magnitudes
too, keeps more bits the stronger it posterizes, and keeps a random state of its own.

Source: Cubuk et al. 2019, arXiv:1909.13719: the 14 operations, how they are drawn, and
magnitudes from 0 to 10. Cubuk et al. 2018, arXiv:1805.09501: the operations' ranges. As
in torchvision's RandAugment, and not in tensorflow/tpu's (efficientnet/autoaugment.py),
each operation gets stronger with the magnitude.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from resnet.data.augmentation.seeds import RANDOM_AUGMENT, seed_for

NUM_OPERATIONS = 2  # Per image.
MAX_MAGNITUDE = 10
FILL_VALUE = 128  # For pixels from outside of the original image.

# The strengths of the operations at the largest magnitude.
_MAX_SHEAR = 0.3
_MAX_SHIFT = 150 / 331  # Fraction of the side: 150 pixels of the source's images.
_MAX_DEGREES = 30
_MAX_CHANGE = 0.9  # Factors from 0.1 to 1.9; 1 changes nothing.
_MAX_LOST_BITS = 4

Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def augment(image: tf.Tensor, magnitude: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns an image, `[side, side, 3]` uint8, after two randomly drawn operations.

    An operation with two directions, such as a rotation, takes each of them with
    probability 1/2. The magnitude is from 0 to 10; at 0, only operations without a
    magnitude change the image. The seed is that of the example, int64 `[2]`.
    """
    numbers = tf.random.stateless_uniform(
        [2, NUM_OPERATIONS], seed_for(seed, RANDOM_AUGMENT)
    )
    operations = tf.unstack(tf.cast(numbers[0] * len(OPERATIONS), tf.int32))
    strength = magnitude / MAX_MAGNITUDE
    strengths = tf.unstack(tf.where(numbers[1] < 0.5, -strength, strength))
    one_of = _one_of(OPERATIONS)
    for index, signed in zip(operations, strengths, strict=True):
        image = one_of(index, image, signed)
    return image


@functools.lru_cache(maxsize=4)
def _one_of(operations: tuple[Operation, ...]) -> Callable[..., tf.Tensor]:
    """Returns a function that applies the operation with a given index.

    It is traced only once for each shape of images, which takes a second.
    """

    @tf.function(autograph=False)
    def one_of(index: tf.Tensor, image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
        partial = functools.partial
        branches = [partial(operation, image, strength) for operation in operations]
        return tf.switch_case(index, branches)

    return one_of


def _identity(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return tf.identity(image)


def _auto_contrast(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Stretches the values of each channel to the range from 0 to 255."""
    values = tf.cast(image, tf.float32)
    low = tf.reduce_min(values, [0, 1])
    high = tf.reduce_max(values, [0, 1])
    stretched = tf.math.divide_no_nan((values - low) * 255, high - low)
    return _to_bytes(tf.where(high > low, stretched, values))


def _equalize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    # One table for the three channels, 256 entries per channel.
    entries = tf.cast(image, tf.int32) + tf.constant([0, 256, 512])
    counts = tf.math.bincount(tf.reshape(entries, [-1]), minlength=768, maxlength=768)
    counts = tf.reshape(counts, [3, 256])
    before = tf.cumsum(counts, axis=1, exclusive=True)
    # The number of pixels below the highest value that occurs.
    num_others = tf.reduce_max(tf.where(counts > 0, before, 0), axis=1, keepdims=True)
    step = num_others // 255
    table = (before + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, table, tf.range(256))
    table = tf.cast(tf.minimum(table, 255), tf.uint8)
    return tf.gather(tf.reshape(table, [-1]), entries)


def _rotate(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Rotates the image about its center, clockwise if `strength` is positive."""
    angle = strength * math.radians(_MAX_DEGREES)
    cos, sin, center = tf.cos(angle), tf.sin(angle), image.shape[0] / 2
    return _transformed(
        image,
        (cos, sin, center * (1 - cos - sin)),
        (-sin, cos, center * (1 + sin - cos)),
    )


def _solarize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    threshold = 256 * (1 - tf.abs(strength))
    return tf.where(tf.cast(image, tf.float32) < threshold, image, 255 - image)


def _color(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _enhanced(image, _grey(image), strength)


def _posterize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    num_lost = tf.cast(tf.round(_MAX_LOST_BITS * tf.abs(strength)), tf.uint8)
    kept = tf.bitwise.left_shift(tf.constant(255, tf.uint8), num_lost)
    return tf.bitwise.bitwise_and(image, kept)


def _contrast(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    mean = tf.floor(tf.reduce_mean(_grey(image)) + 0.5)
    return _enhanced(image, mean, strength)


def _brightness(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _enhanced(image, tf.constant(0.0), strength)


def _sharpness(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Sharpens or blurs the image, except for its outermost pixels."""
    values = tf.cast(image, tf.float32)
    height, width = image.shape[0] - 2, image.shape[1] - 2
    around = [(top, left) for top in range(3) for left in range(3)]
    total = 4 * values[1:-1, 1:-1]  # The weight of the center is 5 of 13.
    for top, left in around:
        total += values[top : top + height, left : left + width]
    inner = _enhanced(image[1:-1, 1:-1], tf.floor(total / 13 + 0.5), strength)
    rows = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], 1)
    return tf.concat([image[:1], rows, image[-1:]], 0)


def _shear_x(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Shifts each row in proportion to its distance from the top."""
    return _transformed(image, (1, _MAX_SHEAR * strength, 0), (0, 1, 0))


def _shear_y(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Shifts each column in proportion to its distance from the left."""
    return _transformed(image, (1, 0, 0), (_MAX_SHEAR * strength, 1, 0))


def _shift_x(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _transformed(image, (1, 0, _shift(image, strength)), (0, 1, 0))


def _shift_y(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return _transformed(image, (1, 0, 0), (0, 1, _shift(image, strength)))


def _shift(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Returns the integer number of pixels to shift the image by."""
    pixels = _MAX_SHIFT * image.shape[0] * strength
    return tf.sign(pixels) * tf.floor(tf.abs(pixels))


OPERATIONS: tuple[Operation, ...] = (
    *(_identity, _auto_contrast, _equalize, _rotate, _solarize, _color, _posterize),
    *(_contrast, _brightness, _sharpness, _shear_x, _shear_y, _shift_x, _shift_y),
)


def _grey(image: tf.Tensor) -> tf.Tensor:
    """Returns the brightness of each pixel, `[side, side, 1]` float32, integers.

    Source: ITU-R BT.601, as Pillow rounds it.
    """
    red, green, blue = tf.split(tf.cast(image, tf.int32), 3, axis=2)
    total = 19595 * red + 38470 * green + 7471 * blue  # In units of 1 / 65,536.
    return tf.cast(tf.bitwise.right_shift(total + 32768, 16), tf.float32)


def _enhanced(
    image: tf.Tensor, degenerate: tf.Tensor, strength: tf.Tensor
) -> tf.Tensor:
    """Returns the image with a stronger or weaker difference from a degenerate one.

    The latter is the image without the enhanced property, for example in grey; float32.
    """
    factor = 1 + _MAX_CHANGE * strength
    return _to_bytes(degenerate + factor * (tf.cast(image, tf.float32) - degenerate))


def _to_bytes(values: tf.Tensor) -> tf.Tensor:
    """Returns values as uint8, rounded down as in Pillow."""
    return tf.cast(tf.clip_by_value(values, 0, 255), tf.uint8)


Row = tuple[tf.Tensor | float, tf.Tensor | float, tf.Tensor | float]


def _transformed(image: tf.Tensor, row_x: Row, row_y: Row) -> tf.Tensor:
    """Returns an affine transformation of the image by its nearest pixels.

    With (a, b, c) of `row_x`, the pixel at (x, y) of the result is read at the
    horizontal position a * x + b * y + c of the image; `row_y` is the same for the
    vertical one. The center of the first pixel is at (0.5, 0.5).
    """
    # The op's coordinates are the indices of the pixels.
    (a, b, c), (d, e, f) = row_x, row_y
    matrix = [a, b, c + (a + b - 1) / 2, d, e, f + (d + e - 1) / 2, 0.0, 0.0]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=[[tf.cast(number, tf.float32) for number in matrix]],
        output_shape=image.shape[:2],
        fill_value=FILL_VALUE,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]
