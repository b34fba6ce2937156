import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet import models
from resnet.models import flops, inception, layers
from resnet.models.layers import conv_norm
from tests.unit.described_model import without_values
from tests.unit.reference_network import (
    Values,
    change_start_values,
    gradients_of_both,
    normalize,
    random_images,
    relative_difference,
    values_of,
)

# Filters of the source: of the 1x1 and the 3x3 convolution; None for a max pool.
SMALL = {
    "3a": (32, 32),
    "3b": (32, 48),
    "3c": (None, 80),
    "4a": (112, 48),
    "4b": (96, 64),
    "4c": (80, 80),
    "4d": (48, 96),
    "4e": (None, 96),
    "5a": (176, 160),
    "5b": (176, 160),
}
NARROW = (
    inception.Module("3a", 8, (6, 8), (6, 10), "avg", 4),
    inception.Module("3b", 0, (8, 12), (8, 6), "max", 0),
    inception.Module("3c", 8, (6, 8), (6, 10), "max", 7),
)
EPSILON = 1e-3  # Other than the default.


@functools.cache
def build(name: str, **given) -> keras.Model:
    """A network whose biases and normalizations have values that no wiring survives.

    It is shared: its moving averages move when it is called in training.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "MODULES", NARROW)
        model = models.build(name, 10, 28, seed=1, batch_norm_epsilon=EPSILON, **given)
    return change_start_values(model)


def build_small(name: str, **given) -> keras.Model:
    """A network of its own with one module of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "SMALL_MODULES", inception.SMALL_MODULES[1:3])
        return build.__wrapped__(name, **given)


class Reference:
    """The networks as plain operations in float64."""

    def __init__(self, values: dict[str, tf.Tensor], training: bool) -> None:
        self.values = values
        self.training = training

    def conv(self, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        kernel = self.values[f"{name}/kernel"]
        pad = [kernel.shape[0] // 2] * 2
        x = tf.nn.conv2d(x, kernel, stride, [[0, 0], pad, pad, [0, 0]])
        x = x + self.values[f"{name}/bias"]
        return tf.nn.relu(normalize(x, self.values, name, self.training, EPSILON))

    def classifier(self, x: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(tf.reduce_mean(x, [1, 2]), self.values["classifier/kernel"])
        return logits + self.values["classifier/bias"]

    def inception_bn_28(self, x: tf.Tensor) -> tf.Tensor:
        x = self.conv(x, "stem")
        for name, (filters_1x1, _) in SMALL.items():
            if filters_1x1 is None:
                first = self.conv(x, f"{name}_3x3", 2)
                second = max_pool(x, 2)
            else:
                first = self.conv(x, f"{name}_1x1")
                second = self.conv(x, f"{name}_3x3")
            x = tf.concat([first, second], -1)
        return self.classifier(x)

    def inception_bn(self, x: tf.Tensor) -> tf.Tensor:
        x = max_pool(self.conv(x, "stem_1", 2), 2)
        x = max_pool(self.conv(self.conv(x, "stem_2"), "stem_3"), 2)
        for name, has_1x1, pool, has_projection in (
            ("3a", True, "avg", True),
            ("3b", False, "max", False),
            ("3c", True, "max", True),
        ):
            stride = 1 if has_projection else 2
            double = self.conv(x, f"{name}_double_reduce")
            double = self.conv(double, f"{name}_double_1")
            pooled = average_pool(x) if pool == "avg" else max_pool(x, stride)
            if has_projection:
                pooled = self.conv(pooled, f"{name}_projection")
            branches = [self.conv(x, f"{name}_1x1")] if has_1x1 else []
            reduced = self.conv(x, f"{name}_3x3_reduce")
            branches += [
                self.conv(reduced, f"{name}_3x3", stride),
                self.conv(double, f"{name}_double_2", stride),
                pooled,
            ]
            x = tf.concat(branches, -1)
        return self.classifier(x)


def max_pool(x: tf.Tensor, stride: int) -> tf.Tensor:
    """Windows of 3x3; those of stride 2 begin at the first place, as in the source."""
    before, after = (1, 1) if stride == 1 else (0, 1 - x.shape[1] % 2)
    if stride == 2 and x.shape[1] % 2:
        before = after = 1
    edges = [[0, 0], [before, after], [before, after], [0, 0]]
    return tf.nn.max_pool2d(tf.pad(x, edges, constant_values=-1e9), 3, stride, "VALID")


def average_pool(x: tf.Tensor) -> tf.Tensor:
    """Windows of 3x3, in which padding counts."""
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    height, width = x.shape[1] - 2, x.shape[2] - 2
    windows = [
        x[:, top : top + height, left : left + width]
        for top in range(3)
        for left in range(3)
    ]
    return tf.add_n(windows) / 9


def sizes(model: keras.Model) -> dict[str, int]:
    return {one.path: int(np.prod(one.shape)) for one in model.trainable_variables}


def test_the_small_network_has_the_variables_of_the_source():
    model = without_values("inception_bn_28", 10, 28)
    expected, channels = {"classifier/kernel": (336, 10), "classifier/bias": (10,)}, 96
    expected["stem/kernel"] = (3, 3, 3, 96)
    for name, (filters_1x1, filters_3x3) in SMALL.items():
        expected[f"{name}_3x3/kernel"] = (3, 3, channels, filters_3x3)
        if filters_1x1:
            expected[f"{name}_1x1/kernel"] = (1, 1, channels, filters_1x1)
        channels = filters_3x3 + (filters_1x1 or channels)
    for path, shape in list(expected.items()):
        if not path.startswith("classifier"):
            for name in ("bias", "gamma", "beta"):
                expected[path.replace("kernel", name)] = shape[-1:]
    found = {one.path: tuple(one.shape) for one in model.trainable_variables}
    assert found == expected


@pytest.mark.parametrize(
    ("name", "num_classes", "image_size", "filters", "total"),
    [
        ("inception_bn_28", 10, 28, 1_712, 1_652_826),
        ("inception_bn", 1000, 224, 10_016, 11_295_240),
    ],
)
def test_the_networks_have_the_number_of_parameters_of_the_source(
    name, num_classes, image_size, filters, total
):
    found = sizes(without_values(name, num_classes, image_size))
    assert sum(found.values()) == total
    for part in ("bias", "gamma", "beta"):
        of_part = {
            path: size for path, size in found.items() if path.endswith(f"/{part}")
        }
        of_part.pop("classifier/bias", None)
        assert sum(of_part.values()) == filters
    given = {"num_classes": num_classes, "image_size": image_size, "fixed_gamma": True}
    without_gamma = sizes(without_values(name, **given))
    assert sum(without_gamma.values()) == total - filters


def test_the_feature_maps_have_the_sizes_of_the_source():
    small = without_values("inception_bn_28", 10, 28)
    large = without_values("inception_bn", 1000, 224)
    for model, expected in (
        (small, {"3b": (28, 80), "3c": (14, 160), "4e": (7, 240), "5b": (7, 336)}),
        (large, {"3a": (28, 256), "3c": (14, 576), "4e": (7, 1056), "5b": (7, 1024)}),
    ):
        for name, (side, channels) in expected.items():
            output, *_ = keras.tree.flatten(model.get_layer(name).output)
            assert output.shape == (None, side, side, channels)
    assert small.output_shape == (None, 10)
    assert large.output_shape == (None, 1000)


def test_the_operations_are_those_of_the_layers():
    channels, total = 96, 28**2 * 9 * 3 * 96 + 336 * 10
    for name, (filters_1x1, filters_3x3) in SMALL.items():
        side = {"3": 28, "4": 14, "5": 7}[name[0]] // (1 if filters_1x1 else 2)
        total += side**2 * channels * (9 * filters_3x3 + (filters_1x1 or 0))
        channels = filters_3x3 + (filters_1x1 or channels)
    model = without_values("inception_bn_28", 10, 28)
    assert flops.count_forward_pass(model) == 2 * total


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_the_network_is_that_of_the_source(name, training):
    images = random_images(side=28 if name == "inception_bn_28" else 64)
    model = build(name)
    expected = getattr(Reference(values_of(model), training), name)(
        tf.cast(images, tf.float64)
    )
    ours = model(images, training=training)
    assert ours.dtype == tf.float32
    # Eleven layers of float32 sums.
    assert relative_difference(ours, expected) < 1e-5


@pytest.mark.parametrize("fixed_gamma", [False, True])
@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_the_gradients_are_those_of_the_source(name, fixed_gamma):
    model = build(name, fixed_gamma=fixed_gamma)
    images = random_images(side=28 if name == "inception_bn_28" else 64)

    def logits(values: Values) -> tf.Tensor:
        return getattr(Reference(values, True), name)(tf.cast(images, tf.float64))

    found, expected = gradients_of_both(model, logits, images)
    for path, gradient in found.items():
        if path.endswith("/bias") and path != "classifier/bias":
            # Exactly 0 here; in the source, but for rounding.
            assert not np.any(gradient)
            assert np.abs(expected[path]).max() < 1e-12
        else:
            # As in the test of ResNet-9.
            assert relative_difference(gradient, expected[path]) < 1e-2, path


def test_stock_ops_compute_the_same(monkeypatch):
    images = random_images(side=28)
    compiled = build("inception_bn_28")(images, training=True)
    for lookup in ("fast_ops", "convolutions"):
        monkeypatch.setattr(f"resnet.native.{lookup}", lambda dtype: None)
    stock = build("inception_bn_28")(images, training=True)
    assert relative_difference(compiled, stock) < 1e-5


@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_a_graph_of_stock_ops_infers_as_eager_calls_do(name, monkeypatch):
    # As for the shortcuts of CIFAR ResNets, whose padding crashed some graphs.
    monkeypatch.setattr("resnet.native.convolutions", lambda dtype: None)
    model, images = build_small(name), random_images(2, 28)
    expected = model(images, training=False)
    for _ in range(3):
        infer = tf.function(lambda x: model(x, training=False), autograph=False)
        np.testing.assert_allclose(infer(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_in_bfloat16_the_logits_come_near_those_in_float32(name):
    exact, short = build_small(name), build_small(name, compute_dtype="bfloat16")
    images = random_images(8, 64)
    for training in (False, True):
        ours = short(images, training=training)
        assert ours.dtype == tf.float32
        # Each layer rounds to 8 bits, by up to 0.4 %.
        expected = exact(images, training=training)
        assert 0 < relative_difference(ours, expected) < 0.05
    assert {one.dtype for one in short.variables} == {"float32"}


@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_the_networks_take_images_of_any_size(name):
    for side in (28, 33, 50):
        images = random_images(2, side)
        for training in (False, True):
            assert build(name)(images, training=training).shape == (2, 10)


def test_the_moving_averages_of_a_projected_pool_are_those_of_the_pool():
    layer = layers.ProjectedPool(3, 1, 1, 0.9, 0, "one", use_bias=True)
    images = random_images(2, 6)
    layer.build(images.shape)
    layer.bias.assign([0.0, 1.0, 2.0])
    layer(images, training=True)
    x = tf.nn.conv2d(average_pool(images), layer.kernel.value, 1, "SAME")
    mean, variance = tf.nn.moments(x + layer.bias.value, [0, 1, 2])
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        layer.moving_variance, 0.9 + 0.1 * variance * 72 / 71, rtol=1e-5
    )


def test_the_average_pool_and_its_gradient_count_the_padding():
    images = random_images(2, 5)
    weights = random_images(4, 5)[2:]
    found = []
    for pool in (conv_norm.average_pool, average_pool):
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = pool(images)
            loss = tf.reduce_sum(y * weights)
        found.append([y, tape.gradient(loss, images)])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_a_projected_pool_is_a_convolution_of_the_pool(training, relu):
    arguments = (4, 1, 1, 0.9, 3, "projection")
    options = {"relu": relu, "use_bias": True, "num_copies": 2}
    projected = layers.ProjectedPool(*arguments, **options)
    plain = layers.ConvNorm(*arguments, **options)
    images, residual = random_images(2, 6), random_images(2, 6)[..., :1]
    for layer in (projected, plain):
        layer.build(images.shape)
        layer.beta.assign([0.1, -0.2, 0.3, 0.0])
        layer.bias.assign([1.0, 2.0, 3.0, 4.0])
        layer.moving_mean.assign([0.1, 0.2, -0.3, 0.0])
    residual = tf.tile(residual, [1, 1, 1, 4])
    ours = projected(images, residual, training=training)
    expected = plain(average_pool(images), residual, training=training)
    assert len(ours) == len(expected) == 2
    np.testing.assert_allclose(ours[1], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [0.01, 0.07])
def test_the_weights_of_the_source_are_uniform_in_all_layers(limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "SMALL_MODULES", inception.SMALL_MODULES[1:3])
        name = "inception_bn_28"
        model = models.build(name, 10, 28, initialization=f"uniform_{limit}")
    for one in model.variables:
        values, name = one.numpy(), one.path.rpartition("/")[2]
        if name == "kernel":
            assert 0.99 * limit < np.abs(values).max() <= limit, one.path
            assert values.std() == pytest.approx(limit / 3**0.5, rel=0.05)
        else:
            expected = 1 if name in ("gamma", "moving_variance") else 0
            assert np.all(values == expected), one.path


@pytest.mark.parametrize("name", ["inception_bn_28", "inception_bn"])
def test_the_seed_decides_the_weights(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "MODULES", NARROW)
        patch.setattr(inception, "SMALL_MODULES", inception.SMALL_MODULES[1:3])
        first, same, other = (
            models.build(name, 10, 28, seed=seed) for seed in (1, 1, 2)
        )
    for one, two, three in zip(
        first.variables, same.variables, other.variables, strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
        if one.path.endswith("/kernel"):
            assert not np.array_equal(one.numpy(), three.numpy())
