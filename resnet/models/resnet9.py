"""ResNet-9, a network for images of 32 pixels.

Source: davidcpage/cifar10-fast, as in the study of compressed gradients of Dutta et al.
2019, arXiv:1911.08250 (sands-lab/layer-wise-aaai20, CIFAR10/dawn.py, resnet9). The one
difference: kernels are initialized as in the other networks of this package. The
source's last pool has a 4x4 window, which for images of 32 pixels is the whole feature
map; here it covers the whole feature map for any size of images.
"""

import keras

from resnet.models import layers
from resnet.models.options import NetworkOptions

LOGIT_SCALE = 0.125  # The source's.


def build(
    _: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images."""
    seed = options.seeds()

    def conv(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
        return layers.ConvNorm(filters, 3, 1, seed(), name, options.batch_norm)(x)

    def residual(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
        branch = conv(conv(x, filters, f"{name}_1"), filters, f"{name}_2")
        return layers.Add(f"{name}_sum")(x, branch)  # The branch ends with ReLU.

    x = layers.Cast(options.compute_dtype, name="cast")(images)
    x = conv(x, 64, "prep")
    x = conv(x, 128, "layer1")
    x = layers.MaxPool(2, 2, name="layer1_pool")(x)
    x = residual(x, 128, "layer1_residual")
    x = conv(x, 256, "layer2")
    x = layers.MaxPool(2, 2, name="layer2_pool")(x)
    x = conv(x, 512, "layer3")
    x = layers.MaxPool(2, 2, name="layer3_pool")(x)
    x = residual(x, 512, "layer3_residual")
    x = layers.GlobalMaxPool(name="pool")(x)
    linear = layers.ScaledLinear(options.num_classes, LOGIT_SCALE, seed(), "classifier")
    return linear(x)
