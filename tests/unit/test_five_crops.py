import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from resnet import native
from resnet.data.augmentation import preprocessing

MEAN = 255 * np.array(preprocessing.MEAN)
STDDEV = 255 * np.array(preprocessing.STDDEV)
SIZE = 32
# What the ops differ from the formula by, in standard deviations: float32's rounding.
TOLERANCE = 1e-5


def noise(height: int, width: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture(params=[True, False], ids=["compiled", "stock ops"])
def _ops(request, monkeypatch):
    """Has the image resized by each op."""
    if not request.param:
        monkeypatch.setattr(native, "ops", lambda: None)


@pytest.mark.usefixtures("_ops")
@pytest.mark.parametrize(("height", "width"), [(40, 57), (57, 40), (40, 40)])
def test_they_are_the_corners_and_the_middle(height, width):
    # The shorter side becomes 32 / 0.8 = 40: it stays.
    image = noise(height, width)
    ours = preprocessing.five_crops(tf.constant(image), SIZE, 0.8)
    normalized = (image - MEAN) / STDDEV
    bottom, right = height - SIZE, width - SIZE
    middle = (bottom + 1) // 2, (right + 1) // 2
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right)]
    assert ours.shape == (5, SIZE, SIZE, 3)
    for crop, (top, left) in zip(ours.numpy(), [*corners, middle], strict=True):
        expected = normalized[top : top + SIZE, left : left + SIZE]
        np.testing.assert_allclose(crop, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("fraction", [0.5, 0.875, 1.0])
@pytest.mark.parametrize(("height", "width"), [(33, 90), (200, 47), (20, 20)])
def test_the_last_one_is_the_middle_that_evaluation_sees(height, width, fraction):
    image = tf.constant(noise(height, width))
    middle = preprocessing.eval_image(image, SIZE, fraction, "resize_then_crop")
    five = preprocessing.five_crops(image, SIZE, fraction)
    np.testing.assert_array_equal(five[4], middle)


def test_a_jpeg_in_a_dataset_gives_those_of_its_decoded_image():
    file = io.BytesIO()
    Image.fromarray(noise(50, 70)).save(file, "JPEG")
    encoded = file.getvalue()

    def crops(image: tf.Tensor) -> tf.Tensor:
        return preprocessing.five_crops(image, SIZE, 0.875)

    ours = tf.data.Dataset.from_tensors(encoded).map(crops).get_single_element()
    assert ours.shape == (5, SIZE, SIZE, 3)
    expected = crops(tf.io.decode_jpeg(encoded, channels=3))
    np.testing.assert_array_equal(ours, expected)
