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
    trained,
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
        lambda i: trained(
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


@pytest.mark.parametrize(
    ("augmentation", "min_crop_area"),
    [
        ("random_resized_crop", 0.02),
        ("random_resized_crop", 0.35),
        ("random_resized_crop_2018_02", 0.35),
        ("random_resized_crop_2018_02", 0.9),
    ],
)
def test_random_crops_keep_their_bounds_and_are_flipped_half_of_the_time(
    windows, augmentation, min_crop_area
):
    height, width = 100, 110
    # Values rise to the right by one a column.
    encoded = jpeg(np.tile(np.arange(width)[:, np.newaxis], (height, 1, 3)))
    num_flipped = 0
    for i in range(250):
        image = trained(
            encoded, 16, augmentation, seed(3, i), min_crop_area=min_crop_area
        ).numpy()
        num_flipped += image[:, 0].mean() > image[:, -1].mean()
    # 250 fair coins: standard deviation 8, and five of them.
    assert 85 < num_flipped < 165
    # The central square that stands in has 87.5 % of each side.
    crops = [window for window in windows if window[2:] != (87, 87)]
    assert len(crops) > 50
    for top, left, rows, columns in crops:
        assert 0 <= top <= height - rows
        assert 0 <= left <= width - columns
        # Sides are whole: within half a pixel of the aspect asked for.
        assert columns + 0.5 >= 3 / 4 * (rows - 0.5)
        assert columns - 0.5 <= 4 / 3 * (rows + 0.5)
    areas = [(rows + 0.5) * (columns + 0.5) for _, _, rows, columns in crops]
    smallest = Phase(num_steps=1, min_crop_area=min_crop_area).smallest_crop_area
    assert smallest == max(min_crop_area, 0.1)
    assert min(areas) >= smallest * height * width
    # They are spread evenly: of 50 one is in the lowest tenth but with 0.9**50 = 0.5 %.
    assert min(areas) < (smallest + 0.2 * (1 - smallest)) * height * width


def test_an_image_without_a_possible_crop_is_cropped_in_its_centre(windows):
    # 8 % of the area is 320 pixels; the largest crop of at most 4:3 has 10 x 13.
    encoded = jpeg(np.full((10, 400, 3), 50))
    trained(encoded, 16, "random_resized_crop", seed(0, 0))
    # 0.875 * 10 = 8; (10 - 8 + 1) // 2 and (400 - 8 + 1) // 2.
    assert windows == [(1, 196, 8, 8)]
