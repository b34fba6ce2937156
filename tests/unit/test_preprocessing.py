import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from resnet.data import preprocessing

MEAN = np.array([0.485, 0.456, 0.406])
STDDEV = np.array([0.229, 0.224, 0.225])


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()


def gradient(height: int, width: int) -> np.ndarray:
    """Red tells the column and green the row, in steps of 4."""
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * x, 4 * y, np.full_like(x, 100)], axis=-1)


def pixels(image: tf.Tensor) -> np.ndarray:
    """The image on a scale of 0 to 255 again."""
    return (np.asarray(image) * STDDEV + MEAN) * 255


def seed(*numbers: int) -> tf.Tensor:
    return tf.constant(numbers, tf.int64)


def assert_shows(image: tf.Tensor, top: int, left: int, side: int) -> None:
    """Checks which square of a gradient the image is, pixel for pixel.

    A JPEG is not exact: single pixels are off by up to 5, means of rows and columns by
    up to 3, less than the gradient's step of 4, and all together by less than 2.
    """
    assert image.shape == (side, side, 3)
    red, green, _ = np.moveaxis(pixels(image), -1, 0)
    for means, first in ((red.mean(0), left), (green.mean(1), top)):
        error = means - 4 * (first + np.arange(side))
        assert abs(error).max() < 3.5
        assert abs(error.mean()) < 2


@pytest.mark.parametrize(
    ("height", "width", "fraction", "side", "top", "left"),
    [
        # side = fraction * shorter, rounded down; begin = (rest + 1) // 2.
        (40, 60, 0.875, 35, 3, 13),
        (60, 40, 0.875, 35, 13, 3),
        (33, 33, 1.0, 33, 0, 0),
        (40, 41, 1.0, 40, 0, 1),
        (50, 45, 0.5, 22, 14, 12),
    ],
)
def test_evaluation_looks_at_the_central_square(
    height, width, fraction, side, top, left
):
    # At its own size the square isn't resized.
    image = preprocessing.eval_image(jpeg(gradient(height, width)), side, fraction)
    assert_shows(image, top, left, side)


def test_evaluation_of_one_pixel_still_sees_it():
    image = preprocessing.eval_image(jpeg(np.full((1, 1, 3), 200)), 4, 0.875)
    np.testing.assert_allclose(pixels(image), np.full((4, 4, 3), 200), atol=1)


def test_channels_are_normalized_by_the_published_numbers():
    image = preprocessing.eval_image(jpeg(np.full((8, 8, 3), 128)), 8, 1.0)
    assert image.dtype == tf.float32
    # (128 / 255 - mean) / deviation: 128 / 255 = 0.5019608.
    expected = np.broadcast_to([0.0740648, 0.2051821, 0.4264923], (8, 8, 3))
    np.testing.assert_allclose(image, expected, atol=1e-5)


def keys_cubic(distance: float) -> float:
    """The cubic convolution kernel with a = -0.75."""
    a, d = -0.75, abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    if d < 2:
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return 0.0


def resize_matrix(side: int, new_side: int) -> np.ndarray:
    """Weights of TensorFlow 1's bicubic: corners in place, edges repeated."""
    matrix = np.zeros((new_side, side))
    for new in range(new_side):
        place = new * side / new_side
        first = int(np.floor(place))
        for index in range(first - 1, first + 3):
            inside = min(max(index, 0), side - 1)
            matrix[new, inside] += keys_cubic(place - index)
    return matrix


@pytest.mark.parametrize("size", [(9, 9), (16, 16), (10, 7), (8, 8), (3, 20)])
def test_resizing_is_that_of_tensorflow_1(size):
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3))
    ours = preprocessing._resize(tf.constant(picture, tf.uint8), 8)
    rows, columns = (resize_matrix(side, 8) for side in size)
    expected = np.einsum("yh,xw,hwc->yxc", rows, columns, picture)
    # Its weights come from a table of 1024 places: 255 * 2 * 1.5 / 2048.
    np.testing.assert_allclose(ours, expected, atol=0.4)


def test_training_without_augmentation_sees_the_whole_picture():
    image = preprocessing.train_image(jpeg(gradient(40, 40)), 40, "none", seed(1, 2))
    assert_shows(image, top=0, left=0, side=40)


@pytest.mark.parametrize("augmentation", ["random_resized_crop", "random_shift"])
def test_the_seed_and_the_picture_alone_decide(augmentation):
    encoded = jpeg(gradient(50, 60))

    def image(*numbers: int) -> np.ndarray:
        return preprocessing.train_image(
            encoded, 32, augmentation, seed(*numbers)
        ).numpy()

    first = image(1, 2)
    assert first.shape == (32, 32, 3)
    assert first.dtype == np.float32
    tf.random.set_seed(99)
    np.testing.assert_array_equal(first, image(1, 2))
    others = [image(1, 3), image(2, 2), image(2**32 - 1, 5), image(7, 2**40)]
    # Of the 81 shifts two may be equal, but not all.
    assert sum(np.array_equal(first, other) for other in others) <= 1


@pytest.mark.parametrize(
    "augmentation", ["random_resized_crop", "random_shift", "none"]
)
def test_a_dataset_sees_what_eager_calls_see(augmentation):
    encoded = [jpeg(gradient(40 + i, 50)) for i in range(4)]
    numbers = tf.constant([[i, 3 * i] for i in range(4)], tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((encoded, numbers)).map(
        lambda one, key: preprocessing.train_image(one, 32, augmentation, key)
    )
    for one, key, image in zip(encoded, numbers, dataset, strict=True):
        eager = preprocessing.train_image(one, 32, augmentation, key)
        # The same operations; only fused multiplications may round otherwise.
        np.testing.assert_allclose(image, eager, atol=1e-5)
        assert image.shape == (32, 32, 3)


def test_a_dataset_evaluates_as_eager_calls_do():
    encoded = jpeg(gradient(40, 50))
    dataset = tf.data.Dataset.from_tensors(encoded).map(
        lambda one: preprocessing.eval_image(one, 32, 0.875)
    )
    for image in dataset:
        eager = preprocessing.eval_image(encoded, 32, 0.875)
        np.testing.assert_allclose(image, eager, atol=1e-5)


@pytest.mark.parametrize(
    "augmentation", ["random_resized_crop", "random_shift", "none"]
)
def test_grey_pictures_become_three_equal_channels(augmentation):
    y, x = np.mgrid[:40, :40]
    encoded = jpeg(2 * x + 3 * y)
    with Image.open(io.BytesIO(encoded)) as picture:
        assert picture.mode == "L"
    trained = preprocessing.train_image(encoded, 32, augmentation, seed(1, 1))
    for image in (trained, preprocessing.eval_image(encoded, 32, 0.875)):
        assert image.shape == (32, 32, 3)
        grey = pixels(image)
        if augmentation == "random_shift":  # Zeros are the mean of each channel.
            grey = grey[np.any(np.asarray(image) != 0, axis=-1)]
        np.testing.assert_allclose(grey[..., 0], grey[..., 1], atol=1e-3)
        np.testing.assert_allclose(grey[..., 0], grey[..., 2], atol=1e-3)


def test_a_shift_moves_by_up_to_four_of_32_pixels_and_zeros_move_in():
    encoded = jpeg(gradient(32, 32))
    whole = preprocessing.train_image(encoded, 32, "none", seed(0, 0)).numpy()
    padded = np.pad(whole, ((4, 4), (4, 4), (0, 0)))
    windows = {
        padded[top : top + 32, left : left + 32].tobytes(): (top - 4, left - 4)
        for top in range(9)
        for left in range(9)
    }
    assert len(windows) == 81
    shifts = [
        windows[
            preprocessing.train_image(encoded, 32, "random_shift", seed(5, i))
            .numpy()
            .tobytes()
        ]
        for i in range(300)
    ]
    # Nine shifts in each direction; one is missing with 9 * (8 / 9)**300 = 4e-15.
    assert {down for down, _ in shifts} == set(range(-4, 5))
    assert {right for _, right in shifts} == set(range(-4, 5))


@pytest.fixture
def windows(monkeypatch) -> list[tuple[int, ...]]:
    """The windows that are decoded: top, left, height and width."""
    found: list[tuple[int, ...]] = []
    decode = preprocessing._decode_and_crop

    def record(encoded, *window):
        found.append(tuple(int(number) for number in window))
        return decode(encoded, *window)

    monkeypatch.setattr(preprocessing, "_decode_and_crop", record)
    return found


def test_random_crops_keep_their_bounds_and_are_mirrored_half_of_the_time(windows):
    height, width = 100, 150
    # Red rises to the right by one a column.
    x = np.broadcast_to(np.arange(width), (height, width))
    encoded = jpeg(np.stack([x, x, x], -1))
    num_mirrored = 0
    for i in range(400):
        image = preprocessing.train_image(
            encoded, 16, "random_resized_crop", seed(3, i)
        ).numpy()
        num_mirrored += image[:, 0].mean() > image[:, -1].mean()
    assert len(windows) == 400
    for top, left, crop_height, crop_width in windows:
        assert top >= 0
        assert left >= 0
        assert top + crop_height <= height
        assert left + crop_width <= width
        # Sides are whole: within half a pixel of the aspect and area asked for.
        assert crop_width + 0.5 >= 3 / 4 * (crop_height - 0.5)
        assert crop_width - 0.5 <= 4 / 3 * (crop_height + 0.5)
        assert (crop_width + 0.5) * (crop_height + 0.5) >= 0.08 * height * width
    shares = [one[2] * one[3] / (height * width) for one in windows]
    assert min(shares) < 0.2
    assert max(shares) > 0.6
    assert len({one[:2] for one in windows}) > 300
    # 400 fair coins: standard deviation 10.
    assert 160 < num_mirrored < 240


def test_a_picture_without_a_possible_crop_is_cropped_in_its_centre(windows):
    # 8 % of the area is 320 pixels; the largest crop of at most 4:3 has 10 x 13.
    encoded = jpeg(np.full((10, 400, 3), 50))
    preprocessing.train_image(encoded, 16, "random_resized_crop", seed(0, 0))
    # 0.875 * 10 = 8; (10 - 8 + 1) // 2 and (400 - 8 + 1) // 2.
    assert windows == [(1, 196, 8, 8)]
