"""The networks as plain operations in float64, and comparisons with them."""

import math
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

Values = Mapping[str, tf.Tensor]  # The variables of a network by their paths, float64.
ACTIVATIONS = {
    "relu": tf.nn.relu,
    "silu": lambda x: x * tf.sigmoid(x),
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
}


def random_images(count: int = 4, side: int = 32) -> tf.Tensor:
    """Returns the same normally distributed images at each call, float32."""
    generator = np.random.default_rng(1)
    return tf.constant(generator.normal(size=(count, side, side, 3)), tf.float32)


def change_start_values(
    model: keras.Model, is_far_from_zero: bool = False
) -> keras.Model:
    """Gives biases and normalizations values that no wrong wiring survives.

    Far from zero, float32 puts no value behind a normalization beyond a kink.
    """
    generator = np.random.default_rng(5)
    for variable in model.variables:
        name = variable.path.rpartition("/")[2]
        if name in ("gamma", "moving_variance"):
            variable.assign(generator.uniform(0.5, 1.0, variable.shape))
        elif name in ("beta", "bias", "moving_mean"):
            variable.assign(generator.normal(0, 0.1, variable.shape))
        if name == "beta" and is_far_from_zero:
            variable.assign_add(np.where(np.arange(variable.shape[0]) % 2, 6.0, -6.0))
    return model


def values_of(model: keras.Model) -> dict[str, tf.Tensor]:
    return {one.path: tf.cast(one.value, tf.float64) for one in model.variables}


def relative_difference(ours, expected) -> float:
    """Returns the norm of the difference, relative to that of the expected values."""
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


def gradients_of_both(
    model: keras.Model,
    reference: Callable[[Values], tf.Tensor],
    images: tf.Tensor,
    training: bool = True,
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the gradients of the summed cross-entropy by both, by variables' paths.

    The reference returns the logits for the same four images from variables' values.
    """
    labels = tf.constant([3, 1, 6, 0])
    values = values_of(model)
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits = reference(values)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    expected = tape.gradient(loss, values)
    variables = {one.path: one.value for one in model.trainable_variables}
    with tf.GradientTape() as tape:
        ours = model(images, training=training)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, ours)
    assert relative_difference(ours, logits) < 1e-3
    return tape.gradient(loss, variables), expected


class Reference:
    """The layers that networks share; in training, normalized by the batch."""

    def __init__(self, values: Values, training: bool, epsilon: float = 1e-5) -> None:
        self.values = values
        self.training = training
        self.epsilon = epsilon

    def convolve(self, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        """A convolution that is padded on all sides, with its bias if it has one."""
        kernel = self.values[f"{name}/kernel"]
        before = (kernel.shape[0] - 1) // 2
        pad = [before, kernel.shape[0] - 1 - before]
        x = tf.nn.conv2d(x, kernel, stride, [[0, 0], pad, pad, [0, 0]])
        return x + self.values.get(f"{name}/bias", 0.0)

    def normalize(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Batch normalization; without a gamma it is 1."""
        mean, variance = (
            tf.nn.moments(x, [0, 1, 2])
            if self.training
            else [self.values[f"{name}/moving_{what}"] for what in ("mean", "variance")]
        )
        scale = self.values.get(f"{name}/gamma", 1.0) / tf.sqrt(variance + self.epsilon)
        return (x - mean) * scale + self.values[f"{name}/beta"]

    def conv(self, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        return self.normalize(self.convolve(x, name, stride), name)

    def conv_relu(self, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        return tf.nn.relu(self.conv(x, name, stride))

    def dense(self, x: tf.Tensor, name: str) -> tf.Tensor:
        x = tf.matmul(x, self.values[f"{name}/kernel"])
        return x + self.values.get(f"{name}/bias", 0.0)

    def classifier(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(tf.reduce_mean(x, [1, 2]), "classifier")


def resnet(
    layers: Reference,
    x: tf.Tensor,
    name: str,
    blocks: tuple[int, ...],
    activation: str = "relu",
    se_ratio: float = 0.0,
    blur_pool: str = "none",
) -> tf.Tensor:
    """He et al. 2015, with the parts of `layers.activations` and `layers.pooling`."""
    activate, is_resnet_d = ACTIVATIONS[activation], name.endswith("d")
    is_bottleneck = int(name.removeprefix("resnet").removesuffix("d")) >= 50

    def conv(x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        if stride > 1 and x.shape[-1] >= 16 and blur_pool != "none":
            x = blur(x)
        return layers.conv(x, name, stride)

    def gated(x: tf.Tensor, name: str) -> tf.Tensor:
        hidden = tf.nn.relu(layers.dense(tf.reduce_mean(x, [1, 2]), f"{name}_se_1"))
        gate = tf.sigmoid(layers.dense(hidden, f"{name}_se_2"))
        return x * gate[:, None, None]

    def shortcut(x: tf.Tensor, name: str, stride: int) -> tf.Tensor:
        if is_resnet_d and stride == 2:
            batch, height, width, channels = x.shape  # Even sides.
            windows = [batch, height // 2, 2, width // 2, 2, channels]
            x, stride = tf.reduce_mean(tf.reshape(x, windows), [2, 4]), 1
        return conv(x, f"{name}_shortcut", stride)

    stem = {"stem_1": 2, "stem_2": 1, "stem_3": 1} if is_resnet_d else {"stem": 2}
    for part, stride in stem.items():
        x = activate(conv(x, part, stride))
    if blur_pool == "all":
        x = blur(tf.nn.max_pool2d(x, 3, 1, "SAME"))[:, ::2, ::2]
    else:
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, num_blocks in enumerate(blocks, start=1):
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
    return layers.classifier(x)


def blur(x: tf.Tensor) -> tf.Tensor:
    """The sum of neighbors with weights of 1, 2 and 1 fourths, in both dimensions."""
    for axis in (1, 2):
        sides = [[1, 1] if other == axis else [0, 0] for other in range(4)]
        padded, size = tf.pad(x, sides), x.shape[axis]
        before, here, after = (
            tf.gather(padded, range(first, first + size), axis=axis)
            for first in range(3)
        )
        x = (before + 2 * here + after) / 4
    return x


def cifar_resnet(layers: Reference, x: tf.Tensor, num_blocks: int) -> tf.Tensor:
    """He et al. 2015, section 4.2."""
    x = layers.conv_relu(x, "stem")
    for stage in (1, 2, 3):
        for block in range(1, num_blocks + 1):
            name, residual, stride = f"stage{stage}_block{block}", x, 1
            if stage > 1 and block == 1:
                stride = 2
                residual = tf.concat([x[:, ::2, ::2], 0 * x[:, ::2, ::2]], axis=-1)
            x = layers.conv_relu(x, f"{name}_1", stride)
            x = tf.nn.relu(layers.conv(x, f"{name}_2") + residual)
    return layers.classifier(x)


def resnet9(layers: Reference, x: tf.Tensor) -> tf.Tensor:
    """cifar10-fast, for images of 32 pixels."""
    x = layers.conv_relu(x, "prep")
    x = _pool(layers.conv_relu(x, "layer1"), 2)
    x += layers.conv_relu(layers.conv_relu(x, "layer1_residual_1"), "layer1_residual_2")
    x = _pool(layers.conv_relu(x, "layer2"), 2)
    x = _pool(layers.conv_relu(x, "layer3"), 2)
    x += layers.conv_relu(layers.conv_relu(x, "layer3_residual_1"), "layer3_residual_2")
    return 0.125 * layers.dense(tf.reshape(_pool(x, 4), [-1, 512]), "classifier")


def airbench(layers: Reference, x: tf.Tensor, num_convolutions: int) -> tf.Tensor:
    """Jordan 2024, for images of 32 pixels: 2 or 3 convolutions in each block."""
    x = tf.nn.conv2d(x, layers.values["whitening/kernel"], 1, "VALID")
    x = _gelu(x + layers.values["whitening/bias"])
    for block in (1, 2, 3):
        x = _pool(layers.convolve(x, f"block{block}_conv1"), 2)
        shortcut = x = _gelu(layers.normalize(x, f"block{block}_conv1"))
        for part in range(2, num_convolutions + 1):
            name = f"block{block}_conv{part}"
            x = layers.normalize(layers.convolve(x, name), name)
            x = _gelu(x + shortcut if part == 3 else x)
    x = _pool(x, 3)
    return layers.dense(tf.reshape(x, [-1, x.shape[-1]]), "classifier") / 9


def alexnet(layers: Reference, x: tf.Tensor, has_batch_norm: bool) -> tf.Tensor:
    """Both variants of Dutta et al. 2019, for images of 32 pixels."""
    names = ("prep", "layer1", "layer2", "layer3", "layer4")
    for number, name in enumerate(names):
        stride = 2 if number == 0 else 1
        if has_batch_norm:
            x = layers.conv_relu(x, name, stride)
        else:
            x = tf.nn.relu(layers.convolve(x, f"conv{number + 1}", stride))
        if number in (0, 1, 4):
            x = _pool(x, 2)
    if has_batch_norm:
        return 0.125 * layers.dense(tf.reshape(_pool(x, 2), [-1, 256]), "classifier")
    x = tf.reshape(x, [-1, 1024])
    for name in ("dense1", "dense2"):
        x = tf.nn.relu(layers.dense(x, name))
    return layers.dense(x, "classifier")


def mlp(layers: Reference, x: tf.Tensor) -> tf.Tensor:
    """MXNet's, of the gray images."""
    x = tf.reshape(tf.reduce_mean(x, -1), [-1, 784])
    for name in ("dense1", "dense2"):
        x = tf.nn.relu(layers.dense(x, name))
    return layers.dense(x, "classifier")


def small_inception(layers: Reference, x: tf.Tensor, modules) -> tf.Tensor:
    """MXNet's for 28 pixels; modules are names and whether they have a 1x1 branch."""
    x = layers.conv_relu(x, "stem")
    for name, has_1x1 in modules:
        if has_1x1:
            first = layers.conv_relu(x, f"{name}_1x1")
            second = layers.conv_relu(x, f"{name}_3x3")
        else:
            first, second = layers.conv_relu(x, f"{name}_3x3", 2), _max_pool_3x3(x, 2)
        x = tf.concat([first, second], -1)
    return layers.classifier(x)


def inception(layers: Reference, x: tf.Tensor, modules) -> tf.Tensor:
    """MXNet's for 224 pixels; modules have a name, a pool, and a projection or none."""
    x = _max_pool_3x3(layers.conv_relu(x, "stem_1", 2), 2)
    x = layers.conv_relu(layers.conv_relu(x, "stem_2"), "stem_3")
    x = _max_pool_3x3(x, 2)
    for name, pool, has_projection in modules:
        stride = 1 if has_projection else 2
        double = layers.conv_relu(x, f"{name}_double_reduce")
        double = layers.conv_relu(double, f"{name}_double_1")
        pooled = average_pool_3x3(x) if pool == "avg" else _max_pool_3x3(x, stride)
        if has_projection:
            pooled = layers.conv_relu(pooled, f"{name}_projection")
        branches = [layers.conv_relu(x, f"{name}_1x1")] if has_projection else []
        reduced = layers.conv_relu(x, f"{name}_3x3_reduce")
        branches += [
            layers.conv_relu(reduced, f"{name}_3x3", stride),
            layers.conv_relu(double, f"{name}_double_2", stride),
            pooled,
        ]
        x = tf.concat(branches, -1)
    return layers.classifier(x)


def average_pool_3x3(x: tf.Tensor) -> tf.Tensor:
    """The means of windows of 3x3 at all places, in which padding counts."""
    height, width = x.shape[1:3]
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    windows = [
        x[:, top : top + height, left : left + width]
        for top in range(3)
        for left in range(3)
    ]
    return tf.add_n(windows) / 9


def _max_pool_3x3(x: tf.Tensor, stride: int) -> tf.Tensor:
    """Windows of 3x3; those of stride 2 begin at the first place, as in the source."""
    before, after = (1, 1) if stride == 1 else (0, 1 - x.shape[1] % 2)
    if stride == 2 and x.shape[1] % 2:
        before = after = 1
    edges = [[0, 0], [before, after], [before, after], [0, 0]]
    return tf.nn.max_pool2d(tf.pad(x, edges, constant_values=-1e9), 3, stride, "VALID")


def _pool(x: tf.Tensor, size: int) -> tf.Tensor:
    return tf.nn.max_pool2d(x, size, size, "VALID")


def _gelu(x: tf.Tensor) -> tf.Tensor:
    return x * (1 + tf.math.erf(x / math.sqrt(2))) / 2
