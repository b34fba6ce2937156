"""The random parts of an image: crops, shifts, flips and masks."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet.config.phases import Phase
from resnet.data.augmentation import preprocessing
from tests.unit.seen_images import (
    decoded,
    gradient,
    jpeg,
    noise,
    pixels,
    resized_by_tensorflow_1,
    seed,
    trained,
)

# A tenth of a step of 255: rounding in another order is far below, a pixel far above.
SAME_PIXELS = 0.1


def traced(original: bytes, image_size: int, augmentation: str, **settings) -> Callable:
    """Returns a function from the seed to the image, traced once for many calls."""

    @tf.function(autograph=False)
    def train_image(key: tf.Tensor) -> tf.Tensor:
        return trained(original, image_size, augmentation, key, **settings)

    return lambda *numbers: train_image(seed(*numbers)).numpy()


def windows_of(image: np.ndarray, side: int) -> dict[tuple[int, int], np.ndarray]:
    """Returns each square of an image by its top and left position."""
    return {
        (top, left): image[top : top + side, left : left + side]
        for top in range(image.shape[0] - side + 1)
        for left in range(image.shape[1] - side + 1)
    }


@pytest.mark.parametrize(
    ("height", "width", "image_size", "new_height", "new_width"),
    [
        # The shorter side becomes image_size / 0.875, the other one is rounded down.
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
    windows = windows_of(resized, image_size)
    squares = np.array(list(windows.values()))
    views = np.concatenate([squares, squares[:, :, ::-1]])
    crop = traced(original, image_size, "random_crop")
    seen = []
    for i in range(200):
        errors = abs(views - pixels(crop(3, i))).max((1, 2, 3))
        assert errors.min() < SAME_PIXELS
        flipped, window = divmod(int(errors.argmin()), len(windows))
        seen.append((flipped, *list(windows)[window]))
    flipped, tops, lefts = np.transpose(seen)
    # 200 fair coins: standard deviation 7, and five of them.
    assert 65 < flipped.sum() < 135
    # Of up to 11 places one is missing with 11 * (10 / 11)**200 = 6e-8.
    assert set(zip(tops, lefts, strict=True)) <= set(windows)
    assert set(tops) == set(range(new_height - image_size + 1))
    assert set(lefts) == set(range(new_width - image_size + 1))
    # Standard deviation 1 / sqrt(200) = 0.07, and five of them.
    assert abs(np.corrcoef(seen, rowvar=False) - np.eye(3)).max() < 0.35


@pytest.fixture
def windows(monkeypatch) -> list[tuple[int, ...]]:
    """The windows that are decoded: top, left, height and width."""
    seen: list[tuple[int, ...]] = []
    part = preprocessing.crop

    def record(original, begin, size):
        seen.append(tuple(int(number) for number in (*begin, *size)))
        return part(original, begin, size)

    monkeypatch.setattr(preprocessing, "crop", record)
    return seen


@pytest.mark.parametrize(
    ("augmentation", "min_crop_area"),
    [("random_resized_crop", 0.02), ("random_resized_crop_2018_02", 0.35)],
)
def test_random_crops_keep_their_bounds_and_are_flipped_half_of_the_time(
    windows, augmentation, min_crop_area
):
    height, width = 100, 110
    # Values rise to the right by one a column.
    encoded = jpeg(np.tile(np.arange(width)[:, np.newaxis], (height, 1, 3)))
    num_flipped = 0
    for i in range(150):
        image = trained(
            encoded, 16, augmentation, seed(3, i), min_crop_area=min_crop_area
        ).numpy()
        num_flipped += image[:, 0].mean() > image[:, -1].mean()
    # 150 fair coins: standard deviation 6, and five of them.
    assert 44 < num_flipped < 106
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


def padded(original: tf.Tensor, shift: int, **mode: str) -> np.ndarray:
    whole = trained(original, 32, "none", seed(0, 0)).numpy()
    return np.pad(whole, ((shift, shift), (shift, shift), (0, 0)), **mode)


@pytest.mark.parametrize(
    ("augmentation", "shift", "is_flipped"),
    [
        ("random_shift", 4, None),
        ("pad_crop_flip", 2, False),
        ("pad_crop_flip", 2, True),
    ],
)
def test_a_shift_has_all_places_and_zeros_or_reflected_edges_move_in(
    augmentation, shift, is_flipped
):
    encoded = jpeg(gradient(32, 32) + noise(32, 32) // 8)
    settings = {}
    mode = "constant"
    if is_flipped is not None:
        mode = "reflect"
        settings = {"shift_fraction": 2 / 32, "flip": tf.constant(is_flipped)}
    windows = windows_of(padded(encoded, shift, mode=mode), 32)
    places = {window.tobytes(): place for place, window in windows.items()}
    assert len(places) == (2 * shift + 1) ** 2
    augmented = traced(encoded, 32, augmentation, **settings)
    seen = set()
    for i in range(300):
        image = augmented(5, i)
        seen.add(places[(image[:, ::-1] if is_flipped else image).tobytes()])
    # Of nine in each direction one is missing with 9 * (8 / 9)**300 = 4e-15.
    for axis in range(2):
        assert {place[axis] for place in seen} == set(range(2 * shift + 1))


def test_cifars_augmentation_shifts_with_reflected_edges_flips_and_cuts_out_a_mask():
    encoded = jpeg(noise(32, 32))
    windows = windows_of(padded(encoded, 4, mode="reflect"), 32)
    squares = np.array(list(windows.values()))
    views = np.concatenate([squares, squares[:, :, ::-1]])
    augmented = traced(encoded, 32, "pad_crop_flip_cutout")
    seen = []
    for i in range(150):
        image = augmented(5, i)
        is_masked = np.all(image == 0, axis=-1)
        rows, columns = is_masked.any(1).nonzero()[0], is_masked.any(0).nonzero()[0]
        # A quarter of the side, a whole square, nowhere over the edge.
        assert rows.tolist() == list(range(rows[0], rows[0] + 8))
        assert columns.tolist() == list(range(columns[0], columns[0] + 8))
        assert is_masked.sum() == 64
        # 24 pixels of noise tell which one it is, and then all must be the same.
        some = tuple(indices[::40] for indices in (~is_masked).nonzero())
        (view,) = (views[(slice(None), *some)] == image[some]).all((1, 2)).nonzero()[0]
        np.testing.assert_array_equal(views[view][~is_masked], image[~is_masked])
        flipped, place = divmod(int(view), 81)
        seen.append((*list(windows)[place], flipped, rows[0], columns[0]))
    down, right, flipped, mask_row, mask_column = np.transpose(seen)
    # Of nine values one is missing with 9 * (8 / 9)**150 = 2e-7.
    assert set(down) == set(right) == set(range(9))
    # 150 fair coins: standard deviation 6, and five of them.
    assert 44 < flipped.sum() < 106
    # Of 25 places each of two ends is missing with (24 / 25)**150 = 0.2 %.
    for masked in (mask_row, mask_column):
        assert (masked.min(), masked.max()) == (0, 24)
    # Standard deviation 1 / sqrt(150) = 0.08, and five of them.
    correlations = np.corrcoef(seen, rowvar=False)
    assert abs(correlations - np.eye(5)).max() < 0.41
