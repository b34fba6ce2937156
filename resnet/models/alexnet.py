"""Two variants of AlexNet for images of 32 pixels, with and without BatchNorm.

Source: the study of compressed gradients of Dutta et al. 2019, arXiv:1911.08250
(sands-lab/layer-wise-aaai20, CIFAR10/alexnet.py, "Alexnet1", and CIFAR10/dawn.py,
"Alexnet", the variant with BatchNorm). The one difference: weights are initialized as
in the other networks of this package, unless `models.build` is told otherwise.
"""

import random

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


def build(options: NetworkOptions) -> keras.Model:
    """Returns the network without BatchNorm, from float32 images to float32 logits.

    The first dense layer takes the whole feature map, so the network takes images of
    `image_size` only.
    """
    generator = random.Random(options.seed)
    inputs = keras.Input((options.image_size, options.image_size, 3), name="images")
    x = layers.Cast(options.compute_dtype, name="cast")(inputs)
    for number, (filters, stride, is_pooled) in enumerate(CONVOLUTIONS, start=1):
        layer_seed = generator.getrandbits(31)
        x = layers.Conv(filters, 3, stride, layer_seed, f"conv{number}")(x)
        if is_pooled:
            x = layers.MaxPool(2, 2, name=f"conv{number}_pool")(x)
    x = layers.Flatten("flatten")(x)
    for number in (1, 2):
        layer_seed = generator.getrandbits(31)
        x = layers.Dropout(DROPOUT_RATE, layer_seed, f"dropout{number}")(x)
        layer_seed = generator.getrandbits(31)
        x = layers.Dense(DENSE_UNITS, layer_seed, f"dense{number}", relu=True)(x)
    classifier = layers.Dense(
        options.num_classes, generator.getrandbits(31), "classifier"
    )
    logits = classifier(x)
    logits = layers.Cast("float32", name="logits")(logits)
    return keras.Model(inputs, logits, name="alexnet")


def build_with_batch_norm(options: NetworkOptions) -> keras.Model:
    """Returns the network with BatchNorm, from float32 images to float32 logits.

    The source's last pool has a 2x2 window, which for images of 32 pixels is the whole
    feature map. Here it covers the whole feature map for any size of images.
    """
    generator = random.Random(options.seed)
    names = ("prep", "layer1", "layer2", "layer3", "layer4")
    inputs = keras.Input((options.image_size, options.image_size, 3), name="images")
    x = layers.Cast(options.compute_dtype, name="cast")(inputs)
    for name, (filters, stride, is_pooled) in zip(names, CONVOLUTIONS, strict=True):
        layer_seed = generator.getrandbits(31)
        x = layers.ConvNorm(
            filters, 3, stride, seed=layer_seed, name=name, **options.batch_norm
        )(x)
        if is_pooled:
            x = layers.MaxPool(2, 2, name=f"{name}_pool")(x)
    x = layers.GlobalMaxPool(name="pool")(x)
    layer_seed = generator.getrandbits(31)
    logits = layers.ScaledLinear(
        options.num_classes, LOGIT_SCALE, layer_seed, "classifier"
    )(x)
    return keras.Model(inputs, logits, name="alexnet_bn")
