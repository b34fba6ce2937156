"""The random parts of an image: how small they are, and those of one size."""

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.phases import Phase
from resnet.data.augmentation import preprocessing
from tests.unit.seen_images import (
    decoded,
    jpeg,
    noise,
    pixels,
    resized_by_tensorflow_1,
    seed,
)

# A tenth of a step of 255: rounding in another order is far below, a pixel far above.
SAME_PIXELS = 0.1


@pytest.mark.parametrize(
    ("height", "width", "image_size", "new_height", "new_width"),
    [
        # The shorter side becomes image_size / 0.875, the other one is rounded down.
        (40, 60, 14, 16, 24),
        (60, 40, 14, 24, 16),
        (33, 50, 14, 16, 24),  # 24.24
        (20, 20, 13, 15, 15),  # 14.86, rounded.
    ],
)
def test_a_random_crop_is_a_square_anywhere_flipped_half_of_the_time(
    height, width, image_size, new_height, new_width
):
    original = jpeg(noise(height, width))
    resized = resized_by_tensorflow_1(decoded(original), new_height, new_width)
    num_tops, num_lefts = new_height - image_size + 1, new_width - image_size + 1
    windows = np.array(
        [
            resized[top : top + image_size, left : left + image_size]
            for top in range(num_tops)
            for left in range(num_lefts)
        ]
    )
    views = np.concatenate([windows, windows[:, :, ::-1]])

    images = tf.data.Dataset.range(400).map(
        lambda i: preprocessing.train_image(
            original, image_size, "random_crop", tf.stack([tf.constant(3, tf.int64), i])
        )
    )
    found = []
    for image in images:
        assert image.shape == (image_size, image_size, 3)
        errors = abs(views - pixels(image)).max((1, 2, 3))
        assert errors.min() < SAME_PIXELS
        flipped, window = divmod(int(errors.argmin()), len(windows))
        found.append((flipped, *divmod(window, num_lefts)))
    flipped, tops, lefts = np.transpose(found)
    # 400 fair coins: standard deviation 10, and five of them.
    assert 150 < flipped.sum() < 250
    # Of up to 11 places one is missing with 11 * (10 / 11)**400 = 3e-16.
    assert set(tops) == set(range(num_tops))
    assert set(lefts) == set(range(num_lefts))
    # Standard deviation 1 / sqrt(400) = 0.05, and five of them.
    assert abs(np.corrcoef(found, rowvar=False) - np.eye(3)).max() < 0.25


def test_a_random_crop_of_one_row_of_pixels_still_sees_it():
    image = preprocessing.train_image(
        jpeg(np.full((1, 40, 3), 200)), 8, "random_crop", seed(0, 0)
    )
    np.testing.assert_allclose(pixels(image), np.full((8, 8, 3), 200), atol=1)


@pytest.fixture
def windows(monkeypatch) -> list[tuple[int, ...]]:
    """The windows that are decoded: top, left, height and width."""
    found: list[tuple[int, ...]] = []
    part = preprocessing.crop

    def record(original, begin, size):
        found.append(tuple(int(number) for number in (*begin, *size)))
        return part(original, begin, size)

    monkeypatch.setattr(preprocessing, "crop", record)
    return found


@pytest.mark.parametrize("min_crop_area", [0.02, 0.35, 0.9])
@pytest.mark.parametrize(
    "augmentation", ["random_resized_crop", "random_resized_crop_2018_02"]
)
def test_no_crop_is_smaller_than_the_smallest(windows, augmentation, min_crop_area):
    height, width = 100, 110
    encoded = jpeg(np.full((height, width, 3), 90))
    for i in range(250):
        preprocessing.train_image(encoded, 16, augmentation, seed(3, i), min_crop_area)
    # The central square that stands in has 87.5 % of each side.
    areas = [
        (rows + 0.5) * (columns + 0.5)  # Sides are whole numbers.
        for _, _, rows, columns in windows
        if (rows, columns) != (87, 87)
    ]
    assert len(areas) > 50
    smallest = Phase(num_steps=1, min_crop_area=min_crop_area).smallest_crop_area
    assert smallest == max(min_crop_area, 0.1)
    assert min(areas) >= smallest * height * width
    # They are spread evenly: of 50 one is in the lowest tenth but with 0.9**50 = 0.5 %.
    assert min(areas) < (smallest + 0.2 * (1 - smallest)) * height * width


def test_the_smallest_crop_can_be_the_whole(windows):
    image = preprocessing.train_image(
        jpeg(noise(64, 64)), 16, "random_resized_crop", seed(3, 4), 1.0
    )
    assert image.shape == (16, 16, 3)
    ((_, _, rows, columns),) = windows
    assert (rows, columns) in [(56, 56), (64, 64)]  # If none is found, 87.5 %.
