"""Crops, resizes and augments images, for training and for evaluation.

An original image is one of `decoding`: the content of a JPEG file or already decoded.
Both lead to the same result, except at the edges of crops (`decoding.crop`). Every
random choice is a function of a seed that is passed in. The results are `[image_size,
image_size, 3]` float32, normalized per channel.

Source: tensorflow/tpu, models/official/resnet/resnet_preprocessing.py, as of April 2018
and, where it says so, as of February 2018.
"""

from typing import NamedTuple

import tensorflow as tf

from resnet import native
from resnet.config.config import Config
from resnet.config.phases import MIN_OBJECT_COVERED, Phase
from resnet.config.recipe import IMAGENET_MEAN, IMAGENET_STDDEV
from resnet.data.augmentation import random_augment
from resnet.data.augmentation.seeds import CUTOUT, FLIP, WINDOW, seed_for
from resnet.data.decoding import crop, decoded, shape_of


class Normalization(NamedTuple):
    """The mean and standard deviation of each channel, on a scale of 0 to 1."""

    mean: tuple[float, ...]
    stddev: tuple[float, ...]

    @classmethod
    def of_run(cls, config: Config) -> "Normalization":
        """Returns those of the images of a run."""
        return cls(config.channel_mean, config.channel_stddev)


IMAGENET = Normalization(IMAGENET_MEAN, IMAGENET_STDDEV)
MEAN, STDDEV = IMAGENET
NOT_NORMALIZED = Normalization((0.0,) * 3, (1 / 255,) * 3)  # Values from 0 to 255.

UPRIGHT = False  # Not flipped.
FALLBACK_CROP_FRACTION = 0.875  # 224 / 256.
# Of a longer image the central part is resized: the whole could take gigabytes.
MAX_ASPECT_RATIO = 32


def train_image(
    original: tf.Tensor,
    phase: Phase,
    seed: tf.Tensor,
    normalization: Normalization = IMAGENET,
    flip: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns an image for training: augmented, resized and normalized.

    The augmentations of a phase:

    - "random_resized_crop": a crop of `min_crop_area` to 100 % of the area with an
      aspect ratio from 3/4 to 4/3, resized, flipped horizontally with probability 1/2.
      If ten attempts find no such crop, the central square is taken.
    - "random_resized_crop_2018_02": the same with one attempt and from the decoded
      whole image, as in February 2018. If the attempt fails, the shorter side is
      resized to `image_size` and the center is cropped.
    - "random_crop": the shorter side is resized to `image_size / 0.875`, then a square
      is cropped at a random position and flipped horizontally with probability 1/2.
    - "random_shift": the image is shifted by up to `shift_fraction` of the side and
      padded with zeros.
    - "pad_crop_flip": as "random_shift", but with reflection padding and a horizontal
      flip with probability 1/2.
    - "pad_crop_flip_cutout": the augmentation of CIFAR-10. As "pad_crop_flip", with a
      square cutout mask of `cutout_fraction` of the side, by default 8 of 32 pixels.
    - "none": the image is only resized.

    RandAugment follows after them, but before the cutout mask.

    The result depends only on the original image and the seed of the example, int64
    `[2]`, the first number not negative. `flip` (a bool scalar) says whether the image
    is flipped; None stands for probability 1/2.

    Source of "pad_crop_flip_cutout": davidcpage/cifar10-fast, core.py (Crop, FlipLR,
    Cutout). Of "random_crop": the last phase of sara-nl/caffe's solvers, Codreanu et
    al. 2017, arXiv:1711.04291.
    """
    if flip is None:
        flip = tf.random.stateless_uniform([], seed_for(seed, FLIP)) < 0.5
    window = seed_for(seed, WINDOW)
    image = _augmented(original, phase, window, flip, normalization)
    if phase.random_augment:
        image = _random_augmented(image, phase.random_augment, seed, normalization)
    if phase.augmentation == "pad_crop_flip_cutout":
        side = round(phase.image_size * phase.cutout_fraction)
        return _cutout(image, side, seed_for(seed, CUTOUT))
    return image


def eval_image(
    original: tf.Tensor,
    image_size: int,
    crop_fraction: float,
    crop: str,
    normalization: Normalization = IMAGENET,
) -> tf.Tensor:
    """Returns an image for evaluation: its central square, resized and normalized.

    `crop_fraction` is the side of the square as a fraction of the shorter side of the
    original image. `crop` is "crop_then_resize", or "resize_then_crop" as in February
    2018: the shorter side is resized to `image_size / crop_fraction`, then the center
    is cropped.
    """
    if crop == "resize_then_crop":
        shorter_side = round(image_size / crop_fraction)
        image = _scale(decoded(original), shorter_side, UPRIGHT, normalization)
        return _center(image, image_size)
    square = _central_square(original, shape_of(original), crop_fraction)
    return _resize(square, (image_size,) * 2, UPRIGHT, normalization)


def five_crops(
    original: tf.Tensor,
    image_size: int,
    crop_fraction: float,
    normalization: Normalization = IMAGENET,
) -> tf.Tensor:
    """Returns the crops at the corners and the center of a resized image.

    They are top left, top right, bottom left, bottom right and center, normalized:
    `[5, image_size, image_size, 3]` float32. The shorter side is resized to
    `image_size / crop_fraction`.

    Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional
    Neural Networks", section 4.1, who took the corners of the central square.
    """
    shorter_side = round(image_size / crop_fraction)
    image = _scale(decoded(original), shorter_side, UPRIGHT, normalization)
    bottom, right, _ = tf.unstack(tf.shape(image) - image_size)
    corners = [
        tf.slice(image, (top, left, 0), (image_size, image_size, 3))
        for top, left in ((0, 0), (0, right), (bottom, 0), (bottom, right))
    ]
    return tf.stack([*corners, _center(image, image_size)])


def resize_with_stock_ops(
    image: tf.Tensor,
    size: tf.Tensor | tuple[int, int],
    flip: tf.Tensor | bool,
    normalization: Normalization = IMAGENET,
) -> tf.Tensor:
    """Returns what `_resize` returns, without the compiled op.

    The published runs used TensorFlow 1's bicubic kernel; `tf.image.resize` has
    a different one.
    """
    resized = tf.raw_ops.ResizeBicubic(
        images=image[tf.newaxis],
        size=size,
        align_corners=False,
        half_pixel_centers=False,
    )[0]
    flip = tf.convert_to_tensor(flip)
    resized = tf.cond(flip, lambda: tf.reverse(resized, [1]), lambda: resized)
    if normalization == NOT_NORMALIZED:
        return resized
    return (resized - _on_bytes(normalization.mean)) / _on_bytes(normalization.stddev)


def _resize(
    image: tf.Tensor,
    size: tf.Tensor | tuple[int, int],
    flip: tf.Tensor | bool,
    normalization: Normalization,
) -> tf.Tensor:
    """Returns an image (`[height, width, 3]` uint8) resized, flipped and normalized."""
    ops = native.ops()
    if ops is None:
        return resize_with_stock_ops(image, size, flip, normalization)
    mean, stddev = map(_on_bytes, normalization)
    return ops.resnet_resize_bicubic(image, size, flip, mean=mean, stddev=stddev)


def _on_bytes(values: tuple[float, ...]) -> list[float]:
    return [255 * value for value in values]


def _augmented(
    original: tf.Tensor,
    phase: Phase,
    window: tf.Tensor,
    flip: tf.Tensor,
    normalization: Normalization,
) -> tf.Tensor:
    """Returns the image of `train_image` before RandAugment and the cutout mask.

    `window` is the seed of the position.
    """
    augmentation, image_size = phase.augmentation, phase.image_size
    size = image_size, image_size
    if augmentation == "random_resized_crop":
        crop = _random_crop(original, window, phase.min_crop_area)
        return _resize(crop, size, flip, normalization)
    if augmentation == "random_resized_crop_2018_02":
        return _random_crop_2018_02(original, phase, window, flip, normalization)
    if augmentation == "random_crop":
        shorter_side = round(image_size / FALLBACK_CROP_FRACTION)
        image = _scale(decoded(original), shorter_side, flip, normalization)
        return tf.image.stateless_random_crop(image, (*size, 3), window)
    image = _resize(decoded(original), size, UPRIGHT, normalization)
    if augmentation == "none":
        return image
    shift = round(image_size * phase.shift_fraction)
    is_flipped = augmentation.startswith("pad_crop_flip")
    mode = "REFLECT" if is_flipped else "CONSTANT"
    image = tf.pad(image, [[shift, shift], [shift, shift], [0, 0]], mode)
    image = tf.image.stateless_random_crop(image, (*size, 3), window)
    if is_flipped:
        return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
    return image


def _random_augmented(
    image: tf.Tensor, magnitude: float, seed: tf.Tensor, normalization: Normalization
) -> tf.Tensor:
    """Returns a normalized image after RandAugment, which operates on uint8."""
    side = image.shape[0]
    # Channels beside columns: operations on long rows are much faster.
    mean, stddev = (tf.constant(_on_bytes(values) * side) for values in normalization)
    values = tf.reshape(image, [side, side * 3]) * stddev + mean
    # Halves are frequent: all of them are rounded down, whatever the rounding errors of
    # about 1e-5 are.
    values = tf.cast(tf.clip_by_value(values + 0.499, 0, 255), tf.uint8)
    values = tf.reshape(values, [side, side, 3])
    values = random_augment.augment(values, magnitude, seed)
    values = tf.cast(tf.reshape(values, [side, side * 3]), tf.float32)
    return tf.reshape((values - mean) / stddev, [side, side, 3])


def _random_crop(
    original: tf.Tensor, seed: tf.Tensor, min_crop_area: float
) -> tf.Tensor:
    """Returns a random crop of the original image, decoded; uint8."""
    shape = shape_of(original)
    begin, size = _random_window(shape, seed, 10, min_crop_area)
    return tf.cond(
        tf.reduce_all(size == shape[:2]),  # No crop was found.
        lambda: _central_square(original, shape, FALLBACK_CROP_FRACTION),
        lambda: crop(original, begin, size),
    )


def _random_crop_2018_02(
    original: tf.Tensor,
    phase: Phase,
    seed: tf.Tensor,
    flip: tf.Tensor,
    normalization: Normalization,
) -> tf.Tensor:
    """Returns a random crop of the original image, resized and normalized."""
    original, image_size = decoded(original), phase.image_size
    shape = tf.shape(original)
    begin, size = _random_window(shape, seed, 1, phase.min_crop_area)

    def center() -> tf.Tensor:
        image = _scale(original, image_size, UPRIGHT, normalization)
        image = _center(image, image_size)
        return tf.where(flip, image[:, ::-1], image)

    def window() -> tf.Tensor:
        part = crop(original, begin, size)
        return _resize(part, (image_size,) * 2, flip, normalization)

    image = tf.cond(tf.reduce_all(size == shape[:2]), center, window)
    return tf.ensure_shape(image, (image_size, image_size, 3))


def _random_window(
    shape: tf.Tensor, seed: tf.Tensor, max_attempts: int, min_crop_area: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (top, left) and (height, width); the whole image if no crop is found."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),  # No box: the whole image.
        seed,
        min_object_covered=MIN_OBJECT_COVERED,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(min_crop_area, 1.0),
        max_attempts=max_attempts,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[:2], size[:2]


def _central_square(
    original: tf.Tensor, shape: tf.Tensor, crop_fraction: float
) -> tf.Tensor:
    """Returns the central square of the original image, decoded; uint8."""
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.maximum(tf.cast(crop_fraction * shorter, tf.int32), 1)
    begin = _centered(shape[:2], side)
    return crop(original, begin, tf.stack([side, side]))


def _center(image: tf.Tensor, side: int) -> tf.Tensor:
    """Returns the central square of a normalized image."""
    begin = tf.concat([_centered(tf.shape(image)[:2], side), [0]], 0)
    return tf.ensure_shape(tf.slice(image, begin, (side, side, 3)), (side, side, 3))


def _scale(
    image: tf.Tensor, shorter_side: int, flip: tf.Tensor, normalization: Normalization
) -> tf.Tensor:
    """Returns the image, shorter side resized, optionally flipped; normalized."""
    length = tf.shape(image)[:2]
    kept = tf.minimum(length, MAX_ASPECT_RATIO * tf.reduce_min(length))
    image = crop(image, _centered(length, kept), kept)
    size = tf.cast(kept, tf.float32)
    # Rounded down, as the source does.
    new_size = tf.cast(size / tf.reduce_min(size) * shorter_side, tf.int32)
    return _resize(image, new_size, flip, normalization)


def _centered(length: tf.Tensor, part: tf.Tensor | int) -> tf.Tensor:
    """Returns the first position of the centered part."""
    return ((length - part) + 1) // 2


def _cutout(image: tf.Tensor, side: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image with a square of zeros at a random position."""
    num_places = image.shape[0] + 1 - side
    begin = tf.random.stateless_uniform([2, 1], seed, maxval=num_places, dtype=tf.int32)
    positions = tf.range(image.shape[0])
    rows, columns = tf.unstack((positions >= begin) & (positions < begin + side))
    mask = rows[:, tf.newaxis, tf.newaxis] & columns[:, tf.newaxis]
    return tf.where(mask, 0.0, image)
