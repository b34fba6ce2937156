"""Augmentations that shift, flip and mask images of 32 pixels."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.seen_images import gradient, jpeg, noise, seed, trained


def traced_train_image(
    encoded: bytes, image_size: int, augmentation: str
) -> Callable[[tf.Tensor], np.ndarray]:
    """A function of the seed that is traced once, for many calls."""

    @tf.function(autograph=False)
    def train_image(one: tf.Tensor) -> tf.Tensor:
        return trained(encoded, image_size, augmentation, one)

    return lambda one: train_image(one).numpy()


def test_a_shift_moves_by_up_to_four_of_32_pixels_and_zeros_move_in():
    encoded = jpeg(gradient(32, 32))
    whole = trained(encoded, 32, "none", seed(0, 0)).numpy()
    padded = np.pad(whole, ((4, 4), (4, 4), (0, 0)))
    windows = {
        padded[top : top + 32, left : left + 32].tobytes(): (top - 4, left - 4)
        for top in range(9)
        for left in range(9)
    }
    assert len(windows) == 81
    shifted = traced_train_image(encoded, 32, "random_shift")
    shifts = [windows[shifted(seed(5, i)).tobytes()] for i in range(300)]
    # Nine shifts in each direction; one is missing with 9 * (8 / 9)**300 = 4e-15.
    assert {down for down, _ in shifts} == set(range(-4, 5))
    assert {right for _, right in shifts} == set(range(-4, 5))


@pytest.mark.parametrize("flip", [False, True])
def test_crops_of_padded_images_have_the_shift_and_the_flip_that_are_asked_for(flip):
    encoded = jpeg(noise(32, 32))
    whole = trained(encoded, 32, "none", seed(0, 0)).numpy()
    padded = np.pad(whole, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    places = [(top, left) for top in range(5) for left in range(5)]
    windows = {
        padded[top : top + 32, left : left + 32].tobytes(): (top, left)
        for top, left in places
    }

    @tf.function(autograph=False)
    def train_image(one: tf.Tensor) -> tf.Tensor:
        return trained(
            encoded,
            32,
            "pad_crop_flip",
            one,
            flip=tf.constant(flip),
            shift_fraction=2 / 32,
        )

    found = set()
    for i in range(300):
        image = train_image(seed(3, i)).numpy()
        found.add(windows[(image[:, ::-1] if flip else image).tobytes()])
    # One of 25 is missing with 25 * (24 / 25)**300 = 1e-4.
    assert found == set(places)


def test_cifars_augmentation_shifts_with_reflected_edges_flips_and_cuts_out_a_mask():
    encoded = jpeg(noise(32, 32))
    whole = trained(encoded, 32, "none", seed(0, 0)).numpy()
    padded = np.pad(whole, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    places = [(top, left) for top in range(9) for left in range(9)]
    windows = np.array([padded[t : t + 32, x : x + 32] for t, x in places])
    views = np.concatenate([windows, windows[:, :, ::-1]])

    found = []
    augmented = traced_train_image(encoded, 32, "pad_crop_flip_cutout")
    for i in range(300):
        image = augmented(seed(5, i))
        assert image.shape == (32, 32, 3)
        is_masked = np.all(image == 0, axis=-1)
        rows, columns = is_masked.any(1).nonzero()[0], is_masked.any(0).nonzero()[0]
        # A quarter of the side, a whole square, nowhere over the edge.
        assert rows.tolist() == list(range(rows[0], rows[0] + 8))
        assert columns.tolist() == list(range(columns[0], columns[0] + 8))
        assert is_masked.sum() == 64
        # 24 pixels of noise tell which one it is, and then all must be the same.
        seen = tuple(indices[::40] for indices in (~is_masked).nonzero())
        (view,) = (views[(slice(None), *seen)] == image[seen]).all((1, 2)).nonzero()[0]
        np.testing.assert_array_equal(views[view][~is_masked], image[~is_masked])
        flipped, place = divmod(int(view), 81)
        found.append((*places[place], flipped, rows[0], columns[0]))
    down, right, flipped, mask_row, mask_column = np.transpose(found)
    # Of nine values one is missing with 9 * (8 / 9)**300 = 4e-15.
    assert set(down) == set(right) == set(range(9))
    # 300 fair coins: standard deviation 8.7, and five of them.
    assert 106 < flipped.sum() < 194
    # Of 25 places each of two ends is missing with (24 / 25)**300 = 5e-6.
    for masked in (mask_row, mask_column):
        assert (masked.min(), masked.max()) == (0, 24)
    # Standard deviation 1 / sqrt(300) = 0.058, and five of them.
    correlations = np.corrcoef(found, rowvar=False)
    assert abs(correlations - np.eye(5)).max() < 0.29
