"""The ResNet with 6n + 2 layers for CIFAR-10's images of 32 pixels.

A 3x3 convolution, then three stages of n basic blocks with 16, 32 and 64 filters.
Shortcuts have no parameters (option A): where the feature map shrinks, the shortcut
takes every second position and appends channels of zeros. ResNet-20 (n = 3) is the
smallest network of the paper, and ResNet-8 (n = 1) is the smallest of its kind.

Source: He et al. 2015, arXiv:1512.03385, section 4.2. Two differences: kernels and the
classifier are initialized as in the other networks of this package, and gamma of the
last normalization in a block may be initialized to 0 (`zero_last_gamma`).
"""

import dataclasses
from typing import Any

import keras

from resnet.config.networks import MODELS
from resnet.models import layers
from resnet.models.options import NetworkOptions

STAGE_FILTERS = (16, 32, 64)


def build(
    name: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images."""
    num_blocks = (MODELS[name].depth - 2) // 6
    seed = options.seeds()

    def conv(filters: int, stride: int, name: str, **others: Any) -> layers.ConvNorm:
        norm = dataclasses.replace(options.batch_norm, **others)
        return layers.ConvNorm(filters, 3, stride, seed(), name, norm)

    x = layers.Cast(options.compute_dtype, name="cast")(images)
    # Each output has a copy for the next block's convolutions and one for its shortcut.
    copies = conv(STAGE_FILTERS[0], 1, "stem", num_copies=2)(x)
    for stage, filters in enumerate(STAGE_FILTERS, start=1):
        for block in range(1, num_blocks + 1):
            name = f"stage{stage}_block{block}"
            x, shortcut = copies
            stride = 2 if stage > 1 and block == 1 else 1
            if stride == 2:
                pad = layers.ZeroPadShortcut(filters, stride, f"{name}_shortcut")
                shortcut = pad(shortcut)
            x = conv(filters, stride, f"{name}_1")(x)
            is_last = (stage, block) == (len(STAGE_FILTERS), num_blocks)
            copies = conv(
                filters,
                1,
                f"{name}_2",
                zero_gamma=options.zero_last_gamma,
                num_copies=1 if is_last else 2,
            )(x, shortcut)
    return layers.Classifier(options.num_classes, seed(), name="classifier")(copies)
