"""The initial weights of other frameworks, for networks whose source uses them."""

import math
import random

import keras
import numpy as np

from resnet.config.networks import UNIFORM_LIMITS


def initialize(model: keras.Model, distribution: str, seed: int) -> None:
    """Initializes a network's trainable kernels and biases from another distribution.

    - "variance_scaling": as the layers were built, so nothing changes.
    - "pytorch": kernels and biases are uniform between -1 / sqrt(n) and 1 / sqrt(n),
      where n is the number of inputs of each output.
    - "dirac": kernels as with "pytorch", except that convolutions begin as the
      identity: their first filters, as many as there are channels, each copy one
      channel. Biases stay as they were built.
    - "uniform_x": kernels are uniform between -x and x; biases stay as they were built.

    Normalizations stay as they are. So do the kernel of a whitening layer, which isn't
    trained, and its bias, also with "pytorch".

    Source: torch/nn/modules/conv.py and linear.py, reset_parameters; dmlc/mxnet,
    python/mxnet/initializer.py, Uniform. Of "dirac": Jordan 2024, arXiv:2404.00498,
    and the filters are those of torch.nn.init.dirac_.
    """
    if distribution == "variance_scaling":
        return
    generator = random.Random(seed)
    limit = UNIFORM_LIMITS.get(distribution, 0.0)
    for variable in model.trainable_variables:
        name = variable.path.rpartition("/")[2]
        if name == "kernel" and distribution in ("pytorch", "dirac"):
            limit = math.prod(variable.shape[:-1]) ** -0.5
        # A layer's bias comes after its kernel.
        if name == "kernel" or (name == "bias" and distribution == "pytorch"):
            layer_seed = generator.getrandbits(31)
            initializer = keras.initializers.RandomUniform(-limit, limit, layer_seed)
            values = np.array(initializer(variable.shape))
            if distribution == "dirac" and values.ndim == 4:
                _begin_as_identity(values)
            variable.assign(values)


def _begin_as_identity(kernel: np.ndarray) -> None:
    """Has filter i copy channel i, in a kernel `[size, size, channels, filters]`."""
    height, width, channels, filters = kernel.shape
    count = min(channels, filters)
    kernel[..., :count] = 0
    kernel[height // 2, width // 2, range(count), range(count)] = 1


def initialize_last_bias(model: keras.Model, logit: float) -> None:
    """Initializes all biases of the classifier; raises ValueError if it has none."""
    # Not always the last layer: a cast to float32 may follow it.
    bias = getattr(model.get_layer("classifier"), "bias", None)
    if bias is None:
        raise ValueError(
            f"expected a classifier with biases, to begin with {logit:.3g}; that of"
            f" {model.name} has none"
        )
    bias.assign(keras.ops.full(bias.shape, logit))
