"""RandAugment against Pillow, whose operations it is made of."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from resnet.data.augmentation import random_augment
from resnet.data.augmentation import seeds as seed_numbers
from tests.unit.seen_images import jpeg, noise, seed, trained

GREY = (128, 128, 128)
AFFINE = Image.Transform.AFFINE


def moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, AFFINE, matrix, Image.NEAREST, fillcolor=GREY)


def shift(image: Image.Image, strength: float) -> int:
    return int(150 / 331 * image.width * strength)


# What each operation does at a strength from -1 to 1, by Pillow and the papers' ranges.
BY_PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "_identity": lambda image, s: image,
    "_auto_contrast": lambda image, s: ImageOps.autocontrast(image),
    "_equalize": lambda image, s: ImageOps.equalize(image),
    "_rotate": lambda image, s: image.rotate(-30 * s, Image.NEAREST, fillcolor=GREY),
    "_solarize": lambda image, s: ImageOps.solarize(image, 256 - 256 * abs(s)),
    "_color": lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    "_posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "_contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    "_brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    "_sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    "_shear_x": lambda image, s: moved(image, 1, 0.3 * s, 0, 0, 1, 0),
    "_shear_y": lambda image, s: moved(image, 1, 0, 0, 0.3 * s, 1, 0),
    "_shift_x": lambda image, s: moved(image, 1, 0, shift(image, s), 0, 1, 0),
    "_shift_y": lambda image, s: moved(image, 1, 0, 0, 0, 1, shift(image, s)),
}
MOVING = ("_rotate", "_shear_x", "_shear_y", "_shift_x", "_shift_y")
NAMES = [operation.__name__ for operation in random_augment.OPERATIONS]


def some_image(kind: str, side: int) -> np.ndarray:
    if kind == "noise":
        return noise(side, side)
    if kind == "one colour":
        return np.full((side, side, 3), (0, 130, 255), np.uint8)
    coarse = Image.fromarray(noise(5, 5)).resize((side, side), Image.BICUBIC)
    smooth = np.asarray(coarse)
    if kind == "pale":  # Stretched and equalized by much; one channel is empty.
        smooth = smooth // 8 + np.array([100, 3, 0])
        smooth[..., 2] = 7
    return smooth.astype(np.uint8)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(
    kind=st.sampled_from(["noise", "smooth", "pale", "one colour"]),
    side=st.integers(32, 49),
    # Such that hardly a place lies halfway between two pixels.
    strength=st.integers(-20, 20).map(lambda number: 0.997 * number / 20),
)
def test_an_operation_does_what_pillows_does(name, kind, side, strength):
    image = some_image(kind, side)
    assert sorted(NAMES) == sorted(BY_PILLOW)
    operation = random_augment.OPERATIONS[NAMES.index(name)]
    ours = operation(tf.constant(image), tf.constant(strength))
    assert ours.dtype == tf.uint8
    assert ours.shape == image.shape
    expected = np.asarray(BY_PILLOW[name](Image.fromarray(image), strength))
    errors = abs(ours.numpy().astype(int) - expected)
    if name in MOVING:
        # Pillow rounds slopes to 1 / 65,536: a row that comes to lie halfway between
        # two others, or two such rows, may be either. A tenth of a pixel is a tenth of
        # all places.
        assert np.count_nonzero(errors.any(-1)) <= 2 * side
    else:
        # Fractions may be rounded down to either side of a whole number.
        assert errors.max() <= 1
        assert np.count_nonzero(errors) <= 0.03 * errors.size


def seeds(number: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(number).map(
        lambda i: tf.stack([tf.constant(2**32 - 1, tf.int64), i])
    )


def test_each_pair_of_operations_is_drawn_and_each_direction(monkeypatch):
    def note(image: tf.Tensor, strength: tf.Tensor, number: int) -> tf.Tensor:
        """Has the first channel become 14 * first + second, the second the signs."""
        pair, signs, tenths = tf.unstack(image[0, 0])
        tenths = tf.cast(tf.round(10 * tf.abs(strength)), tf.uint8)
        signs = signs * 2 + tf.cast(strength > 0, tf.uint8)
        return tf.stack([pair * 14 + number, signs, tenths])[None, None]

    operations = tuple(functools.partial(note, number=number) for number in range(14))
    monkeypatch.setattr(random_augment, "OPERATIONS", operations)
    start = tf.zeros([1, 1, 3], tf.uint8)
    images = seeds(2500).map(lambda seed: random_augment.augment(start, 7.0, seed))
    pairs, signs, tenths = np.array(list(images))[:, 0, 0].T
    assert set(tenths) == {7}
    counts = np.bincount(pairs, minlength=196)
    # 2500 / 196 = 12.8 with a deviation of 3.6: none with 3e-6, and five of them.
    assert counts.min() > 0
    assert counts.max() < 31
    # 625 each with a deviation of 22, and five of them.
    assert abs(np.bincount(signs, minlength=4) - 625).max() < 109


def test_the_seed_alone_decides_also_inside_a_dataset():
    image = tf.constant(some_image("smooth", 32))

    def augmented(seed: tf.Tensor) -> tf.Tensor:
        return random_augment.augment(image, 9.0, seed)

    ours = np.array(list(seeds(16).map(augmented, num_parallel_calls=3)))
    tf.random.set_seed(99)
    for key, theirs in zip(seeds(16), ours, strict=True):
        # Fused multiplications may round otherwise.
        errors = augmented(key).numpy().astype(int) - theirs
        assert np.mean(abs(errors) > 1) < 0.01
    # Both operations change nothing with 1 in 196.
    assert len({image.tobytes() for image in ours}) > 12


@pytest.mark.parametrize(("fraction", "side"), [(0.25, 8), (12 / 32, 12)])
def test_the_cutout_mask_follows_them(fraction, side):
    original = jpeg(noise(32, 32))
    settings = {"random_augment": 10.0, "cutout_fraction": fraction}
    for i in range(8):
        image = trained(
            original, 32, "pad_crop_flip_cutout", seed(2, i), **settings
        ).numpy()
        assert np.all(image == 0, axis=-1).sum() == side**2


USES = [value for value in vars(seed_numbers).values() if isinstance(value, int)]
KEYS, NUMBERS = st.integers(0, 2**32 - 1), st.integers(0, 2**40)
EXAMPLE_AND_USE = st.tuples(KEYS, NUMBERS, st.sampled_from(USES))


@given(EXAMPLE_AND_USE, EXAMPLE_AND_USE)
def test_seeds_meet_only_for_the_same_example_and_use(ours, others):
    first, second = (
        seed_numbers.seed_for(seed(key, number), use).numpy().tolist()
        for key, number, use in (ours, others)
    )
    assert (first == second) == (ours == others)
