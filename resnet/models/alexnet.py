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
    x = layers.Cast(options.compute_dtype, name="cast")(images)
    variant = _with_batch_norm if name == "alexnet_bn" else _without_batch_norm
    return variant(x, options)


def _without_batch_norm(
    x: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the logits; the first dense layer takes the whole feature map."""
    seed = options.seeds()
    for number, (filters, stride, is_pooled) in enumerate(CONVOLUTIONS, start=1):
        x = layers.Conv(filters, 3, stride, seed(), f"conv{number}")(x)
        if is_pooled:
            x = layers.MaxPool(2, 2, name=f"conv{number}_pool")(x)
    x = layers.Flatten("flatten")(x)
    for number in (1, 2):
        x = layers.Dropout(DROPOUT_RATE, seed(), f"dropout{number}")(x)
        x = layers.Dense(DENSE_UNITS, seed(), f"dense{number}", relu=True)(x)
    logits = layers.Dense(options.num_classes, seed(), "classifier")(x)
    return layers.Cast("float32", name="logits")(logits)


def _with_batch_norm(
    x: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    seed = options.seeds()
    names = ("prep", "layer1", "layer2", "layer3", "layer4")
    for name, (filters, stride, is_pooled) in zip(names, CONVOLUTIONS, strict=True):
        x = layers.ConvNorm(filters, 3, stride, seed(), name, options.batch_norm)(x)
        if is_pooled:
            x = layers.MaxPool(2, 2, name=f"{name}_pool")(x)
    x = layers.GlobalMaxPool(name="pool")(x)
    linear = layers.ScaledLinear(options.num_classes, LOGIT_SCALE, seed(), "classifier")
    return linear(x)
