"""ResNet9, a network for pictures of 32 pixels.

Source: davidcpage/cifar10-fast, as in the study of compressed gradients of Dutta et al.
2019, arXiv:1911.08250 (sands-lab/layer-wise-aaai20, CIFAR10/dawn.py, resnet9). Only the
convolutions start otherwise: as those of the other networks here.
"""

import random

import keras

from resnet.models import layers

LOGIT_SCALE = 0.125  # The source's.


def build(
    num_classes: int,
    image_size: int,
    batch_norm_decay: float,
    compute_dtype: str,
    seed: int,
) -> keras.Model:
    """Returns the network: float32 images in, float32 logits out.

    The source's last pool is 4x4, which at 32 pixels is all that is left; at other
    sizes the last pool takes all that is left too.

    Args:
        num_classes: Length of the logits.
        image_size: Side in pixels of the images that the layers' shapes are told for.
        batch_norm_decay: Of the moving averages.
        compute_dtype: "float32" or "bfloat16"; variables are float32.
        seed: Of the initial weights.
    """
    generator = random.Random(seed)

    def conv(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
        own_seed = generator.getrandbits(31)
        return layers.ConvNorm(filters, 3, 1, batch_norm_decay, own_seed, name)(x)

    def residual(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
        branch = conv(conv(x, filters, f"{name}_1"), filters, f"{name}_2")
        return layers.Sum(f"{name}_sum")(x, branch)  # After the branch's ReLU.

    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = layers.Cast(compute_dtype, name="cast")(inputs)
    x = conv(x, 64, "prep")
    x = conv(x, 128, "layer1")
    x = layers.MaxPool(2, 2, name="layer1_pool")(x)
    x = residual(x, 128, "layer1_residual")
    x = conv(x, 256, "layer2")
    x = layers.MaxPool(2, 2, name="layer2_pool")(x)
    x = conv(x, 512, "layer3")
    x = layers.MaxPool(2, 2, name="layer3_pool")(x)
    x = residual(x, 512, "layer3_residual")
    x = layers.MaxOfAll(name="pool")(x)
    own_seed = generator.getrandbits(31)
    logits = layers.ScaledLinear(num_classes, LOGIT_SCALE, own_seed, "classifier")(x)
    return keras.Model(inputs, logits, name="resnet9")
