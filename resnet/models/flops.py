"""How many floating-point operations a network needs for an image.

Those of convolutions and dense layers, which are nearly all: a multiplication and an
addition count as two.
"""

import math

import keras


def of_forward_pass(model: keras.Model) -> int:
    """Returns the operations that the logits of one image need."""
    return sum(_of_layers(model))


def of_training_step(model: keras.Model) -> int:
    """Returns the operations that one image needs in a step of training.

    Each layer computes its result, the gradient of its kernel and that of its input,
    all of the same size; but nobody needs the gradient of the images.
    """
    layers = _of_layers(model)
    return 3 * sum(layers) - layers[0]


def _of_layers(model: keras.Model) -> list[int]:
    """Returns the operations of each kernel, from the images on.

    A kernel `[height, width, channels, filters]` is applied at every place of its
    layer's output, a kernel `[features, classes]` once.
    """
    found = []
    for layer in model.layers:
        for weight in layer.trainable_weights:
            if len(weight.shape) == 4:
                output, *_ = keras.tree.flatten(layer.output)
                found.append(2 * math.prod(weight.shape) * math.prod(output.shape[1:3]))
            elif len(weight.shape) == 2:
                found.append(2 * math.prod(weight.shape))
    return found
