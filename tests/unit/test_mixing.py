import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data.augmentation import mixing

SIDE = 16


def seeds_of(num_examples: int, key: int = 5) -> np.ndarray:
    return np.stack([np.full(num_examples, key), np.arange(num_examples)], 1)


def images_of(num_examples: int) -> np.ndarray:
    generator = np.random.default_rng(num_examples)
    return generator.normal(size=(num_examples, SIDE, SIDE, 3)).astype(np.float32)


def marks_of(num_examples: int, side: int = SIDE) -> np.ndarray:
    """Pairs of an image of ones and one of zeros: the first, mixed, is the weights."""
    marks = np.ones((num_examples, side, side, 3), np.float32)
    marks[1::2] = 0
    return marks


def mix(
    images: np.ndarray, seeds: np.ndarray, mixup: float, cutmix: float
) -> tuple[np.ndarray, np.ndarray]:
    mix_pairs = mixing.mix_pairs
    if len(images) > 50:  # Eagerly a pair takes milliseconds.
        mix_pairs = tf.function(mix_pairs, autograph=False)
    mixed, mix_weight = mix_pairs(
        tf.constant(images), tf.constant(seeds, tf.int64), mixup, cutmix
    )
    return mixed.numpy(), mix_weight.numpy()


def test_mixup_takes_a_fraction_of_each_and_the_rest_of_its_partner():
    images = images_of(20)
    mixed, mix_weight = mix(images, seeds_of(20), 0.8, 0.0)
    assert mixed.dtype == mix_weight.dtype == np.float32
    assert len(set(mix_weight.tolist())) == 10
    np.testing.assert_array_equal(mix_weight[::2], mix_weight[1::2])
    weight = mix_weight[:, np.newaxis, np.newaxis, np.newaxis]
    partners = images.reshape(10, 2, SIDE, SIDE, 3)[:, ::-1].reshape(images.shape)
    # float32's 6e-8 of numbers up to 5.
    expected = weight * images + (1 - weight) * partners
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=2e-6)


def boxes_in(mixed: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Returns top, left, height and width of each box of zeros in images of ones."""
    boxes = []
    for image in mixed:
        is_box = image[..., 0] == 0
        rows, columns = is_box.any(1).nonzero()[0], is_box.any(0).nonzero()[0]
        assert is_box.sum() == len(rows) * len(columns)
        if not len(rows):
            boxes.append((0, 0, 0, 0))
            continue
        assert np.ptp(rows) + 1 == len(rows)
        assert np.ptp(columns) + 1 == len(columns)
        boxes.append((rows[0], columns[0], len(rows), len(columns)))
    return boxes


def test_cutmix_replaces_a_box_by_the_same_of_the_partner():
    images = images_of(40)
    mixed, mix_weight = mix(images, seeds_of(40), 0.0, 1.0)
    marked, same_weight = mix(marks_of(40), seeds_of(40), 0.0, 1.0)
    np.testing.assert_array_equal(mix_weight, same_weight)
    np.testing.assert_array_equal(marked[1::2], 1 - marked[::2])
    boxes = boxes_in(marked[::2])
    assert len(set(boxes)) > 15
    for pair, (top, left, height, width) in enumerate(boxes):
        first, second = images[2 * pair], images[2 * pair + 1]
        box = slice(top, top + height), slice(left, left + width)
        expected = np.array([first, second])
        expected[0][box], expected[1][box] = second[box], first[box]
        np.testing.assert_array_equal(mixed[2 * pair : 2 * pair + 2], expected)
        weight = 1 - height * width / SIDE**2
        np.testing.assert_allclose(
            mix_weight[2 * pair : 2 * pair + 2], weight, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_middle_of_the_box_is_anywhere_and_what_is_outside_is_cut_off(
    monkeypatch, weight
):
    monkeypatch.setattr(mixing, "_beta", lambda *_: tf.constant(weight))
    side = int(math.sqrt(np.float32(1 - weight)) * SIDE)  # 16, 13 and 0.
    begins = [middle - side // 2 for middle in range(SIDE)]
    edges = {
        (max(begin, 0), min(begin + side, SIDE) - max(begin, 0)) for begin in begins
    }
    mixed, mix_weight = mix(marks_of(800), seeds_of(800), 0.0, 1.0)
    boxes = boxes_in(mixed[::2])
    np.testing.assert_allclose(
        mix_weight[::2],
        [1 - height * width / SIDE**2 for *_, height, width in boxes],
        atol=1e-6,
    )
    if side == 0:
        assert set(boxes) == {(0, 0, 0, 0)}
        return
    # Of 16 places one is missing with 16 * (15 / 16)**400 = 1e-10.
    assert {(top, height) for top, _, height, _ in boxes} == edges
    assert {(left, width) for _, left, _, width in boxes} == edges
    tops, lefts = np.transpose(boxes)[:2]
    # Standard deviation 1 / sqrt(400) = 0.05, and five of them.
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.25


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_lambda_is_drawn_from_the_beta_distribution(alpha):
    mixed, _ = mix(marks_of(4000, 1), seeds_of(4000), alpha, 0.0)
    drawn = mixed[::2, 0, 0, 0].astype(np.float64)
    expected = np.random.default_rng(0).beta(alpha, alpha, 200_000)
    # Kolmogorov and Smirnov: the shares of 2000 differ by more than 0.051 with 1e-4.
    for bound in np.linspace(0.001, 0.999, 101):
        assert np.mean(drawn < bound) == pytest.approx(
            np.mean(expected < bound), abs=0.051
        )


def test_a_pair_takes_mixup_or_cutmix_half_of_the_time():
    mixed, mix_weight = mix(marks_of(800), seeds_of(800), 1.0, 1.0)
    np.testing.assert_allclose(mixed.mean((1, 2, 3))[::2], mix_weight[::2], atol=1e-5)
    is_box = np.array([set(np.unique(image)) <= {0, 1} for image in mixed[::2]])
    assert all(len(np.unique(image)) == 1 for image in mixed[::2][~is_box])
    # 400 fair coins: standard deviation 10, and five of them.
    assert 150 < is_box.sum() < 250
    # Whether it is a box tells nothing of its size: means of 200, each of deviation
    # 0.29 / sqrt(200) = 0.02. A box of half the area loses a sixth at the edges.
    sizes = 1 - mix_weight[::2]
    assert 0.2 < sizes[is_box].mean() < sizes[~is_box].mean() + 0.14


@settings(max_examples=2)
@given(
    sizes=st.lists(st.integers(1, 3).map(lambda pairs: 2 * pairs), max_size=3),
    key=st.integers(0, 2**32 - 1),
)
def test_the_seed_of_the_first_of_a_pair_alone_decides_also_inside_a_dataset(
    sizes, key
):
    sizes = [2, *sizes]
    images, seeds = images_of(sum(sizes)), seeds_of(sum(sizes), key)
    whole = mix(images, seeds, 0.4, 0.7)
    seeds[1::2] = 77
    ends = np.cumsum(sizes)[:-1]
    parts = [
        mix(*part, 0.4, 0.7)
        for part in zip(np.split(images, ends), np.split(seeds, ends), strict=True)
    ]
    dataset = tf.data.Dataset.from_tensors((images, seeds)).map(
        lambda images, seeds: mixing.mix_pairs(images, seeds, 0.4, 0.7)
    )
    (in_dataset,) = dataset.as_numpy_iterator()
    for expected, ours, theirs in zip(
        whole, zip(*parts, strict=True), in_dataset, strict=True
    ):
        np.testing.assert_array_equal(np.concatenate(ours), expected)
        # The same operations; only fused multiplications may round otherwise.
        np.testing.assert_allclose(theirs, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("alpha", [1e-6, 1e6])
def test_lambda_is_a_number_for_any_alpha(alpha):
    _, mix_weight = mix(np.zeros((200, 1, 1, 3), np.float32), seeds_of(200), alpha, 0)
    assert np.isfinite(mix_weight).all()
    if alpha > 1:
        np.testing.assert_allclose(mix_weight, 0.5, atol=0.01)
    else:  # Either 0 or 1, but for few.
        assert np.mean(np.abs(mix_weight - 0.5) > 0.49) > 0.95
