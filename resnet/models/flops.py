"""Counts the floating-point operations (FLOPs) of a Keras model per image.

Only convolutions and dense layers count, which are nearly all of the work. A
multiplication and an addition count as two operations.
"""

import math

import keras

from resnet.models import layers


def count_forward_pass(model: keras.Model) -> int:
    """Returns the number of operations of the forward pass for one image."""
    return sum(count for count, _ in _count_kernels(model))


def count_training_step(model: keras.Model) -> int:
    """Returns the number of operations of forward and backward pass for one image.

    In each layer the outputs, the gradient of the kernel and that of the inputs take as
    many operations. The first layer has no gradient of its inputs, the images. If only
    its bias is trained, it computes its outputs alone, and the next layer all three.
    """
    counts = _count_kernels(model)
    trained = [count for count, is_trained in counts if is_trained]
    constant = [count for count, is_trained in counts if not is_trained]
    if constant:
        return 3 * sum(trained) + sum(constant)
    return 3 * sum(trained) - trained[0]


def _count_kernels(model: keras.Model) -> list[tuple[int, bool]]:
    """Returns the operations of each kernel's forward pass, and whether it learns.

    A kernel `[height, width, channels, filters]` is applied at every position of its
    layer's output, or of what the layer pools; a kernel `[features, classes]` once.
    """
    counts = []
    for layer in model.layers:
        for weight in layer.weights:
            size = 2 * math.prod(weight.shape)
            if len(weight.shape) == 4:
                counts.append((size * num_positions(layer), weight.trainable))
            elif len(weight.shape) == 2:
                counts.append((size, weight.trainable))
    return counts


def num_positions(layer: keras.layers.Layer) -> int:
    """Returns the number of positions that a layer's kernel is applied at."""
    if isinstance(layer, layers.PooledConvNorm):
        return math.prod(-(-side // layer.stride) for side in layer.input.shape[1:3])
    output, *_ = keras.tree.flatten(layer.output)
    return math.prod(output.shape[1:3])
