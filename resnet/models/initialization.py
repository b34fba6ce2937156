"""The default initialization of PyTorch, for networks whose source uses it."""

import math
import random

import keras


def initialize_as_pytorch(model: keras.Model, seed: int) -> None:
    """Initializes the kernels and biases of a network again, as PyTorch does.

    Both are uniform between -1 / sqrt(n) and 1 / sqrt(n), where n is the number of
    inputs of each output. Normalizations stay as they are.

    Args:
        model: The network.
        seed: Seed of the weights.

    Source: torch/nn/modules/conv.py and linear.py, reset_parameters.
    """
    generator = random.Random(seed)
    for layer in model.layers:
        kernel = getattr(layer, "kernel", None)
        if kernel is None:
            continue
        limit = math.prod(kernel.shape[:-1]) ** -0.5
        for variable in (kernel, getattr(layer, "bias", None)):
            if variable is not None:
                layer_seed = generator.getrandbits(31)
                initializer = keras.initializers.RandomUniform(
                    -limit, limit, layer_seed
                )
                variable.assign(initializer(variable.shape))
