"""BlurPool against loops in NumPy, and which layers of the networks have it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet.models import resnet
from resnet.models.layers import BlurPool
from tests.drawn import normal
from tests.unit.described_model import without_values

WEIGHTS = np.outer([1, 2, 1], [1, 2, 1]) / 16


def slow_blur(images: np.ndarray, stride: int) -> np.ndarray:
    """Returns the sum over the 3x3 neighbors of each position that the stride takes."""
    batch, height, width, channels = images.shape
    padded = np.zeros((batch, height + 2, width + 2, channels))
    padded[:, 1:-1, 1:-1] = images
    rows, columns = range(0, height, stride), range(0, width, stride)
    blurred = np.zeros((batch, len(rows), len(columns), channels))
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        window = padded[:, row : row + 3, column : column + 3]
        blurred[:, i, j] = np.einsum("bhwc,hw->bc", window, WEIGHTS)
    return blurred


# float32 sums of 16 terms; bfloat16 rounds two averages to 2**-9 of values of up to 3.
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 2)])
def test_it_is_the_weighted_sum_of_neighbors(size, stride, dtype, limit):
    images = tf.cast(normal(2, *size, 16), dtype)
    layer = BlurPool(stride, "blur")
    with tf.GradientTape() as tape:
        tape.watch(images)
        ours = layer(images)
    assert ours.dtype == images.dtype
    exact = tf.cast(images, tf.float64).numpy()
    expected = slow_blur(exact, stride)
    np.testing.assert_allclose(tf.cast(ours, tf.float64), expected, rtol=0, atol=limit)
    # The gradient of a linear function is its adjoint: <blur(x), d> = <x, gradient>.
    d = tf.cast(normal(*ours.shape, seed=1), dtype)
    gradient = tf.cast(tape.gradient(ours, images, d), tf.float64).numpy()
    for seed in range(3):
        other = normal(*images.shape, seed=2 + seed)
        product = (slow_blur(other, stride) * tf.cast(d, tf.float64).numpy()).sum()
        size_of_sum = np.sqrt((other**2).sum())
        assert abs(product - (other * gradient).sum()) < limit * size_of_sum


STAGES = ("stage2", "stage3", "stage4")
# Of a bottleneck block the 3x3 convolution has the stride, of a basic block the first.
BLURRED = {
    "resnet18": [("_block1_1", 1), ("_block1_shortcut", 2)],
    "resnet50": [("_block1_2", 1), ("_block1_shortcut", 2)],
    "resnet50d": [("_block1_2", 1)],  # Its shortcuts have average pooling.
}


@pytest.mark.parametrize("name", BLURRED)
def test_strided_convolutions_of_16_channels_and_the_pooling_are_blurred(
    name, monkeypatch
):
    blocks = (1, 1, 1, 1)
    depths = {18: (blocks, False), 50: (blocks, True)}
    monkeypatch.setattr(resnet, "DEPTHS", depths)
    expected = {
        f"{stage}{layer}_blur": stride
        for stage in STAGES
        for layer, stride in BLURRED[name]
    }
    plain = without_values(name, 10, 64)
    for blurred, stem in (
        ("none", None),
        ("convolutions", {}),
        ("all", {"stem_blur": 2}),
    ):
        model = without_values(name, 10, 64, blur_pool=blurred)
        found = {
            layer.name: layer.stride
            for layer in model.layers
            if isinstance(layer, BlurPool)
        }
        assert found == ({} if stem is None else expected | stem)
        assert model.get_layer("stem_pool").stride == (1 if stem else 2)
        sizes = {"stem_pool": (32, 32)} if stem else {}
        for layer in plain.layers:
            output, *_ = keras.tree.flatten(layer.output)
            same, *_ = keras.tree.flatten(model.get_layer(layer.name).output)
            assert same.shape[1:3] == sizes.get(layer.name, output.shape[1:3])
        assert [one.path for one in model.variables] == [
            one.path for one in plain.variables
        ]
