"""Images whose pixels tell where they were, for the tests of preprocessing."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image

from resnet.config.phases import Phase
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization

MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])


def jpeg(pixels: np.ndarray, **options) -> tf.Tensor:
    file = io.BytesIO()
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(file, "JPEG", **{"quality": 100, "subsampling": 0, **options})
    return tf.constant(file.getvalue())


def noise(height: int, width: int) -> np.ndarray:
    generator = np.random.default_rng(height * 1000 + width)
    return generator.integers(0, 256, (height, width, 3)).astype(np.uint8)


def gradient(height: int, width: int) -> np.ndarray:
    """Red tells the column and green the row, in steps of 4."""
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * x, 4 * y, np.full_like(x, 100)], axis=-1)


def pixels(image: tf.Tensor) -> np.ndarray:
    """The image on a scale of 0 to 255 again."""
    return (np.asarray(image) * STDDEV + MEAN) * 255


def seed(*numbers: int) -> tf.Tensor:
    return tf.constant(numbers, tf.int64)


def trained(
    picture: tf.Tensor,
    image_size: int,
    augmentation: str,
    key: tf.Tensor,
    normalization: Normalization = preprocessing.IMAGENET,
    flip: tf.Tensor | None = None,
    **settings: float,
) -> tf.Tensor:
    """Returns an image of a phase with these settings."""
    phase = Phase(
        num_steps=1, image_size=image_size, augmentation=augmentation, **settings
    )
    return preprocessing.train_image(picture, phase, key, normalization, flip)


def evaluated(
    picture: tf.Tensor, image_size: int, fraction: float, crop: str = "crop_then_resize"
) -> tf.Tensor:
    return preprocessing.eval_image(picture, image_size, fraction, crop)


def resized_by_tensorflow_1(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The published kernel on the whole of a image; not normalized."""
    return tf.raw_ops.ResizeBicubic(
        images=pixels[np.newaxis],
        size=(height, width),
        align_corners=False,
        half_pixel_centers=False,
    )[0].numpy()


def decoded(picture: tf.Tensor) -> np.ndarray:
    return tf.io.decode_jpeg(picture, channels=3).numpy()


def middle(image: np.ndarray, side: int) -> np.ndarray:
    top, left = ((length - side + 1) // 2 for length in image.shape[:2])
    return image[top : top + side, left : left + side]


def window_of(height: int, width: int, numbers: tf.Tensor) -> tuple[int, int, int, int]:
    """The one window that February 2018 tries: all of the image where it fails."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        (height, width, 3),
        [[[0.0, 0.0, 1.0, 1.0]]],
        numbers,
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=1,
    )
    return int(begin[0]), int(begin[1]), int(size[0]), int(size[1])
