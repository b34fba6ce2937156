"""ResNet with 18 to 200 layers for ImageNet ("v1.5"), and ResNet-D.

In v1.5 the stride of a bottleneck block is in its 3x3 convolution. Every stage, the
first one included, begins with a block with a projection shortcut, and gamma of the
last normalization in a block may be initialized to 0.
Source: He et al. 2015, arXiv:1512.03385, as in tensorflow/tpu,
models/official/resnet/resnet_model.py.

ResNet-D replaces the 7x7 convolution of the stem with three 3x3 convolutions, and puts
2x2 average pooling in front of projections of stride 2, which then have stride 1.
Source: He et al. 2018, arXiv:1812.01187, figures 2c and 2d, as in the TPU recipe's
use_resnetd_stem and resnetd_shortcut; here the basic blocks of ResNet-18 and 34 have
the pooled shortcut too.

torchvision's ResNets (pytorch/vision, torchvision/models/resnet.py) differ from the TPU
recipe's in two details: the max pooling of the stem pads all four sides, and the first
stage of ResNet-18 and 34 begins with an identity shortcut.
"""

import dataclasses
from typing import Any

import keras

from resnet.config import networks
from resnet.models import layers
from resnet.models.layers import pooling
from resnet.models.options import NetworkOptions

DEPTHS = networks.RESNET_BLOCKS
STAGE_FILTERS = networks.STAGE_FILTERS
Copies = Any  # A KerasTensor, or a list of references to the same one.


def build(
    name: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images."""
    blocks, is_bottleneck = DEPTHS[networks.MODELS[name].depth]
    is_torchvision = options.resnet_variant == "torchvision"
    builder = _Builder(options, is_bottleneck, is_resnet_d=name.endswith("d"))
    x = layers.Cast(options.compute_dtype, name="cast")(images)
    x = builder.stem(x)
    if options.blur_pool == "all":
        x = layers.MaxPool(3, 1, name="stem_pool")(x)
        x = layers.BlurPool(2, name="stem_blur")(x)
    else:
        x = layers.MaxPool(3, 2, name="stem_pool", is_symmetric=is_torchvision)(x)
    copies = [x, x]  # The first for the next block's convolutions, then its shortcut.
    for stage, (num_blocks, filters) in enumerate(
        zip(blocks, STAGE_FILTERS, strict=True), start=1
    ):
        for block in range(1, num_blocks + 1):
            # With basic blocks, the first stage keeps the shape of its input.
            is_identity = is_torchvision and not is_bottleneck and stage == 1
            copies = builder.block(
                copies,
                filters,
                stride=2 if stage > 1 and block == 1 else 1,
                is_projected=block == 1 and not is_identity,
                name=f"stage{stage}_block{block}",
                num_copies=1 if (stage, block) == (len(blocks), num_blocks) else 2,
            )
    classifier = layers.Classifier(options.num_classes, builder.seed(), "classifier")
    return classifier(copies)


class _Builder:
    """Adds layers and blocks to a graph; draws the seed of each layer in order."""

    def __init__(
        self, options: NetworkOptions, is_bottleneck: bool, is_resnet_d: bool
    ) -> None:
        self.options = options
        self.seed = options.seeds()
        self.is_bottleneck, self.is_resnet_d = is_bottleneck, is_resnet_d
        self.is_blurred = options.blur_pool != "none"
        self.has_relu = options.activation == "relu"  # `ConvNorm` includes it.

    def conv(
        self,
        x: keras.KerasTensor,
        filters: int,
        kernel_size: int,
        stride: int,
        name: str,
        is_activated: bool = True,
    ) -> keras.KerasTensor:
        """Returns `x` after a convolution with batch normalization."""
        if self.is_blurred and stride > 1 and x.shape[-1] >= pooling.BLURRED_CHANNELS:
            # A 1x1 convolution reads what a blur with its stride leaves.
            blur_stride = stride if kernel_size == 1 else 1
            x = layers.BlurPool(blur_stride, name=f"{name}_blur")(x)
            stride //= blur_stride
        norm = dataclasses.replace(
            self.options.batch_norm, relu=is_activated and self.has_relu
        )
        x = layers.ConvNorm(filters, kernel_size, stride, self.seed(), name, norm)(x)
        if self.has_relu or not is_activated:
            return x
        return layers.Activation(self.options.activation, f"{name}_activation")(x)

    def stem(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the stem's feature map: 64 channels at half the images' size."""
        if not self.is_resnet_d:
            return self.conv(x, 64, 7, 2, "stem")
        x = self.conv(x, 32, 3, 2, "stem_1")
        x = self.conv(x, 32, 3, 1, "stem_2")
        return self.conv(x, 64, 3, 1, "stem_3")

    def last_conv(
        self,
        x: keras.KerasTensor,
        residual: keras.KerasTensor,
        filters: int,
        kernel_size: int,
        name: str,
        num_copies: int,
    ) -> Copies:
        """Returns a block's output: convolution, residual addition and activation."""
        has_gate = self.options.se_ratio > 0
        is_whole = self.has_relu and not has_gate
        norm = dataclasses.replace(
            self.options.batch_norm,
            relu=is_whole,
            zero_gamma=self.options.zero_last_gamma,
            # With a gate, one is for the means and one for the gate.
            num_copies=2 if has_gate else num_copies if is_whole else 1,
        )
        conv = layers.ConvNorm(filters, kernel_size, 1, self.seed(), name, norm)
        if is_whole:
            return conv(x, residual)
        if not has_gate:
            activation = f"{name}_activation"
            return layers.Activation(self.options.activation, activation, num_copies)(
                conv(x, residual)
            )
        to_squeeze, x = conv(x)
        units = networks.num_squeezed(filters, self.options.se_ratio)
        means = layers.GlobalAvgPool(f"{name}_se_pool")(to_squeeze)
        hidden = layers.Dense(units, self.seed(), f"{name}_se_1", relu=True)(means)
        logits = layers.Dense(filters, self.seed(), f"{name}_se_2")(hidden)
        return layers.Gate(self.options.activation, f"{name}_gate", num_copies)(
            x, logits, residual
        )

    def block(
        self,
        copies: Copies,
        filters: int,
        stride: int,
        is_projected: bool,
        name: str,
        num_copies: int,
    ) -> Copies:
        """Returns the output of a block with two 3x3 convolutions, or a bottleneck.

        That is a 1x1, a 3x3 and an expanding 1x1 convolution.
        """
        num_outputs = filters
        if self.is_bottleneck:
            num_outputs *= networks.BOTTLENECK_EXPANSION
        x, residual = copies
        if is_projected:
            of_shortcut = f"{name}_shortcut"
            is_pooled = self.is_resnet_d and stride == 2
            if is_pooled:
                residual = layers.AvgPool(name=f"{of_shortcut}_pool")(residual)
            step = 1 if is_pooled else stride
            residual = self.conv(residual, num_outputs, 1, step, of_shortcut, False)
        if not self.is_bottleneck:
            x = self.conv(x, filters, 3, stride, f"{name}_1")
            return self.last_conv(x, residual, filters, 3, f"{name}_2", num_copies)
        x = self.conv(x, filters, 1, 1, f"{name}_1")
        x = self.conv(x, filters, 3, stride, f"{name}_2")
        return self.last_conv(x, residual, num_outputs, 1, f"{name}_3", num_copies)
