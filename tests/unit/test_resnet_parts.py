"""ResNets with SiLU or Mish, squeeze-and-excitation and BlurPool, against references.

The reference networks are plain operations in float64.
"""

import math

import keras
import pytest
import tensorflow as tf

from resnet import models, native
from resnet.models import names, resnet
from tests.unit.described_model import without_values
from tests.unit.reference_network import (
    change_start_values,
    gradients_of_both,
    normalize,
    random_images,
    relative_difference,
    values_of,
)

BLOCKS = (2, 1, 1, 1)
FILTERS = (16, 16, 32, 32)
ACTIVATIONS = {
    "relu": tf.nn.relu,
    "silu": lambda x: x * tf.sigmoid(x),
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
}
ALL_PARTS = {"activation": "mish", "se_ratio": 0.0625, "blur_pool": "all"}
CASES = [
    ("resnet18", {"activation": "mish"}),
    ("resnet50", {"activation": "silu", "blur_pool": "convolutions"}),
    ("resnet50", {"se_ratio": 0.25, "blur_pool": "all"}),
    ("resnet18d", {"se_ratio": 0.5, "activation": "silu"}),
    ("resnet50d", ALL_PARTS),
]
IDS = [f"{name}-{'-'.join(map(str, given.values()))}" for name, given in CASES]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Leaves five narrow blocks of a network."""
    depths = {18: (BLOCKS, False), 50: (BLOCKS, True)}
    monkeypatch.setattr(resnet, "DEPTHS", depths)
    monkeypatch.setattr(resnet, "STAGE_FILTERS", FILTERS)


def built(name: str, **given) -> keras.Model:
    """Returns a network in which no variable has the value that it starts with."""
    model = models.build(name, 7, 64, seed=1, **given)
    return change_start_values(model)


def blur(x: tf.Tensor) -> tf.Tensor:
    for axis in (1, 2):
        sides = [[1, 1] if one == axis else [0, 0] for one in range(4)]
        padded = tf.pad(x, sides)
        size = x.shape[axis]
        before, here, after = (
            tf.gather(padded, range(first, first + size), axis=axis)
            for first in range(3)
        )
        x = (before + 2 * here + after) / 4
    return x


def reference(
    values: dict[str, tf.Tensor],
    name: str,
    images: tf.Tensor,
    training: bool,
    activation: str = "relu",
    se_ratio: float = 0.0,
    blur_pool: str = "none",
) -> tf.Tensor:
    """Returns the logits of a network with these parts."""
    activate, is_resnet_d = ACTIVATIONS[activation], name.endswith("d")
    is_bottleneck = "50" in name

    def conv(x, name, stride):
        if stride > 1 and x.shape[-1] >= 16 and blur_pool != "none":
            x = blur(x)
        kernel = values[f"{name}/kernel"]
        before = (kernel.shape[0] - 1) // 2
        padding = [before, kernel.shape[0] - 1 - before]
        x = tf.nn.conv2d(x, kernel, stride, [[0, 0], padding, padding, [0, 0]])
        return normalize(x, values, name, training)

    def gated(x, name):
        hidden = tf.reduce_mean(x, [1, 2])
        for part, function in (("1", tf.nn.relu), ("2", tf.sigmoid)):
            kernel = values[f"{name}_se_{part}/kernel"]
            hidden = function(hidden @ kernel + values[f"{name}_se_{part}/bias"])
        return x * hidden[:, None, None]

    def shortcut(x, name, stride):
        if is_resnet_d and stride == 2:
            x, stride = tf.nn.avg_pool2d(x, 2, 2, "VALID"), 1
        return conv(x, f"{name}_shortcut", stride)

    x = tf.cast(images, tf.float64)
    stem = (
        [("stem_1", 2), ("stem_2", 1), ("stem_3", 1)] if is_resnet_d else [("stem", 2)]
    )
    for part, stride in stem:
        x = activate(conv(x, part, stride))
    if blur_pool == "all":
        x = blur(tf.nn.max_pool2d(x, 3, 1, "SAME"))[:, ::2, ::2]
    else:
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, num_blocks in enumerate(BLOCKS, start=1):
        for block in range(1, num_blocks + 1):
            block_name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            residual = shortcut(x, block_name, stride) if block == 1 else x
            strides = (1, stride, 1) if is_bottleneck else (stride, 1)
            for part, part_stride in enumerate(strides, start=1):
                x = conv(x, f"{block_name}_{part}", part_stride)
                if part < len(strides):
                    x = activate(x)
            if se_ratio:
                x = gated(x, f"{block_name}_{len(strides)}")
            x = activate(x + residual)
    x = tf.reduce_mean(x, [1, 2])
    return tf.matmul(x, values["classifier/kernel"]) + values["classifier/bias"]


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_the_network_and_its_gradients_are_those_of_the_reference(name, given):
    assert_same(built(name, **given), name, given)


def test_the_network_of_stock_ops_is_that_of_the_reference():
    with native.disabled():
        assert_same(built("resnet50d", **ALL_PARTS), "resnet50d", ALL_PARTS)


def assert_same(model: keras.Model, name: str, given: dict) -> None:
    images = random_images(side=64)
    expected = reference(values_of(model), name, images, training=False, **given)
    # Float32 sums of 15 layers.
    assert relative_difference(model(images, training=False), expected) < 1e-5
    found, expected = gradients_of_both(
        model,
        lambda values: reference(values, name, images, training=True, **given),
        images,
    )
    # ReLUs may be on the other side of their kinks, as in test_models.
    limit = 0.1 if given.get("activation", "relu") == "relu" else 1e-2
    for path, gradient in found.items():
        assert relative_difference(gradient, expected[path]) < limit, path


def test_bfloat16_comes_near_float32():
    given = {"activation": "mish", "se_ratio": 0.25, "blur_pool": "all"}
    exact = built("resnet18", **given)
    short = built("resnet18", **given, compute_dtype="bfloat16")
    images = random_images(side=64)
    for training in (False, True):
        ours = short(images, training=training)
        assert ours.dtype == tf.float32
        # 2**-9 for each of 12 layers.
        assert relative_difference(ours, exact(images, training=training)) < 0.1


def test_squeeze_and_excitation_has_the_sizes_of_the_tpu_code(monkeypatch):
    monkeypatch.undo()
    model = without_values("resnet50", 10, 64, se_ratio=0.25)
    shapes = {one.path: one.shape for one in model.trainable_variables}
    for stage, channels in enumerate((256, 512, 1024, 2048), start=1):
        path = f"stage{stage}_block1_3_se"
        assert shapes[f"{path}_1/kernel"] == (channels, channels // 4)
        assert shapes[f"{path}_2/kernel"] == (channels // 4, channels)
        assert shapes[f"{path}_1/bias"] == (channels // 4,)
        assert shapes[f"{path}_2/bias"] == (channels,)
    assert sum("_se_1/kernel" in path for path in shapes) == 3 + 4 + 6 + 3
    assert names.num_squeezed(64, 0.001) == 1
    expected = sum(math.prod(shape) for shape in shapes.values())
    assert names.num_parameters("resnet50", 10, 0.25) == expected
    assert names.gradient_bytes("resnet50", 10, 0.25) == 4 * expected


def test_the_parameters_of_basic_blocks_are_counted_without_the_network():
    # 8 blocks, two in each stage: dense layers of 6, 12, 25 and 51 units.
    added = sum(
        2 * (2 * channels * units + units + channels)
        for channels, units in ((64, 6), (128, 12), (256, 25), (512, 51))
    )
    expected = names.num_parameters("resnet18", 10) + added
    assert names.num_parameters("resnet18", 10, 0.1) == expected


def test_the_parts_are_off_by_default():
    plain = [layer.name for layer in built("resnet50").layers]
    assert not [name for name in plain if "se_" in name or "blur" in name]
    assert not [name for name in plain if "activation" in name or "gate" in name]


def test_every_network_with_parts_is_one_of_the_builder():
    assert set(names.RESNETS_WITH_PARTS) == {
        f"resnet{depth}{ending}"
        for depth in names.RESNET_BLOCKS
        for ending in ("", "d")
    }
