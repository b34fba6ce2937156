"""From an encoded picture to what the network sees, for training and for evaluation.

Every random choice is a function of a seed that is passed in. Images are
`[image_size, image_size, 3]` float32, normalized per channel.

Source: tensorflow/tpu, models/official/resnet/resnet_preprocessing.py.
"""

import tensorflow as tf

# Of ImageNet's channels, on a scale of 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STDDEV = (0.229, 0.224, 0.225)

FALLBACK_CROP_FRACTION = 0.875  # 224 / 256.
SHIFT_FRACTION = 0.125  # 4 of 32 pixels, as is usual for CIFAR-10.


def train_image(
    encoded: tf.Tensor, image_size: int, augmentation: str, seed: tf.Tensor
) -> tf.Tensor:
    """Returns a picture as training sees it.

    Args:
        encoded: JPEG, string scalar.
        image_size: Side of the result in pixels.
        augmentation: "random_resized_crop" (8 % to 100 % of the area, any aspect from
            3/4 to 4/3, mirrored half of the time), "random_shift" (by up to an eighth
            of the side, zeros moving in), or "none".
        seed: int64 `[2]`; the result depends on it and on the picture alone.
    """
    if augmentation == "random_resized_crop":
        crop_seed, flip_seed = tf.unstack(tf.random.split(seed, 2))
        image = _random_crop(encoded, crop_seed)
        image = tf.image.stateless_random_flip_left_right(
            _resize(image, image_size), flip_seed
        )
        return _normalize(image)
    image = _normalize(_resize(_decode(encoded), image_size))
    if augmentation == "random_shift":
        shift = round(image_size * SHIFT_FRACTION)
        image = tf.pad(image, [[shift, shift], [shift, shift], [0, 0]])
        image = tf.image.stateless_random_crop(image, (image_size, image_size, 3), seed)
    return image


def eval_image(encoded: tf.Tensor, image_size: int, crop_fraction: float) -> tf.Tensor:
    """Returns a picture as evaluation sees it: its central square.

    Args:
        encoded: JPEG, string scalar.
        image_size: Side of the result in pixels.
        crop_fraction: Side of the square as a share of the picture's shorter side.
    """
    crop = _central_crop(encoded, tf.image.extract_jpeg_shape(encoded), crop_fraction)
    return _normalize(_resize(crop, image_size))


def _random_crop(encoded: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random part of the picture, decoded; uint8."""
    shape = tf.image.extract_jpeg_shape(encoded)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),  # No box: the whole picture.
        seed,
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    nothing_found = tf.reduce_all(size[:2] == shape[:2])
    return tf.cond(
        nothing_found,
        lambda: _central_crop(encoded, shape, FALLBACK_CROP_FRACTION),
        lambda: _decode_and_crop(encoded, begin[0], begin[1], size[0], size[1]),
    )


def _central_crop(
    encoded: tf.Tensor, shape: tf.Tensor, crop_fraction: float
) -> tf.Tensor:
    """Returns the central square of the picture, decoded; uint8."""
    height, width = shape[0], shape[1]
    shorter = tf.cast(tf.minimum(height, width), tf.float32)
    side = tf.maximum(tf.cast(crop_fraction * shorter, tf.int32), 1)
    top, left = ((height - side) + 1) // 2, ((width - side) + 1) // 2
    return _decode_and_crop(encoded, top, left, side, side)


def _decode_and_crop(
    encoded: tf.Tensor,
    top: tf.Tensor,
    left: tf.Tensor,
    height: tf.Tensor,
    width: tf.Tensor,
) -> tf.Tensor:
    window = tf.stack([top, left, height, width])
    return tf.image.decode_and_crop_jpeg(encoded, window, channels=3)


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    return tf.image.decode_jpeg(encoded, channels=3)


def _resize(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the image, resized by TensorFlow 1's bicubic kernel; float32, 0 to 255.

    The published runs used that kernel; `tf.image.resize` has another one.
    """
    return tf.raw_ops.ResizeBicubic(
        images=image[tf.newaxis],
        size=(image_size, image_size),
        align_corners=False,
        half_pixel_centers=False,
    )[0]


def _normalize(image: tf.Tensor) -> tf.Tensor:
    mean = tf.constant([255 * value for value in MEAN])
    scale = tf.constant([1 / (255 * value) for value in STDDEV])
    return (image - mean) * scale
