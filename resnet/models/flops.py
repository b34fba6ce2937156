"""Counts the floating-point operations (FLOPs) of a Keras model per image.

Only convolutions and dense layers count, which are nearly all of the work. A
multiplication and an addition count as two operations.
"""

import math

import keras


def count_forward_pass(model: keras.Model) -> int:
    """Returns the number of operations of the forward pass for one image."""
    return sum(_count_layers(model))


def count_training_step(model: keras.Model) -> int:
    """Returns the number of operations of forward and backward pass for one image.

    In each layer the outputs, the gradient of the kernel and the gradient of the inputs
    take the same number of operations. The first layer doesn't compute the gradient of
    its inputs, the images.
    """
    layers = _count_layers(model)
    return 3 * sum(layers) - layers[0]


def _count_layers(model: keras.Model) -> list[int]:
    """Returns the number of operations in the forward pass for each kernel, in order.

    A kernel `[height, width, channels, filters]` is applied at every position of its
    layer's output, a kernel `[features, classes]` once.
    """
    counts = []
    for layer in model.layers:
        for weight in layer.trainable_weights:
            if len(weight.shape) == 4:
                output, *_ = keras.tree.flatten(layer.output)
                positions = math.prod(output.shape[1:3])
                counts.append(2 * math.prod(weight.shape) * positions)
            elif len(weight.shape) == 2:
                counts.append(2 * math.prod(weight.shape))
    return counts
