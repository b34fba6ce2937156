"""The preprocessing of February 2018 against one that is written down here in NumPy.

Source: tensorflow/tpu at 2ebba45, models/official/resnet/resnet_preprocessing.py: the
whole image is decoded and made floats from 0 to 1; one attempt at a crop; bicubic.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.seen_images import (
    MEAN,
    STDDEV,
    decoded,
    evaluated,
    jpeg,
    noise,
    seed,
    trained,
    window_of,
)

# Of normalized values: about 20 operations in another order, each of a number up to
# 255 * 1.5 that is rounded to 2**-24 of it, and a deviation of 57: 20 * 2.3e-5 / 57.
TOLERANCE = 2e-5
SIDE = 24


def weights_of_pixels(size: int, new_size: int) -> np.ndarray:
    """Keys' cubic with A = -0.75 at new * size / new_size, `[new_size, size]`."""
    scale = np.float32(size) / np.float32(new_size)
    position = scale * np.arange(new_size, dtype=np.float32)
    left = np.floor(position)
    x = np.rint((position - left) * np.float32(1024)).astype(float) / 1024
    weights = np.zeros((new_size, size))
    for tap in range(-1, 3):
        d = abs(tap - x)
        near = 1.25 * d**3 - 2.25 * d**2 + 1
        far = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        index = np.clip(left.astype(int) + tap, 0, size - 1)
        np.add.at(weights, (np.arange(new_size), index), np.where(d <= 1, near, far))
    return weights


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    rows = weights_of_pixels(image.shape[0], height)
    columns = weights_of_pixels(image.shape[1], width)
    return np.einsum("yh,xw,hwc->yxc", rows, columns, image)


def scaled_and_cropped(image: np.ndarray, shorter_side: int) -> np.ndarray:
    """The shorter side resized, the other one rounded down, and the center of it."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    sides = [int(length / shorter * shorter_side) for length in (height, width)]
    top, left = ((side - SIDE + 1) // 2 for side in sides)
    return resized(image, *sides)[top : top + SIDE, left : left + SIDE]


def training_image(whole: np.ndarray, numbers: tf.Tensor) -> np.ndarray:
    """The image of February, normalized and not flipped."""
    top, left, rows, columns = window_of(*whole.shape[:2], numbers)
    image = whole / 255
    if (rows, columns) == whole.shape[:2]:  # The attempt failed.
        image = scaled_and_cropped(image, SIDE)
    else:
        image = image[top : top + rows, left : left + columns]
        image = resized(image, SIDE, SIDE)
    return (image - MEAN) / STDDEV


def photograph(height: int, width: int) -> tf.Tensor:
    """A JPEG whose colors have half the resolution, as those of most cameras."""
    return jpeg(noise(height, width), subsampling=2, quality=90)


def largest_error(original: tf.Tensor, augmentation: str, number: int) -> float:
    image = trained(original, SIDE, augmentation, seed(5, number))
    expected = training_image(decoded(original), seed(5, number))
    return min(np.abs(image - expected[:, ::way]).max() for way in (1, -1))


@pytest.mark.parametrize(("height", "width"), [(75, 100), (93, 61)])
def test_training_images_have_the_pixels_of_february(height, width):
    original = photograph(height, width)
    for number in range(25):
        error = largest_error(original, "random_resized_crop_2018_02", number)
        assert error < TOLERANCE, number


@pytest.mark.parametrize(("height", "width"), [(75, 100), (93, 61)])
def test_evaluation_has_the_pixels_of_february(height, width):
    original = photograph(height, width)
    # The shorter side becomes 24 / 0.875, rounded.
    expected = (scaled_and_cropped(decoded(original) / 255, 27) - MEAN) / STDDEV
    found = evaluated(original, SIDE, 0.875, "resize_then_crop")
    assert np.abs(found - expected).max() < TOLERANCE
