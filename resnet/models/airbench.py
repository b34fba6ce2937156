"""The networks of airbench, made for 94 % and 96 % on CIFAR-10 in the least time.

Source: Jordan 2024, arXiv:2404.00498, and KellerJordan/cifar10-airbench,
legacy/airbench94.py and airbench96_faster.py (make_net).
"""

import dataclasses

import keras

from resnet.models import layers
from resnet.models.options import NetworkOptions

PATCH_SIZE = 2
# Blocks of airbench96 have a third convolution, and a shortcut over the last two.
BLOCK_FILTERS = {"airbench94": (64, 256, 256), "airbench96": (128, 384, 512)}
LOGIT_SCALE = 1 / 9


def build(
    name: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of the network of this name for float32 images.

    The kernel of the first layer is 0 until it is computed from training images. Batch
    normalization has no gamma. The source's last pool has a 3x3 window, which for
    images of 32 pixels is the whole feature map; here it covers it for any size.
    """
    seed = options.seeds()
    norm = dataclasses.replace(options.batch_norm, fixed_gamma=True, relu=False)

    def gelu(x: keras.KerasTensor, of: str) -> keras.KerasTensor:
        return layers.Gelu(options.compute_dtype, name=of)(x)

    x = layers.Cast("float32", name="cast")(images)
    x = gelu(layers.Whitening(PATCH_SIZE, name="whitening")(x), "whitening_gelu")
    for number, filters in enumerate(BLOCK_FILTERS[name], start=1):
        block = f"block{number}"
        x = layers.PooledConvNorm(filters, 3, 1, seed(), f"{block}_conv1", norm)(x)
        shortcut = x = gelu(x, f"{block}_gelu1")
        x = layers.ConvNorm(filters, 3, 1, seed(), f"{block}_conv2", norm)(x)
        x = gelu(x, f"{block}_gelu2")
        if name == "airbench96":
            last = layers.ConvNorm(filters, 3, 1, seed(), f"{block}_conv3", norm)
            x = gelu(last(x, shortcut), f"{block}_gelu3")  # It adds the shortcut.
    x = layers.GlobalMaxPool(name="pool")(x)
    linear = layers.ScaledLinear(options.num_classes, LOGIT_SCALE, seed(), "classifier")
    return linear(x)
