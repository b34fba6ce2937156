"""The small network of airbench, made for 94 % on CIFAR-10 in the least time.

Source: Jordan 2024, arXiv:2404.00498, and KellerJordan/cifar10-airbench,
legacy/airbench94.py (make_net).
"""

import dataclasses

import keras

from resnet.models import layers
from resnet.models.options import NetworkOptions

PATCH_SIZE = 2
BLOCK_FILTERS = (64, 256, 256)
LOGIT_SCALE = 1 / 9


def build(
    _: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images.

    The kernel of the first layer is 0 until it is computed from training images. Batch
    normalization has no gamma. The source's last pool has a 3x3 window, which for
    images of 32 pixels is the whole feature map; here it covers it for any size.
    """
    seed = options.seeds()
    norm = dataclasses.replace(options.batch_norm, fixed_gamma=True, relu=False)
    x = layers.Cast("float32", name="cast")(images)
    x = layers.Whitening(PATCH_SIZE, name="whitening")(x)
    x = layers.Gelu(options.compute_dtype, name="whitening_gelu")(x)
    for number, filters in enumerate(BLOCK_FILTERS, start=1):
        for part, kind in enumerate((layers.PooledConvNorm, layers.ConvNorm), start=1):
            name = f"block{number}_conv{part}"
            x = kind(filters, 3, 1, seed(), name, norm)(x)
            x = layers.Gelu(options.compute_dtype, name=f"block{number}_gelu{part}")(x)
    x = layers.GlobalMaxPool(name="pool")(x)
    linear = layers.ScaledLinear(options.num_classes, LOGIT_SCALE, seed(), "classifier")
    return linear(x)
