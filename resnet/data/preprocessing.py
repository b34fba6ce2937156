"""From a picture to what the network sees, for training and for evaluation.

A picture is a JPEG file (string scalar) or already decoded (`[height, width, 3]`
uint8); what comes out is the same, but for the edges of crops (`_part`). Every random
choice is a function of a seed that is passed in. Images are
`[image_size, image_size, 3]` float32, normalized per channel.

Source: tensorflow/tpu, models/official/resnet/resnet_preprocessing.py, as of April 2018
and, where it says so, as of February 2018.
"""

import tensorflow as tf

from resnet import native
from resnet.data import random_augment
from resnet.data.augmentation_seeds import HOLE, MIRROR, WINDOW, seed_for

# Of ImageNet's channels, on a scale of 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STDDEV = (0.229, 0.224, 0.225)

FALLBACK_CROP_FRACTION = 0.875  # 224 / 256.
SMALLEST_CROP = 0.08  # As in the TPU recipe.
# 4 of 32 pixels, and a hole of 8: as is usual for CIFAR-10.
SHIFT_FRACTION = 0.125
HOLE_FRACTION = 0.25


def train_image(
    picture: tf.Tensor,
    image_size: int,
    augmentation: str,
    seed: tf.Tensor,
    smallest_crop: float = SMALLEST_CROP,
    magnitude: float = 0.0,
) -> tf.Tensor:
    """Returns a picture as training sees it.

    The augmentations:

    - "random_resized_crop": `smallest_crop` to 100 % of the area, any aspect from 3/4
      to 4/3, mirrored half of the time. If ten tries find no such part, the central
      square.
    - "random_resized_crop_2018_02": the same with one try, as in February 2018; without
      success the picture is resized to its shorter side and the middle is cut out.
    - "random_crop": the shorter side becomes `image_size / 0.875`, then a square is cut
      out anywhere, mirrored half of the time.
    - "random_shift": by up to an eighth of the side, zeros moving in.
    - "pad_crop_flip_cutout": CIFAR-10's. As "random_shift", but mirrored at its edges
      where it would be empty, mirrored as a whole half of the time, and with a square
      hole of a quarter of the side.
    - "none".

    RandAugment comes after them, but before the hole.

    Args:
        picture: JPEG or decoded.
        image_size: Side of the result in pixels.
        augmentation: One of those above.
        seed: int64 `[2]`, the first not negative; the result depends on it and on the
            picture alone.
        smallest_crop: Share of the area, from above 0 to 1.
        magnitude: Of RandAugment, up to 10; 0 for none.

    Source of "pad_crop_flip_cutout": davidcpage/cifar10-fast, core.py (Crop, FlipLR,
    Cutout). Of "random_crop": the last phase of sara-nl/caffe's solvers, Codreanu et
    al. 2017, arXiv:1711.04291.
    """
    image = _seen(picture, image_size, augmentation, seed, smallest_crop)
    if magnitude:
        image = _random_augmented(image, magnitude, seed)
    if augmentation == "pad_crop_flip_cutout":
        hole = round(image_size * HOLE_FRACTION)
        return _cut_out(image, hole, seed_for(seed, HOLE))
    return image


def eval_image(
    picture: tf.Tensor, image_size: int, crop_fraction: float, crop: str
) -> tf.Tensor:
    """Returns a picture as evaluation sees it: its central square.

    Args:
        picture: JPEG or decoded.
        image_size: Side of the result in pixels.
        crop_fraction: Side of the square as a share of the picture's shorter side.
        crop: "crop_then_resize", or "resize_then_crop" as in February 2018: the shorter
            side becomes `image_size / crop_fraction`, then the middle is cut out.
    """
    if crop == "resize_then_crop":
        return _scale_and_crop(
            _whole(picture), round(image_size / crop_fraction), image_size
        )
    part = _central_part(picture, _shape(picture), crop_fraction)
    return _resize(part, (image_size, image_size), tf.constant(False))


def five_crops(picture: tf.Tensor, image_size: int, crop_fraction: float) -> tf.Tensor:
    """Returns the corners and the middle of a picture whose shorter side is resized.

    Top left, top right, bottom left, bottom right and middle, normalized:
    `[5, image_size, image_size, 3]` float32.

    Args:
        picture: JPEG or decoded.
        image_size: Side of the results in pixels.
        crop_fraction: The shorter side becomes `image_size / crop_fraction`.

    Source: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional
    Neural Networks", section 4.1, who took the corners of the middle square.
    """
    shorter_side = round(image_size / crop_fraction)
    image = _scale(_whole(picture), shorter_side, tf.constant(False))
    height, width, _ = tf.unstack(tf.shape(image))
    bottom, right = height - image_size, width - image_size
    begins = (
        (0, 0),
        (0, right),
        (bottom, 0),
        (bottom, right),
        (_middle(height, image_size), _middle(width, image_size)),
    )
    crops = [
        tf.slice(image, (top, left, 0), (image_size, image_size, 3))
        for top, left in begins
    ]
    return tf.ensure_shape(tf.stack(crops), (5, image_size, image_size, 3))


def resize_with_stock_ops(
    image: tf.Tensor, size: tuple[tf.Tensor | int, tf.Tensor | int], mirror: tf.Tensor
) -> tf.Tensor:
    """Returns what `_resize` does, without the compiled op.

    The published runs used TensorFlow 1's bicubic kernel; `tf.image.resize` has
    another one.
    """
    resized = tf.raw_ops.ResizeBicubic(
        images=image[tf.newaxis],
        size=size,
        align_corners=False,
        half_pixel_centers=False,
    )[0]
    resized = tf.cond(mirror, lambda: tf.reverse(resized, [1]), lambda: resized)
    return (resized - _on_bytes(MEAN)) / _on_bytes(STDDEV)


def _resize(
    image: tf.Tensor, size: tuple[tf.Tensor | int, tf.Tensor | int], mirror: tf.Tensor
) -> tf.Tensor:
    """Returns the image resized, mirrored if `mirror`, and normalized.

    Args:
        image: `[height, width, 3]` uint8.
        size: Height and width of the result.
        mirror: bool scalar.
    """
    ops = native.ops()
    if ops is None:
        return resize_with_stock_ops(image, size, mirror)
    mean, stddev = _on_bytes(MEAN), _on_bytes(STDDEV)
    return ops.resnet_resize_bicubic(image, size, mirror, mean=mean, stddev=stddev)


def _on_bytes(values: tuple[float, ...]) -> list[float]:
    return [255 * value for value in values]


def _seen(
    picture: tf.Tensor,
    image_size: int,
    augmentation: str,
    seed: tf.Tensor,
    smallest_crop: float,
) -> tf.Tensor:
    """Returns what `train_image` does before RandAugment; its arguments."""
    size = image_size, image_size
    window = seed_for(seed, WINDOW)
    mirror = tf.random.stateless_uniform([], seed_for(seed, MIRROR)) < 0.5
    if augmentation == "random_resized_crop":
        return _resize(_random_part(picture, window, smallest_crop), size, mirror)
    if augmentation == "random_resized_crop_2018_02":
        return _random_part_2018_02(picture, image_size, window, mirror, smallest_crop)
    if augmentation == "random_crop":
        shorter_side = round(image_size / FALLBACK_CROP_FRACTION)
        image = _scale(_whole(picture), shorter_side, mirror)
        return tf.image.stateless_random_crop(image, (*size, 3), window)
    image = _resize(_whole(picture), size, tf.constant(False))
    if augmentation == "none":
        return image
    shift = round(image_size * SHIFT_FRACTION)
    mode = "REFLECT" if augmentation == "pad_crop_flip_cutout" else "CONSTANT"
    image = tf.pad(image, [[shift, shift], [shift, shift], [0, 0]], mode)
    image = tf.image.stateless_random_crop(image, (*size, 3), window)
    if augmentation == "pad_crop_flip_cutout":
        return tf.cond(mirror, lambda: tf.reverse(image, [1]), lambda: image)
    return image


def _random_augmented(image: tf.Tensor, magnitude: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a normalized image after RandAugment, which works on bytes."""
    side = image.shape[0]
    # Channels beside columns: long rows are computed far faster than short ones.
    mean, stddev = (tf.constant(_on_bytes(one) * side) for one in (MEAN, STDDEV))
    values = tf.reshape(image, [side, side * 3]) * stddev + mean
    # Halves are frequent: they are all rounded down, not as errors of 1e-5 decide.
    values = tf.cast(tf.clip_by_value(values + 0.499, 0, 255), tf.uint8)
    values = random_augment.augment(
        tf.reshape(values, [side, side, 3]), magnitude, seed
    )
    values = tf.cast(tf.reshape(values, [side, side * 3]), tf.float32)
    return tf.reshape((values - mean) / stddev, [side, side, 3])


def _random_part(
    picture: tf.Tensor, seed: tf.Tensor, smallest_crop: float
) -> tf.Tensor:
    """Returns a random part of the picture, decoded; uint8."""
    shape = _shape(picture)
    begin, size = _random_window(shape, seed, 10, smallest_crop)
    return tf.cond(
        tf.reduce_all(size == shape[:2]),  # Nothing found.
        lambda: _central_part(picture, shape, FALLBACK_CROP_FRACTION),
        lambda: _part(picture, begin, size),
    )


def _random_part_2018_02(
    picture: tf.Tensor,
    image_size: int,
    seed: tf.Tensor,
    mirror: tf.Tensor,
    smallest_crop: float,
) -> tf.Tensor:
    """Returns a random part of the picture, resized and normalized."""
    shape = _shape(picture)
    begin, size = _random_window(shape, seed, 1, smallest_crop)

    def middle() -> tf.Tensor:
        image = _scale_and_crop(_whole(picture), image_size, image_size)
        return tf.where(mirror, image[:, ::-1], image)

    image = tf.cond(
        tf.reduce_all(size == shape[:2]),
        middle,
        lambda: _resize(
            _part(picture, begin, size),
            (image_size, image_size),
            mirror,
        ),
    )
    return tf.ensure_shape(image, (image_size, image_size, 3))


def _random_window(
    shape: tf.Tensor, seed: tf.Tensor, max_attempts: int, smallest_crop: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns top and left, and height and width: the whole if nothing is found."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),  # No box: the whole picture.
        seed,
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(smallest_crop, 1.0),
        max_attempts=max_attempts,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[:2], size[:2]


def _central_part(
    picture: tf.Tensor, shape: tf.Tensor, crop_fraction: float
) -> tf.Tensor:
    """Returns the central square of the picture, decoded; uint8."""
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.maximum(tf.cast(crop_fraction * shorter, tf.int32), 1)
    begin = _middle(shape[:2], side)
    return _part(picture, begin, tf.stack([side, side]))


def _scale_and_crop(image: tf.Tensor, shorter_side: int, image_size: int) -> tf.Tensor:
    """Returns the middle of the image, its shorter side resized; normalized."""
    image = _scale(image, shorter_side, tf.constant(False))
    height, width, _ = tf.unstack(tf.shape(image))
    top, left = _middle(height, image_size), _middle(width, image_size)
    image = tf.slice(image, (top, left, 0), (image_size, image_size, 3))
    return tf.ensure_shape(image, (image_size, image_size, 3))


def _scale(image: tf.Tensor, shorter_side: int, mirror: tf.Tensor) -> tf.Tensor:
    """Returns the image, its shorter side resized, mirrored if `mirror`; normalized."""
    shape = tf.shape(image)
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    shorter = tf.minimum(height, width)
    # Rounded down, as the source does.
    new_height = tf.cast(height / shorter * shorter_side, tf.int32)
    new_width = tf.cast(width / shorter * shorter_side, tf.int32)
    return _resize(image, (new_height, new_width), mirror)


def _middle(length: tf.Tensor, part: tf.Tensor | int) -> tf.Tensor:
    """Returns where the central part begins."""
    return ((length - part) + 1) // 2


def _cut_out(image: tf.Tensor, side: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image with a square of zeros somewhere in it."""
    positions = tf.range(image.shape[0])
    begin = tf.random.stateless_uniform(
        [2], seed, maxval=image.shape[0] + 1 - side, dtype=tf.int32
    )
    row, column = (
        (positions >= first) & (positions < first + side) for first in tf.unstack(begin)
    )
    hole = row[:, tf.newaxis] & column[tf.newaxis, :]
    return tf.where(hole[..., tf.newaxis], 0.0, image)


def _is_decoded(picture: tf.Tensor) -> bool:
    return picture.dtype == tf.uint8


def _shape(picture: tf.Tensor) -> tf.Tensor:
    """Returns height, width and channels, int32; of a JPEG only its head is read."""
    if _is_decoded(picture):
        return tf.shape(picture)
    return tf.image.extract_jpeg_shape(picture)


def _whole(picture: tf.Tensor) -> tf.Tensor:
    return picture if _is_decoded(picture) else tf.io.decode_jpeg(picture, channels=3)


def _part(picture: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a part of the picture, decoded; hardly more of a JPEG is decoded.

    Where a JPEG's colours are halved, its part's first and last column are not in all
    bits those of the decoded picture: the decoder lacks their neighbours. The published
    runs saw them so too.

    Args:
        picture: JPEG or decoded.
        begin: Top and left.
        size: Height and width.
    """
    if _is_decoded(picture):
        return tf.slice(picture, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
    window = tf.concat([begin, size], 0)
    return tf.image.decode_and_crop_jpeg(picture, window, channels=3)
