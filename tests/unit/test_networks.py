"""The networks against their twins in float64 and the figures of their papers."""

import functools
import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from eval.benchmarking.throughput import count_forward_pass, count_training_step
from resnet import models, native
from resnet.base.errors import UserError
from resnet.config import networks as rows
from resnet.config.networks import MODELS
from resnet.config.phases import SMALLEST_IMAGE
from resnet.config.recipe import TrainingSettings
from resnet.models import layers
from resnet.models.layers import PooledConvNorm, normalization, whitening
from tests.reference import networks
from tests.reference.networks import (
    Reference,
    Values,
    change_start_values,
    gradients_of_both,
    random_images,
    relative_difference,
    values_of,
)
from tests.unit.described_model import without_values
from tests.unit.narrow_networks import (
    BLOCKS,
    INCEPTION_MODULES,
    NARROW,
    SMALL_INCEPTION_MODULES,
    WHOLE,
    having,
)

CLASSES = 7
EPSILON = 1e-3  # Other than the default.
PARTS = {"activation": "mish", "se_ratio": 0.0625, "blur_pool": "all"}
# Networks and their options.
CASES = {
    "resnet18": {},
    "resnet50": {},
    "resnet18d": {},
    "resnet18 mish": {"activation": "mish"},
    "resnet50 silu": {"activation": "silu", "blur_pool": "convolutions"},
    "resnet50 gated": {"se_ratio": 0.25, "blur_pool": "all"},
    "resnet50d all": PARTS,
    "resnet8": {},
    "resnet20": {},
    "resnet9": {},
    "airbench94": {"fixed_gamma": True, "zero_last_gamma": False},
    "airbench96": {"fixed_gamma": True, "zero_last_gamma": False},
    "alexnet": {},
    "alexnet_bn": {},
    "mlp": {},
    "inception_bn_28": {},
    "inception_bn": {},
    "inception_bn fixed": {"fixed_gamma": True},
}
ONE_OF_EACH_FAMILY = [case for case in CASES if case in MODELS]


def side_of(case: str) -> int:
    """Returns the side of small images for a network."""
    return min(MODELS[case.split()[0]].image_size, 64)


@pytest.fixture(autouse=True, scope="module")
def narrow():
    """Leaves few blocks and channels, connected as those of the real networks.

    The blocks and channels of these are those that variables and sizes tell.
    """
    with having(NARROW):
        yield


@pytest.fixture
def whole():
    """Has the networks be whole."""
    with having(WHOLE):
        yield


def build(case: str, **options) -> keras.Model:
    return models.build(
        case.split()[0],
        CLASSES,
        side_of(case),
        **{"seed": 1, "batch_norm_epsilon": EPSILON, **CASES[case], **options},
    )


@functools.cache
def changed(case: str, **options) -> keras.Model:
    """A shared network, whose moving averages move when it is called in training."""
    model = build(case, **options)
    for layer in whitening.layers_of(model):
        whitening.whiten(layer, [random_images().numpy()])
    return change_start_values(model)


def reference(case: str, values: Values, images: tf.Tensor, training: bool):
    """Returns the logits of a network's twin."""
    name, x = case.split()[0], tf.cast(images, tf.float64)
    twin = Reference(values, training, EPSILON)
    if MODELS[name].has_parts:
        return networks.resnet(twin, x, name, BLOCKS, **CASES[case])
    if name == "inception_bn":
        modules = [(m.name, m.pool, bool(m.projection)) for m in INCEPTION_MODULES]
        return networks.inception(twin, x, modules)
    if name == "inception_bn_28":
        modules = [
            (name, bool(filters)) for name, filters, _ in SMALL_INCEPTION_MODULES
        ]
        return networks.small_inception(twin, x, modules)
    if MODELS[name].depth:
        return networks.cifar_resnet(twin, x, (MODELS[name].depth - 2) // 6)
    if name.startswith("alexnet"):
        return networks.alexnet(twin, x, name == "alexnet_bn")
    if name.startswith("airbench"):
        return networks.airbench(twin, x, 3 if name == "airbench96" else 2)
    return {"resnet9": networks.resnet9, "mlp": networks.mlp}[name](twin, x)


HAS_DROPOUT = {"alexnet"}


@pytest.mark.parametrize("case", CASES)
def test_the_network_and_its_gradients_are_those_of_its_twin(case):
    model, images = changed(case), random_images(4, side_of(case))
    for training in (False, True)[: 1 + (case not in HAS_DROPOUT)]:
        expected = reference(case, values_of(model), images, training)
        ours = model(images, training=training)
        assert ours.dtype == tf.float32
        # Up to 20 layers of float32 sums.
        assert relative_difference(ours, expected) < 1e-5
    before = [variable.numpy() for variable in model.variables]
    change_start_values(model, is_far_from_zero=True)
    found, expected = gradients_of_both(
        model,
        lambda values: reference(case, values, images, training),
        images,
        training,
    )
    # A shift in front of another normalization has no gradient but for rounding.
    rounding = 1e-5 * max(np.linalg.norm(expected[path]) for path in found)
    for path, gradient in found.items():
        difference = np.linalg.norm(np.asarray(gradient) - expected[path])
        # The largest is of another maximum of two nearly equal values in a pool.
        limit = 1e-2 * np.linalg.norm(expected[path]) + rounding
        assert difference < limit, path
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)  # Other tests have this network, too.


@pytest.mark.parametrize("case", ["resnet50d all", "resnet8", "inception_bn"])
def test_stock_ops_compute_the_same(case):
    images = random_images(4, side_of(case))
    for training in (False, True):
        expected = changed(case)(images, training=training)
        with native.disabled():
            ours = changed(case)(images, training=training)
        assert relative_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("case", ["resnet8", "inception_bn_28"])
def test_a_graph_of_stock_ops_infers_as_eager_calls_do(case, monkeypatch):
    # TensorFlow 2.21 crashes in one of about three graphs with Pad in a shortcut.
    monkeypatch.setattr(native, "fast_ops", lambda dtype: None)
    model, images = changed(case), random_images(2, side_of(case))
    expected = model(images, training=False)
    for _ in range(4 if case == "resnet8" else 2):
        infer = tf.function(lambda x: model(x, training=False), autograph=False)
        np.testing.assert_allclose(infer(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [*ONE_OF_EACH_FAMILY, "resnet18 mish"])
def test_in_bfloat16_the_logits_come_near_those_in_float32(case):
    exact, short = changed(case), changed(case, compute_dtype="bfloat16")
    images = random_images(8, side_of(case))
    for training in (False, True):
        if training and case in HAS_DROPOUT:
            continue
        ours = short(images, training=training)
        assert ours.dtype == tf.float32
        # Each of up to 20 layers rounds to 8 bits, by up to 0.4 %.
        expected = exact(images, training=training)
        assert 0 < relative_difference(ours, expected) < 0.1
    last = short.layers[-1]
    if isinstance(last, layers.Cast):
        last = short.layers[-2]
    inner = keras.Model(short.input, keras.tree.flatten(last.input)[0])
    assert inner(images).dtype == tf.bfloat16
    assert {one.dtype for one in short.variables} == {"float32"}


@pytest.mark.parametrize("case", ["resnet8", "inception_bn_28", "airbench94", "mlp"])
def test_the_seed_decides_the_weights(case):
    models = [build(case, seed=seed) for seed in (11, 11, 2**63 - 1)]
    starts = []
    for first, same, other in zip(*(model.variables for model in models), strict=True):
        assert first.path == same.path
        np.testing.assert_array_equal(first.numpy(), same.numpy())
        if first.path.endswith("/kernel") and first.trainable:
            assert not np.array_equal(first.numpy(), other.numpy())
            starts.append(first.numpy().ravel()[:3] / first.numpy().std())
    for start, other in itertools.combinations(starts, 2):  # No two layers are alike.
        assert not np.allclose(start, other, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("whole")
def test_the_smallest_images_leave_something_of_every_network(name):
    model = without_values(name, image_size=SMALLEST_IMAGE)
    assert model.output_shape == (None, 1000)
    for layer in model.layers:
        for output in keras.tree.flatten(layer.output):
            assert 0 not in output.shape


@functools.cache
def described(name: str, num_classes: int = 1000, side: int = 0) -> keras.Model:
    return without_values(name, num_classes, side or MODELS[name].image_size)


def trained_sizes(name: str, num_classes: int = 1000) -> dict[str, int]:
    trained = described(name, num_classes).trainable_variables
    return {one.path: math.prod(one.shape) for one in trained}


@pytest.mark.parametrize(
    ("name", "num_classes", "num_kernels", "total", "norm"),
    [
        # Worked out from the papers' tables of layers, apart from this code.
        ("resnet18", 1000, 22, 11_693_736, 9_728),
        ("resnet50", 1000, 54, 25_557_032, 53_120),
        ("resnet152", 1000, 156, 60_192_808, 151_424),
        ("resnet200", 1000, 204, 64_673_832, 176_000),
        ("resnet50d", 1000, 56, 25_576_264, 53_248),
        # Kernels 9 * (3 * 16 + 2 * 16**2 + (16 + 32) * 32 + (32 + 64) * 64) = 74,160;
        # 2 * (16 * 3 + 32 * 2 + 64 * 2) = 480 in normalizations; classifier 650.
        ("resnet8", 10, 8, 75_290, 480),
        ("resnet20", 10, 20, 269_722, 1_376),  # The paper's table 6: 0.27 M.
        # 9 * (3 * 64 + 64 * 128 + 2 * 128**2 + 128 * 256 + 256 * 512 + 2 * 512**2)
        # + 2 * (64 + 3 * 128 + 256 + 3 * 512) + 512 * 10.
        ("resnet9", 10, 9, 6_573_120, 4_480),
        # 24 + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 2 * 64 + 4 * 256
        # + 2560, without the constant first kernel.
        ("airbench94", 10, 7, 1_971_352, 1_152),
        # 24 + 9 * (24 * 128 + 2 * 128**2 + 128 * 384 + 2 * 384**2 + 384 * 512
        # + 2 * 512**2) + 3 * (128 + 384 + 512) + 5120.
        ("airbench96", 10, 10, 9_915_416, 3_072),
        ("inception_bn_28", 10, 20, 1_652_826, 3_424),
        ("inception_bn", 1000, 70, 11_295_240, 20_032),
    ],
)
@pytest.mark.usefixtures("whole")
def test_each_network_has_the_known_number_of_parameters(
    name, num_classes, num_kernels, total, norm
):
    sizes = trained_sizes(name, num_classes)
    assert sum(path.endswith("/kernel") for path in sizes) == num_kernels
    assert sum(sizes.values()) == total == rows.num_parameters(name, num_classes)
    of_norms = [
        size for path, size in sizes.items() if path.endswith(("/gamma", "/beta"))
    ]
    assert sum(of_norms) == norm
    averages = described(name, num_classes).non_trainable_variables
    assert len({*sizes, *(one.path for one in averages)}) == len(sizes) + len(averages)


def count_outputs(model: keras.Model) -> int:
    """Returns the number of values that convolutions and dense layers put out."""
    count = 0
    for layer in model.layers:
        for weight in layer.weights:
            if len(weight.shape) == 4:
                output, *_ = keras.tree.flatten(layer.output)
                if isinstance(layer, PooledConvNorm):  # Of stride 1: before the pool.
                    output = layer.input
                count += math.prod(output.shape[1:3]) * weight.shape[-1]
            elif len(weight.shape) == 2:
                count += weight.shape[-1]
    return count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("whole")
def test_the_table_has_the_size_of_the_network(name):
    row, sizes = MODELS[name], trained_sizes(name, 10)
    assert rows.num_parameters(name, 10) == sum(sizes.values())
    of_last = [size for path, size in sizes.items() if path.startswith("classifier")]
    assert 10 * row.num_class_parameters == sum(of_last)
    assert row.has_last_bias == ("classifier/bias" in sizes)
    assert row.has_batch_norm == any(path.endswith("/beta") for path in sizes)
    model = described(name, 10)
    assert row.num_activations == count_outputs(model) - 10
    assert row.has_image_statistics == bool(whitening.layers_of(model))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.usefixtures("whole")
def test_squeeze_and_excitation_has_the_sizes_of_the_tpu_code(name):
    model = without_values(name, 10, 64, se_ratio=0.1)
    shapes = {one.path: one.shape for one in model.trainable_variables}
    expansion = 4 if name == "resnet50" else 1
    for stage, filters in enumerate((64, 128, 256, 512), start=1):
        channels = expansion * filters
        path = f"stage{stage}_block1_{3 if name == 'resnet50' else 2}_se"
        assert shapes[f"{path}_1/kernel"] == (channels, int(channels * 0.1))
        assert shapes[f"{path}_2/kernel"] == (int(channels * 0.1), channels)
    expected = sum(math.prod(shape) for shape in shapes.values())
    assert rows.num_parameters(name, 10, 0.1) == expected


@pytest.mark.usefixtures("whole")
def test_the_operations_are_those_of_the_papers():
    # Multiplications and additions: kernel weights times positions of the outputs.
    # ResNet-50's, but for another stem at 112 x 112 places: 28,512 weights rather than
    # 9,408. The paper says 4.3 G.
    resnet50d = 4_089_184_256 + 112**2 * (28_512 - 9_408)
    resnet20 = (
        32**2 * 9 * (3 * 16 + 6 * 16**2)
        + 16**2 * 9 * (16 + 5 * 32) * 32
        + 8**2 * 9 * (32 + 5 * 64) * 64
        + 64 * 10
    )
    # Outputs of 16, 8, 4, 4 and 4 pixels per side.
    convolutions = 9 * (
        256 * 3 * 64 + 64 * 64 * 192 + 16 * (192 * 384 + 384 * 256 + 256 * 256)
    )
    constant = 31 * 31 * 4 * 3 * 24  # Airbench's first layer.
    airbench = 2560 + 9 * (
        31**2 * 24 * 64
        + 15**2 * (64 * 64 + 64 * 256)
        + 7**2 * (256 * 256 + 256 * 256)
        + 3**2 * 256 * 256
    )
    for name, num_classes, expected in (
        ("resnet50d", 1000, resnet50d),
        ("resnet20", 10, resnet20),
        ("alexnet", 10, convolutions + 1024 * 4096 + 4096 * 4096 + 4096 * 10),
        ("airbench94", 10, constant + airbench),
        ("mlp", 10, 784 * 128 + 128 * 64 + 64 * 10),
    ):
        assert count_forward_pass(described(name, num_classes)) == 2 * expected
    # Nobody needs the gradient of the images: of the first 3 * 3 * 3 * 32 weights.
    step = count_training_step(described("resnet50d"))
    assert step == 2 * (3 * resnet50d - 112**2 * 864)
    step = count_training_step(described("airbench94", 10))
    assert step == 2 * (constant + 3 * airbench)
    # The source's 0.36 PFLOPs, of which 9.9 epochs of 49,152 images are 476 steps.
    assert 476 * 1024 * step == pytest.approx(0.36e15, rel=0.05)


@pytest.mark.parametrize("zero_last_gamma", [True, False])
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50d"])
@pytest.mark.usefixtures("whole")
def test_only_the_last_normalization_of_each_block_may_start_at_zero(
    name, zero_last_gamma
):
    model = without_values(name, 10, 32, zero_last_gamma=zero_last_gamma)
    last = "_3/gamma" if name == "resnet50d" else "_2/gamma"
    for one in model.variables:
        if one.path.endswith("/gamma"):
            is_last = one.path.startswith("stage") and one.path.endswith(last)
            assert np.all(one.value == 1 - (is_last and zero_last_gamma)), one.path


@pytest.mark.usefixtures("whole")
def test_the_feature_maps_have_the_sizes_of_the_sources():
    for name, expected in (
        # The stride of a bottleneck is in its 3x3.
        ("resnet50", {"stage2_block1_1": (56, 128), "stage2_block1_2": (28, 128)}),
        ("resnet50", {"stage1_block1_3": (56, 256), "stage4_block3_3": (7, 2048)}),
        ("inception_bn_28", {"3b": (28, 80), "3c": (14, 160), "4e": (7, 240)}),
        ("inception_bn", {"3a": (28, 256), "3c": (14, 576), "5b": (7, 1024)}),
    ):
        for layer, (side, channels) in expected.items():
            output, *_ = keras.tree.flatten(described(name).get_layer(layer).output)
            assert output.shape == (None, side, side, channels)


@pytest.mark.parametrize(("side", "last"), [(32, 4), (36, 5), (100, 13)])
def test_the_last_pool_of_resnet9_takes_all_that_is_left(side, last):
    model = models.build("resnet9", CLASSES, side)
    inner = keras.Model(
        model.input,
        [model.get_layer(name).output for name in ("layer3_residual_sum", "pool")],
    )
    places, pooled = inner(random_images(2, side))
    assert places.shape == (2, last, last, 512)
    np.testing.assert_array_equal(pooled, np.max(places, (1, 2), keepdims=True))


def test_the_options_of_batch_normalization_reach_every_layer():
    options = {"fixed_gamma": True, "zero_last_gamma": False}
    for name in ("resnet8", "resnet18d", "resnet50", "resnet9", "alexnet_bn"):
        model = without_values(name, batch_norm_epsilon=0.25, **options)
        norms = [one for one in model.layers if isinstance(one, layers.ConvNorm)]
        assert {(norm.options.epsilon, norm.options.fixed_gamma) for norm in norms} == {
            (0.25, True)
        }
    assert TrainingSettings.batch_norm_epsilon == normalization.EPSILON


def test_the_first_filters_of_airbench_copy_the_channels():
    model = build("airbench94", initialization="dirac")
    for layer in model.layers:
        if not isinstance(layer, layers.ConvNorm):
            continue
        kernel = layer.kernel.numpy()
        channels, filters = kernel.shape[2:]
        identity = np.zeros((3, 3, channels, channels))
        identity[1, 1] = np.eye(channels)
        np.testing.assert_array_equal(kernel[..., :channels], identity)
        if filters > channels:  # PyTorch's: even up to 1 / sqrt(inputs).
            limit = (9 * channels) ** -0.5
            assert 0.99 * limit < abs(kernel[..., channels:]).max() <= limit
    assert not np.any(model.get_layer("whitening").bias)


def test_uniform_weights_are_so_in_all_layers():
    limit = 0.07
    model = build("inception_bn_28", initialization=f"uniform_{limit}")
    for one in model.variables:
        values, name = one.numpy(), one.path.rpartition("/")[2]
        if name == "kernel":
            assert 0.99 * limit < np.abs(values).max() <= limit, one.path
            assert values.std() == pytest.approx(limit / 3**0.5, rel=0.05)
        else:
            expected = 1 if name in ("gamma", "moving_variance") else 0
            assert np.all(values == expected), one.path


def test_an_unknown_network_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"got resnet19\. Did you mean .*resnet18"):
        models.build("resnet19")
