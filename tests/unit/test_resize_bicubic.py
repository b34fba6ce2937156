"""The resizing op against stock ops, and both against the formula."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data.augmentation import preprocessing
from tests.unit.seen_images import noise

# Of normalized values: about 20 operations in another order, each of a number up to
# 255 * 1.5 that is rounded to 2**-24 of it, and a deviation of 57: 20 * 2.3e-5 / 57.
TOLERANCE = 2e-5
SIDES = st.integers(1, 40)


def taps(size: int, new_size: int) -> np.ndarray:
    """Weights of each old position for each new one, `[new_size, size]` float64.

    Keys' cubic with A = -0.75 at new * size / new_size, in float32 as TensorFlow
    computes it, and rounded to 1/1024; positions over the edge are those at the edge.
    """
    a = -0.75
    weights = np.zeros((new_size, size))
    scale = np.float32(size) / np.float32(new_size)
    for new in range(new_size):
        position = scale * np.float32(new)
        left = np.floor(position)
        x = float(np.rint((position - left) * np.float32(1024))) / 1024
        for index in range(int(left) - 1, int(left) + 3):
            d = abs(index - float(left) - x)
            if d <= 1:
                weight = (a + 2) * d**3 - (a + 3) * d**2 + 1
            else:
                weight = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
            weights[new, min(max(index, 0), size - 1)] += weight
    return weights


def resized_by_formula(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    rows, columns = taps(image.shape[0], size[0]), taps(image.shape[1], size[1])
    sums = np.einsum("yh,hwc->ywc", rows, image.astype(np.float64))
    sums = np.einsum("xw,ywc->yxc", columns, sums)
    mean = 255 * np.array([0.485, 0.456, 0.406])
    return (sums - mean) / (255 * np.array([0.229, 0.224, 0.225]))


def resize(image: np.ndarray, size: tuple[int, int], mirror: bool = False):
    resized = preprocessing._resize(
        tf.constant(image), size, tf.constant(mirror), preprocessing.IMAGENET
    )
    return resized.numpy()


def assert_resized_alike(image: np.ndarray, size: tuple[int, int]) -> None:
    expected = resized_by_formula(image, size)
    for mirror in (False, True):
        ours = resize(image, size, mirror)
        stock = preprocessing.resize_with_stock_ops(
            tf.constant(image), size, tf.constant(mirror)
        )
        mirrored = expected[:, ::-1] if mirror else expected
        assert ours.dtype == np.float32
        if mirror:
            np.testing.assert_array_equal(ours, resize(image, size)[:, ::-1])
        np.testing.assert_allclose(ours, mirrored, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(stock, mirrored, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(ours, stock, rtol=0, atol=TOLERANCE)


@settings(max_examples=40)
@given(height=SIDES, width=SIDES, new_height=SIDES, new_width=SIDES)
def test_an_image_is_resized_as_by_the_formula_and_as_by_stock_ops(
    height, width, new_height, new_width
):
    assert_resized_alike(noise(height, width), (new_height, new_width))


@pytest.mark.parametrize(
    ("old", "new"), [((1, 1), (32, 32)), ((375, 500), (224, 224)), ((9, 6), (1, 1))]
)
def test_images_of_extreme_and_of_usual_sizes_are_resized_alike(old, new):
    assert_resized_alike(noise(*old), new)


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((0, 5, 3), (4, 4), r"must be \[height, width, 3\]"),
        ((5, 5), (4, 4), r"must be \[height, width, 3\]"),
        ((5, 5, 3), (0, 4), "two numbers from 1 to"),
        ((5, 5, 3), (4, 4, 4), "two numbers from 1 to"),
    ],
)
def test_what_is_no_image_and_no_size_is_refused(shape, size, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        resize(np.zeros(shape, np.uint8), size)
