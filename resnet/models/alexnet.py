"""Two variants of AlexNet for images of 32 pixels, with and without BatchNorm.

Source: the study of compressed gradients of Dutta et al. 2019, arXiv:1911.08250
(sands-lab/layer-wise-aaai20, CIFAR10/alexnet.py, "Alexnet1", and CIFAR10/dawn.py,
"Alexnet", the variant with BatchNorm). Differences: weights are initialized as in
the other networks of this package, unless `models.build` is told otherwise, and the
last pool of "alexnet_bn" covers the whole feature map for any size of images.
"""

import keras

from resnet.models import layers
from resnet.models.options import NetworkOptions
from resnet.models.resnet9 import LOGIT_SCALE

# Filters, stride, and whether a max pool of stride 2 follows, of each 3x3 convolution.
CONVOLUTIONS = (
    (64, 2, True),
    (192, 1, True),
    (384, 1, False),
    (256, 1, False),
    (256, 1, True),
)
DENSE_UNITS = 4096
DROPOUT_RATE = 0.5  # PyTorch's default, which the source uses.


def build(
    name: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images, by one of the two variants."""
    seed = options.seeds()
    has_norms = name == "alexnet_bn"
    x = layers.Cast(options.compute_dtype, name="cast")(images)
    for number, (filters, stride, is_pooled) in enumerate(CONVOLUTIONS, start=1):
        if has_norms:
            part = f"layer{number - 1}" if number > 1 else "prep"
            x = layers.ConvNorm(filters, 3, stride, seed(), part, options.batch_norm)(x)
        else:
            part = f"conv{number}"
            x = layers.Conv(filters, 3, stride, seed(), part)(x)
        if is_pooled:
            x = layers.MaxPool(2, 2, name=f"{part}_pool")(x)
    if has_norms:
        x = layers.GlobalMaxPool(name="pool")(x)
        scale = LOGIT_SCALE
        return layers.ScaledLinear(options.num_classes, scale, seed(), "classifier")(x)
    x = layers.Flatten("flatten")(x)  # The dense layers take the whole feature map.
    for number in (1, 2):
        x = layers.Dropout(DROPOUT_RATE, seed(), f"dropout{number}")(x)
        x = layers.Dense(DENSE_UNITS, seed(), f"dense{number}", relu=True)(x)
    logits = layers.Dense(options.num_classes, seed(), "classifier")(x)
    return layers.Cast("float32", name="logits")(logits)
