import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from data_prep.errors import UserError
from resnet import models
from resnet.train_state import decays

DEPTHS = (18, 34, 50, 101, 152, 200)
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


@functools.cache
def build(depth: int, seed: int = 0) -> keras.Model:
    """A small one; only what must be shared is built by this function."""
    return models.build(f"resnet{depth}", num_classes=10, image_size=64, seed=seed)


@functools.cache
def variables(depth: int) -> tuple[tuple[str, int, bool, bool], ...]:
    """Path, size, trainable and all ones, of each variable of a 1000-class network."""
    model = models.build(f"resnet{depth}", image_size=32)
    found = tuple(
        (one.path, int(np.prod(one.shape)), one.trainable, bool(np.all(one == 1)))
        for one in model.variables
    )
    return found


@pytest.mark.parametrize(
    ("depth", "convolutions", "trainable", "norm", "total", "decayed"),
    [
        # Worked out from the papers' tables of layers, apart from this code.
        (18, 21, 11_693_736, 9_728, 11_703_464, 11_684_008),
        (34, 37, 21_801_896, 17_152, 21_819_048, 21_784_744),
        (50, 53, 25_557_032, 53_120, 25_610_152, 25_503_912),
        (101, 104, 44_549_160, 105_344, 44_654_504, 44_443_816),
        (152, 155, 60_192_808, 151_424, 60_344_232, 60_041_384),
        (200, 203, 64_673_832, 176_000, 64_849_832, 64_497_832),
    ],
)
def test_each_depth_has_the_known_number_of_parameters(
    depth, convolutions, trainable, norm, total, decayed
):
    found = variables(depth)

    def count(is_counted) -> int:
        return sum(size for path, size, *_ in found if is_counted(path))

    assert (
        sum(path.endswith("/kernel") and "classifier" not in path for path, *_ in found)
        == convolutions
    )
    assert sum(size for _, size, is_trainable, _ in found if is_trainable) == trainable
    assert count(lambda path: path.endswith(("/gamma", "/beta"))) == norm
    assert count(lambda path: "/moving_" in path) == norm
    assert count(lambda path: True) == total
    assert (
        sum(size for path, size, is_trained, _ in found if is_trained and decays(path))
        == decayed
    )


@pytest.mark.parametrize("depth", DEPTHS)
def test_only_the_last_normalization_of_each_block_starts_at_zero(depth):
    last = 2 if depth < 50 else 3
    blocks = [
        f"stage{stage}_block{block}"
        for stage, num_blocks in enumerate(BLOCKS[depth], start=1)
        for block in range(1, num_blocks + 1)
    ]
    gammas = {
        path: all_ones for path, *_, all_ones in variables(depth) if "gamma" in path
    }
    zeros = [path for path, all_ones in gammas.items() if not all_ones]
    assert sorted(zeros) == sorted(f"{one}_{last}/gamma" for one in blocks)


def test_those_that_do_not_start_at_one_start_at_zero():
    model = build(18)
    for variable in model.trainable_variables:
        if variable.path.endswith("_2/gamma"):
            assert not variable.numpy().any()


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_first_block_of_every_stage_has_a_projection_and_no_other(depth):
    shortcuts = [path for path, *_ in variables(depth) if "shortcut/kernel" in path]
    assert sorted(shortcuts) == [
        f"stage{stage}_block1_shortcut/kernel" for stage in (1, 2, 3, 4)
    ]


def test_resnet50_of_ten_classes_has_the_known_number_of_parameters():
    assert sum(int(np.prod(one.shape)) for one in build(50).trainable_variables) == (
        23_528_522
    )


def test_names_of_variables_differ():
    names = [path for path, *_ in variables(200)]
    assert len(set(names)) == len(names)


def test_the_stride_of_a_bottleneck_is_in_its_3x3():
    model = build(50)
    names = [f"stage{stage}_block1_{part}" for stage in (1, 2, 3, 4) for part in "123"]
    inner = keras.Model(
        model.input,
        [keras.tree.flatten(model.get_layer(name).output)[0] for name in names],
    )
    outputs = inner(np.zeros((1, 64, 64, 3), np.float32))
    sides = [output.shape[1] for output in outputs]
    # 64 pixels are 16 behind the stem's pool.
    assert sides == [16, 16, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2]
    kernels = [model.get_layer(name).kernel.shape for name in names]
    assert [kernel[:2] for kernel in kernels] == [(1, 1), (3, 3), (1, 1)] * 4
    assert [kernel[2:] for kernel in kernels[3:6]] == [
        (256, 128),
        (128, 128),
        (128, 512),
    ]


def reference(model: keras.Model, depth: int, images: np.ndarray) -> np.ndarray:
    """The network of the paper, as plain operations on the model's variables."""
    values = {one.path: one.numpy() for one in model.variables}

    def conv(x, name, stride):
        kernel = values[f"{name}/kernel"]
        before = (kernel.shape[0] - 1) // 2
        padding = [before, kernel.shape[0] - 1 - before]
        padding = [[0, 0], padding, padding, [0, 0]]
        return tf.nn.conv2d(x, kernel, stride, padding)

    def norm(x, name):
        names = ("moving_mean", "moving_variance", "beta", "gamma")
        return tf.nn.batch_normalization(
            x, *(values[f"{name}/{one}"] for one in names), 1e-5
        )

    x = tf.nn.relu(norm(conv(images, "stem", 2), "stem"))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, num_blocks in enumerate(BLOCKS[depth], start=1):
        for block in range(1, num_blocks + 1):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            shortcut = x
            if block == 1:
                shortcut = norm(conv(x, f"{name}_shortcut", stride), f"{name}_shortcut")
            strides = (stride, 1) if depth < 50 else (1, stride, 1)
            for part, part_stride in enumerate(strides, start=1):
                x = norm(conv(x, f"{name}_{part}", part_stride), f"{name}_{part}")
                x = tf.nn.relu(x + shortcut if part == len(strides) else x)
    x = tf.reduce_mean(x, [1, 2])
    return (x @ values["classifier/kernel"] + values["classifier/bias"]).numpy()


def shake(model: keras.Model) -> None:
    """Gives normalizations and bias values that no wrong wiring survives."""
    generator = np.random.default_rng(5)
    for one in model.variables:
        name = one.path.rpartition("/")[2]
        if name in ("gamma", "moving_variance"):
            one.assign(generator.uniform(0.5, 1.0, one.shape))
        elif name in ("beta", "moving_mean", "bias"):
            one.assign(generator.normal(0, 0.1, one.shape))


@pytest.mark.parametrize("depth", [18, 50])
def test_the_network_is_that_of_the_paper(depth):
    model = models.build(f"resnet{depth}", num_classes=7, image_size=32)
    shake(model)
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    expected = reference(model, depth, images)
    ours = model(images, training=False).numpy()
    assert ours.dtype == np.float32
    # 50 layers of float32 sums in another order.
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3 * expected.std())


def test_bfloat16_keeps_float32_variables_and_comes_near_float32():
    exact = models.build("resnet18", 7, 32, seed=3)
    short = models.build("resnet18", 7, 32, compute_dtype="bfloat16", seed=3)
    for one, other in zip(exact.variables, short.variables, strict=True):
        assert other.dtype == "float32"
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    images = np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype(np.float32)
    expected = exact(images, training=True).numpy()
    ours = short(images, training=True).numpy()
    assert ours.dtype == np.float32
    inner = keras.Model(short.input, short.get_layer("stage4_block2_2").output)
    assert inner(images).dtype == tf.bfloat16
    # Each of some 20 layers rounds to 8 bits, by up to 0.2 %.
    error = np.linalg.norm(ours - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.05


def test_the_same_seed_gives_the_same_weights():
    first, second = (models.build("resnet18", 3, 32, seed=11) for _ in range(2))
    for one, other in zip(first.variables, second.variables, strict=True):
        assert one.path == other.path
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def kernels(model: keras.Model) -> list[np.ndarray]:
    return [one.numpy() for one in model.variables if one.path.endswith("/kernel")]


@pytest.mark.parametrize("other_seed", [1, 2**29])
def test_another_seed_gives_other_weights(other_seed):
    first = models.build("resnet18", 3, 32, seed=0)
    second = models.build("resnet18", 3, 32, seed=other_seed)
    for one, other in zip(kernels(first), kernels(second), strict=True):
        assert not np.array_equal(one, other)


def test_no_two_layers_start_with_the_same_numbers():
    starts = [kernel.ravel()[:3] / kernel.std() for kernel in kernels(build(18))]
    for one, other in itertools.combinations(starts, 2):
        assert not np.allclose(one, other, rtol=1e-3)


def test_the_largest_seed_that_the_settings_allow_can_be_used():
    models.build("resnet18", 3, 32, seed=2**63 - 1)


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"resnet18, .*, resnet200; got 'resnet19'"):
        models.build("resnet19")
