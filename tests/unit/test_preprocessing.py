import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from resnet import native
from resnet.config.phases import AUGMENTATIONS
from resnet.config.recipe import EVAL_CROPS
from resnet.data.augmentation import preprocessing
from tests.unit.seen_images import (
    decoded,
    evaluated,
    gradient,
    jpeg,
    middle,
    noise,
    pixels,
    resized_by_tensorflow_1,
    seed,
    trained,
    window_of,
)


def test_channels_are_normalized_by_the_published_numbers():
    image = evaluated(jpeg(np.full((8, 8, 3), 128)), 8, 1.0)
    assert image.dtype == tf.float32
    # (128 / 255 - mean) / deviation: 128 / 255 = 0.5019608.
    expected = np.broadcast_to([0.0740648, 0.2051821, 0.4264923], (8, 8, 3))
    np.testing.assert_allclose(image, expected, atol=1e-5)


# A tenth of a step of 255: rounding in another order is far below, a pixel far above.
SAME_PIXELS = 0.1


def all_images(original: tf.Tensor, key: tf.Tensor) -> list[tf.Tensor]:
    images = [trained(original, 32, name, key) for name in AUGMENTATIONS]
    return [*images, *(evaluated(original, 32, 0.875, crop) for crop in EVAL_CROPS)]


def test_the_seed_and_the_image_alone_decide_also_in_a_dataset():
    encoded = [jpeg(gradient(40 + i, 50)) for i in range(3)]
    numbers = tf.constant([[1, 2], [2**32 - 1, 5], [7, 2**40]], tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((encoded, numbers)).map(
        lambda *pair: tuple(all_images(*pair))
    )
    for original, key, images in zip(encoded, numbers, dataset, strict=True):
        tf.random.set_seed(99)
        for image, eager in zip(images, all_images(original, key), strict=True):
            # The same operations; only fused multiplications may round otherwise.
            np.testing.assert_allclose(image, eager, atol=1e-5)
            assert image.shape == (32, 32, 3)
            assert image.dtype == tf.float32
    first, *others = (all_images(encoded[0], key) for key in numbers)
    for name, image, *rest in zip(AUGMENTATIONS, first, *others, strict=False):
        is_same = [np.array_equal(image, other) for other in rest]
        # Of the 81 shifts two may be equal, but not all.
        assert sum(is_same) == 2 if name == "none" else sum(is_same) <= 1


def test_grey_images_become_three_equal_channels():
    y, x = np.mgrid[:40, :40]
    encoded = jpeg(2 * x + 3 * y)
    with Image.open(io.BytesIO(encoded.numpy())) as original:
        assert original.mode == "L"
    for image in all_images(encoded, seed(1, 1)):
        # Zeros of a shift or a cutout mask have a colour.
        grey = pixels(image)[np.any(np.asarray(image) != 0, axis=-1)]
        assert len(grey) > 500
        np.testing.assert_allclose(grey, grey[..., :1].repeat(3, -1), atol=1e-3)


@pytest.mark.parametrize(
    ("height", "width", "image_size", "fraction", "new_height", "new_width"),
    [
        # The shorter side becomes image_size / fraction, the other one is rounded down.
        (40, 60, 28, 0.875, 32, 48),
        (33, 50, 28, 0.875, 32, 48),  # 48.48
        (47, 30, 28, 0.875, 50, 32),  # 50.13
        (20, 20, 32, 0.875, 37, 37),  # 36.57, rounded.
        (1, 40, 8, 1.0, 8, 320),
        (7, 1, 4, 0.5, 56, 8),
    ],
)
def test_evaluation_resizes_then_crops_or_the_other_way_round(
    height, width, image_size, fraction, new_height, new_width
):
    original = jpeg(noise(height, width))
    whole = decoded(original)
    resized = resized_by_tensorflow_1(whole, new_height, new_width)
    square = middle(whole, max(int(fraction * min(height, width)), 1))
    for crop, expected in (
        ("resize_then_crop", middle(resized, image_size)),
        ("crop_then_resize", resized_by_tensorflow_1(square, image_size, image_size)),
    ):
        image = evaluated(original, image_size, fraction, crop)
        assert image.shape == (image_size, image_size, 3)
        np.testing.assert_allclose(pixels(image), expected, rtol=0, atol=SAME_PIXELS)


def test_of_an_extremely_long_image_only_the_central_part_is_resized(monkeypatch):
    sizes = []
    resize = preprocessing._resize

    def record(image, size, *more):
        sizes.append(np.prod(size))
        return resize(image, size, *more)

    monkeypatch.setattr(preprocessing, "_resize", record)
    strip = tf.constant(noise(2, 4000))
    whole, part = (
        [
            evaluated(image, 14, 0.875, "resize_then_crop"),
            *preprocessing.five_crops(image, 14, 0.875),
        ]
        for image in (strip, strip[:, 2000 - 32 : 2000 + 32])
    )
    np.testing.assert_array_equal(whole, part)
    assert max(sizes) == 16 * 16 * 32


@pytest.mark.parametrize(
    ("height", "width", "new_height", "new_width"),
    # Of 3 x 62 pixels 3 x 4 are the most that 4:3 allows, 6 %: it never finds a crop.
    [(45, 30, 24, 16), (3, 62, 16, 330)],
)
def test_february_2018_crops_once_and_else_takes_the_middle(
    height, width, new_height, new_width
):
    original = jpeg(noise(height, width))
    whole = decoded(original)
    shrunk = resized_by_tensorflow_1(whole, new_height, new_width)
    num_middle = num_flipped = 0
    for i in range(40):
        image = trained(original, 16, "random_resized_crop_2018_02", seed(9, i))
        assert image.shape == (16, 16, 3)
        top, left, rows, columns = window_of(height, width, seed(9, i))
        if (rows, columns) == (height, width):
            expected = middle(shrunk, 16)
            num_middle += 1
        else:
            part = whole[top : top + rows, left : left + columns]
            expected = resized_by_tensorflow_1(part, 16, 16)
        is_plain, is_flipped = (
            np.allclose(pixels(image), view, rtol=0, atol=SAME_PIXELS)
            for view in (expected, expected[:, ::-1])
        )
        assert is_plain != is_flipped
        num_flipped += is_flipped
    assert num_middle == 40 if height < 4 else 0 < num_middle < 40
    # 40 fair coins: standard deviation 3.2, and five of them.
    assert 4 < num_flipped < 36


COLOURS = [
    {"subsampling": 0},
    {"subsampling": 1},  # Colours halved across, as a camera writes them.
    {"subsampling": 2},  # And down too: most images.
    {"subsampling": 2, "progressive": True, "quality": 80},
]


@pytest.mark.parametrize(("height", "width"), [(40, 60), (33, 47), (90, 20), (1, 40)])
def test_a_jpeg_and_its_decoded_image_give_the_same(height, width):
    original = jpeg(noise(height, width), subsampling=0)
    whole = tf.constant(decoded(original))
    for i in range(2):
        ours, others = (all_images(o, seed(i, height)) for o in (original, whole))
        for image, other in zip(ours, others, strict=True):
            np.testing.assert_array_equal(image, other)


@pytest.mark.parametrize("options", COLOURS)
def test_a_part_of_a_jpeg_is_that_of_the_decoded_image_but_for_its_edges(options):
    original = jpeg(noise(70, 90), **options)
    whole = tf.constant(decoded(original))
    for top, left, height, width in ((0, 0, 70, 90), (3, 16, 50, 33), (31, 45, 20, 45)):
        window = tf.constant((top, left)), tf.constant((height, width))
        part, expected = (
            preprocessing.crop(image, *window) for image in (original, whole)
        )
        np.testing.assert_array_equal(part[:, 1:-1], expected[:, 1:-1])


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(("height", "width"), [(40, 57), (57, 40), (40, 40)])
def test_five_crops_are_the_corners_and_the_middle(
    monkeypatch, is_compiled, height, width
):
    if not is_compiled:
        monkeypatch.setattr(native, "ops", lambda: None)
    # The shorter side becomes 32 / 0.8 = 40: it stays.
    image = noise(height, width)
    ours = preprocessing.five_crops(tf.constant(image), 32, 0.8)
    bottom, right = height - 32, width - 32
    center = (bottom + 1) // 2, (right + 1) // 2
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right)]
    assert ours.shape == (5, 32, 32, 3)
    for crop, (top, left) in zip(ours, [*corners, center], strict=True):
        expected = image[top : top + 32, left : left + 32]
        # Float32's rounding.
        np.testing.assert_allclose(pixels(crop), expected, rtol=0, atol=1e-3)
    expected = evaluated(jpeg(image), 32, 0.5, "resize_then_crop")
    five = preprocessing.five_crops(jpeg(image), 32, 0.5)
    np.testing.assert_allclose(five[4], expected, rtol=0, atol=1e-5)
