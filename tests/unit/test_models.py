import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.base.errors import UserError
from resnet.config.phases import SMALLEST_IMAGE
from resnet.config.recipe import TrainingSettings
from resnet.models import flops, layers, names, resnet
from resnet.models.layers import normalization
from tests.unit.described_model import without_values
from tests.unit.reference_network import (
    change_start_values,
    gradients_of_both,
    normalize,
    random_images,
    relative_difference,
    values_of,
)

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
# Two blocks of one kind, in the second stage; one in the others.
FEW_BLOCKS = {18: (1, 2, 1, 1), 50: (1, 2, 1, 1)}
NAMES = [f"resnet{depth}{ending}" for ending in ("", "d") for depth in BLOCKS]
# ResNet-D differs in the stem and the shortcuts, which have two kinds of blocks.
BUILT = [f"resnet{depth}" for depth in BLOCKS] + ["resnet18d", "resnet50d"]


def depth_of(name: str) -> int:
    return int(name.removeprefix("resnet").removesuffix("d"))


def build_narrow(
    name: str, num_classes: int = 7, image_size: int = 32, blocks=FEW_BLOCKS, **given
) -> keras.Model:
    """Returns a network with a quarter of the channels in all stages, and few blocks.

    They are connected as those of the real one, whose number and channels `variables`
    tells.
    """
    depths = {depth: (blocks[depth], depth >= 50) for depth in blocks}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "STAGE_FILTERS", (16, 32, 64, 128))
        patch.setattr(resnet, "DEPTHS", depths)
        return models.build(name, num_classes, image_size, **given)


@functools.cache
def narrow_resnet18() -> keras.Model:
    """Returns a network that is shared, and not to be changed."""
    return build_narrow("resnet18")


def starts_with(variable: keras.Variable, number: float) -> bool:
    return bool(np.all(variable.value == number))


@functools.cache
def variables(name: str) -> tuple[tuple[str, int, bool], ...]:
    """Path, size and trainable, of each variable of a 1000-class network."""
    return tuple(
        (one.path, int(np.prod(one.shape)), one.trainable)
        for one in without_values(name).variables
    )


@pytest.mark.parametrize(
    ("name", "convolutions", "trainable", "norm", "total", "decayed"),
    [
        # Worked out from the papers' tables of layers, apart from this code.
        ("resnet18", 21, 11_693_736, 9_728, 11_703_464, 11_684_008),
        ("resnet34", 37, 21_801_896, 17_152, 21_819_048, 21_784_744),
        ("resnet50", 53, 25_557_032, 53_120, 25_610_152, 25_503_912),
        ("resnet101", 104, 44_549_160, 105_344, 44_654_504, 44_443_816),
        ("resnet152", 155, 60_192_808, 151_424, 60_344_232, 60_041_384),
        ("resnet200", 203, 64_673_832, 176_000, 64_849_832, 64_497_832),
        # ResNet-D: for 7 * 7 * 3 * 64 = 9,408 weights of the stem it has
        # 9 * (3 * 32 + 32 * 32 + 32 * 64) = 28,512, and two normalizations of 32 more,
        # each of scale and shift: 128 numbers, and as many averages.
        ("resnet18d", 23, 11_712_968, 9_856, 11_722_824, 11_703_112),
        ("resnet50d", 55, 25_576_264, 53_248, 25_629_512, 25_523_016),
    ],
)
def test_each_network_has_the_known_number_of_parameters(
    name, convolutions, trainable, norm, total, decayed
):
    found = variables(name)

    def count(is_counted) -> int:
        return sum(size for path, size, *_ in found if is_counted(path))

    assert (
        sum(path.endswith("/kernel") and "classifier" not in path for path, *_ in found)
        == convolutions
    )
    assert sum(size for _, size, is_trainable in found if is_trainable) == trainable
    assert count(lambda path: path.endswith(("/gamma", "/beta"))) == norm
    assert count(lambda path: "/moving_" in path) == norm
    assert count(lambda path: True) == total


@pytest.mark.parametrize("name", BUILT)
def test_only_the_last_normalization_of_each_block_starts_at_zero(name):
    depth = depth_of(name)
    last = 2 if depth < 50 else 3
    blocks = [
        f"stage{stage}_block{block}"
        for stage, num_blocks in enumerate(BLOCKS[depth], start=1)
        for block in range(1, num_blocks + 1)
    ]
    gammas = [
        one for one in without_values(name).variables if one.path.endswith("/gamma")
    ]
    zeros = [one.path for one in gammas if starts_with(one, 0)]
    assert sorted(zeros) == sorted(f"{one}_{last}/gamma" for one in blocks)
    assert all(starts_with(one, 1) for one in gammas if one.path not in zeros)


@pytest.mark.parametrize("zero_last_gamma", [True, False])
def test_every_normalization_has_the_gamma_that_it_was_described_with(zero_last_gamma):
    described = without_values("resnet18", zero_last_gamma=zero_last_gamma)
    model = build_narrow("resnet18", blocks=BLOCKS, zero_last_gamma=zero_last_gamma)
    for one, other in zip(model.variables, described.variables, strict=True):
        if one.path.endswith("/gamma"):
            assert np.all(one == other.value[0]), one.path


@pytest.mark.parametrize("name", ["resnet18", "resnet50d"])
def test_without_zero_last_gamma_every_normalization_starts_at_one(name):
    for one in without_values(name, zero_last_gamma=False).variables:
        if one.path.endswith("/gamma"):
            assert starts_with(one, 1), one.path


@pytest.mark.parametrize("name", BUILT)
def test_the_first_block_of_every_stage_has_a_projection_and_no_other(name):
    shortcuts = [path for path, *_ in variables(name) if "shortcut/kernel" in path]
    assert sorted(shortcuts) == [
        f"stage{stage}_block1_shortcut/kernel" for stage in (1, 2, 3, 4)
    ]


def test_resnet50_of_ten_classes_has_the_known_number_of_parameters():
    model = without_values("resnet50", num_classes=10)
    sizes = [int(np.prod(one.shape)) for one in model.trainable_variables]
    assert sum(sizes) == 23_528_522


def test_names_of_variables_differ():
    names = [path for path, *_ in variables("resnet200")]
    assert len(set(names)) == len(names)


def test_the_stride_of_a_bottleneck_is_in_its_3x3():
    model = build_narrow("resnet50", image_size=64)
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
        (64, 32),
        (32, 32),
        (32, 128),
    ]


def reference(
    values: dict[str, tf.Tensor],
    name: str,
    images: tf.Tensor,
    training: bool,
    blocks: dict[int, tuple[int, ...]] = FEW_BLOCKS,
) -> tf.Tensor:
    """The network of the paper, as plain operations in float64."""
    depth, is_resnet_d = depth_of(name), name.endswith("d")

    def conv(x, name, stride):
        kernel = values[f"{name}/kernel"]
        before = (kernel.shape[0] - 1) // 2
        padding = [before, kernel.shape[0] - 1 - before]
        x = tf.nn.conv2d(x, kernel, stride, [[0, 0], padding, padding, [0, 0]])
        return normalize(x, values, name, training)

    def shortcut(x, name, stride):
        if is_resnet_d and stride == 2:
            batch, height, width, channels = x.shape  # Even sides.
            windows = [batch, height // 2, 2, width // 2, 2, channels]
            x, stride = tf.reduce_mean(tf.reshape(x, windows), [2, 4]), 1
        return conv(x, f"{name}_shortcut", stride)

    x = tf.cast(images, tf.float64)
    stem = (
        [("stem_1", 2), ("stem_2", 1), ("stem_3", 1)] if is_resnet_d else [("stem", 2)]
    )
    for part, stride in stem:
        x = tf.nn.relu(conv(x, part, stride))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, num_blocks in enumerate(blocks[depth], start=1):
        for block in range(1, num_blocks + 1):
            block_name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            residual = shortcut(x, block_name, stride) if block == 1 else x
            strides = (stride, 1) if depth < 50 else (1, stride, 1)
            for part, part_stride in enumerate(strides, start=1):
                x = conv(x, f"{block_name}_{part}", part_stride)
                x = tf.nn.relu(x + residual if part == len(strides) else x)
    x = tf.reduce_mean(x, [1, 2])
    return tf.matmul(x, values["classifier/kernel"]) + values["classifier/bias"]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet18d", "resnet50d"])
def test_the_network_is_that_of_the_paper(name):
    is_whole = name == "resnet18"
    model = (models.build if is_whole else build_narrow)(name, 7, 32)
    change_start_values(model)
    images, blocks = random_images(2, 32), BLOCKS if is_whole else FEW_BLOCKS
    expected = reference(values_of(model), name, images, False, blocks)
    ours = model(images, training=False)
    assert ours.dtype == tf.float32
    # About 5e-7: 50 layers of float32 sums.
    assert relative_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("name", ["resnet18d", "resnet50d"])
def test_training_has_the_gradients_of_the_paper(name):
    model = build_narrow(name, image_size=64)
    change_start_values(model)
    images = random_images(4, 64)
    found, expected = gradients_of_both(
        model, lambda values: reference(values, name, images, training=True), images
    )
    for path, gradient in found.items():
        # About 0.03 at most, of places that float32 puts on the other side of a ReLU's
        # kink; a part that is left out or counted twice is far more.
        assert relative_difference(gradient, expected[path]) < 0.1, path


def test_the_operations_of_resnet50d_are_those_of_the_paper():
    model = without_values("resnet50d")
    # ResNet-50's multiplications and additions, but for another stem at 112 x 112
    # places: 28,512 weights rather than 9,408. The paper says 4.3 G.
    multiply_adds = 4_089_184_256 + 112**2 * (28_512 - 9_408)
    assert multiply_adds == 4_328_824_832
    assert flops.count_forward_pass(model) == 2 * multiply_adds
    # Nobody needs the gradient of the images: of the first 3 * 3 * 3 * 32 weights.
    first = 112**2 * 864
    assert flops.count_training_step(model) == 2 * (3 * multiply_adds - first)


@pytest.mark.parametrize("name", ["resnet18", "resnet18d"])
def test_bfloat16_keeps_float32_variables_and_comes_near_float32(name):
    exact = build_narrow(name, seed=3)
    short = build_narrow(name, compute_dtype="bfloat16", seed=3)
    for one, other in zip(exact.variables, short.variables, strict=True):
        assert other.dtype == "float32"
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    images = random_images(4, 32)
    expected = exact(images, training=True)
    ours = short(images, training=True)
    assert ours.dtype == tf.float32
    inner = keras.Model(short.input, short.get_layer("stage4_block1_2").output)
    assert inner(images).dtype == tf.bfloat16
    # Each of some 20 layers rounds to 8 bits, by up to 0.2 %.
    assert 0 < relative_difference(ours, expected) < 0.05


def test_the_same_seed_gives_the_same_weights():
    first, second = (build_narrow("resnet18", seed=11) for _ in range(2))
    for one, other in zip(first.variables, second.variables, strict=True):
        assert one.path == other.path
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def kernels(model: keras.Model) -> list[np.ndarray]:
    return [one.numpy() for one in model.variables if one.path.endswith("/kernel")]


@pytest.mark.parametrize("other_seed", [1, 2**29])
def test_another_seed_gives_other_weights(other_seed):
    first = narrow_resnet18()  # Of seed 0.
    second = build_narrow("resnet18", seed=other_seed)
    for one, other in zip(kernels(first), kernels(second), strict=True):
        assert not np.array_equal(one, other)


def test_no_two_layers_start_with_the_same_numbers():
    starts = [
        kernel.ravel()[:3] / kernel.std() for kernel in kernels(narrow_resnet18())
    ]
    for one, other in itertools.combinations(starts, 2):
        assert not np.allclose(one, other, rtol=1e-3)


def test_the_largest_seed_that_the_settings_allow_can_be_used():
    build_narrow("resnet18", seed=2**63 - 1)


def test_an_unknown_network_is_refused_with_the_known_ones():
    expected = r"resnet18, .*, resnet200, resnet18d, .*, resnet200d, .*; got 'resnet19'"
    with pytest.raises(UserError, match=expected):
        models.build("resnet19")


def test_the_names_have_the_depths_of_the_builder():
    assert resnet.DEPTHS == names.RESNET_BLOCKS


def test_the_names_are_those_of_the_networks():
    assert list(names.MODELS) == [
        *("resnet8", "resnet20", "resnet9", "airbench94", "alexnet", "alexnet_bn"),
        *("inception_bn_28", "mlp"),
        *NAMES,
        "inception_bn",
    ]


def test_the_sizes_of_images_are_those_that_the_networks_are_for():
    expected = {"inception_bn_28": 28, "mlp": 28, "alexnet": 32, "resnet20": 32}
    expected.update(resnet50=224, inception_bn=224)
    assert {name: names.MODELS[name].image_size for name in expected} == expected


@pytest.mark.parametrize("name", names.MODELS)
def test_the_smallest_images_leave_something_of_every_network(name):
    model = without_values(name, image_size=SMALLEST_IMAGE)
    assert model.output_shape == (None, 1000)
    for layer in model.layers:
        for output in keras.tree.flatten(layer.output):
            assert 0 not in output.shape


def test_the_options_of_batch_normalization_reach_every_layer():
    given = {"batch_norm_epsilon": 0.25, "fixed_gamma": True, "zero_last_gamma": False}
    for name in ("resnet8", "resnet18d", "resnet50", "resnet9", "alexnet_bn"):
        model = without_values(name, **given)
        norms = [one for one in model.layers if isinstance(one, layers.ConvNorm)]
        assert {one.epsilon for one in norms} == {0.25}
        assert all(one.fixed_gamma for one in norms)


def test_the_epsilon_of_the_settings_is_that_of_the_layers():
    assert TrainingSettings.batch_norm_epsilon == normalization.EPSILON
