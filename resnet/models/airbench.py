"""The small network of airbench, made for 94 % on CIFAR-10 in the least time.

Source: Jordan 2024, arXiv:2404.00498, and KellerJordan/cifar10-airbench,
legacy/airbench94.py (make_net).
"""

import random
from collections.abc import Mapping
from typing import Any

import keras

from resnet.models import layers

PATCH_SIZE = 2
BLOCK_FILTERS = (64, 256, 256)
LOGIT_SCALE = 1 / 9


def build(
    num_classes: int,
    image_size: int,
    batch_norm: Mapping[str, Any],
    compute_dtype: str,
    seed: int,
) -> keras.Model:
    """Returns a Keras model from float32 images to float32 logits.

    The first layer is that of `whitening`, whose kernel is 0 until it is computed from
    training images. Batch normalization has no gamma. The source's last pool has a 3x3
    window, which for images of 32 pixels is the whole feature map; here it covers the
    whole feature map for any size of images.

    Args:
        num_classes: Number of logits.
        image_size: Height and width in pixels that the symbolic shapes are for.
        batch_norm: Arguments of `layers.ConvNorm` about its batch normalization.
        compute_dtype: "float32" or "bfloat16"; variables are float32.
        seed: Seed of the initial weights.
    """
    generator = random.Random(seed)
    settings = {**batch_norm, "fixed_gamma": True, "relu": False}
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = layers.Cast("float32", name="cast")(inputs)
    x = layers.Whitening(PATCH_SIZE, name="whitening")(x)
    x = layers.Gelu(compute_dtype, name="whitening_gelu")(x)
    for number, filters in enumerate(BLOCK_FILTERS, start=1):
        for part, kind in enumerate((layers.PooledConvNorm, layers.ConvNorm), start=1):
            name = f"block{number}_conv{part}"
            layer_seed = generator.getrandbits(31)
            x = kind(filters, 3, 1, seed=layer_seed, name=name, **settings)(x)
            x = layers.Gelu(compute_dtype, name=f"block{number}_gelu{part}")(x)
    x = layers.GlobalMaxPool(name="pool")(x)
    layer_seed = generator.getrandbits(31)
    logits = layers.ScaledLinear(num_classes, LOGIT_SCALE, layer_seed, "classifier")(x)
    return keras.Model(inputs, logits, name="airbench94")
