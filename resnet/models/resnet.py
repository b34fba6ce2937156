"""ResNet of 18 to 200 layers ("v1.5": the stride of a bottleneck is in its 3x3).

Source: He et al. 2015, arXiv:1512.03385, as in the TPU recipe (tensorflow/tpu,
models/official/resnet/resnet_model.py): a projection in the first block of every stage,
the first one included; the last normalization of a block starts at 0.

ResNet-D has three 3x3 convolutions for the first 7x7, and its projections of stride 2
average four places rather than leave out three of them. Source: He et al. 2018,
arXiv:1812.01187, figures 2c and 2d, as the TPU recipe's use_resnetd_stem and
resnetd_shortcut; here the projections of blocks without a bottleneck do so too.
"""

import random
from collections.abc import Iterator
from typing import Any

import keras

from resnet.models import layers

# Layers -> (blocks of each stage, whether they are bottlenecks).
DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
STAGE_FILTERS = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4

Copies = Any  # A KerasTensor, or a list of equal ones.


def build(
    depth: int,
    num_classes: int,
    image_size: int,
    batch_norm_decay: float,
    compute_dtype: str,
    seed: int,
    zero_last_gamma: bool = True,
    is_resnet_d: bool = False,
) -> keras.Model:
    """Returns the network: float32 images in, float32 logits out.

    Args:
        depth: A key of `DEPTHS`.
        num_classes: Length of the logits.
        image_size: Side in pixels of the images that the layers' shapes are told for.
        batch_norm_decay: Of the moving averages.
        compute_dtype: "float32" or "bfloat16"; variables are float32.
        seed: Of the initial weights.
        zero_last_gamma: Whether the last normalization of a block starts at 0.
        is_resnet_d: Whether it is a ResNet-D.
    """
    blocks, is_bottleneck = DEPTHS[depth]
    generator = random.Random(seed)
    seeds = iter(lambda: generator.getrandbits(31), None)
    parts = _Parts(batch_norm_decay, zero_last_gamma, is_resnet_d, seeds)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = layers.Cast(compute_dtype, name="cast")(inputs)
    x = parts.stem(x)
    x = layers.MaxPool(3, 2, name="stem_pool")(x)
    copies = [x, x]  # For the convolutions of the next block and for its shortcut.
    for stage, (num_blocks, filters) in enumerate(
        zip(blocks, STAGE_FILTERS, strict=True), start=1
    ):
        for block in range(1, num_blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            make = parts.bottleneck if is_bottleneck else parts.basic
            is_last = (stage, block) == (len(blocks), num_blocks)
            copies = make(
                copies,
                filters,
                stride,
                block == 1,
                f"stage{stage}_block{block}",
                num_copies=1 if is_last else 2,
            )
    seed = next(parts.seeds)
    logits = layers.Classifier(num_classes, seed, name="classifier")(copies)
    return keras.Model(
        inputs, logits, name=f"resnet{depth}{'d' if is_resnet_d else ''}"
    )


class _Parts:
    """The pieces of a ResNet, each variable's seed drawn in turn."""

    def __init__(
        self,
        batch_norm_decay: float,
        zero_last_gamma: bool,
        is_resnet_d: bool,
        seeds: Iterator[int],
    ) -> None:
        self.batch_norm_decay = batch_norm_decay
        self.zero_last_gamma = zero_last_gamma
        self.is_resnet_d = is_resnet_d
        self.seeds = seeds

    def conv(
        self,
        x: keras.KerasTensor,
        filters: int,
        kernel_size: int,
        stride: int,
        name: str,
        relu: bool = True,
    ) -> keras.KerasTensor:
        """Returns a normalized convolution of `x`."""
        return layers.ConvNorm(
            filters,
            kernel_size,
            stride,
            self.batch_norm_decay,
            next(self.seeds),
            name,
            relu=relu,
        )(x)

    def stem(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns 64 channels, made of the images at half their size."""
        if not self.is_resnet_d:
            return self.conv(x, 64, 7, 2, "stem")
        x = self.conv(x, 32, 3, 2, "stem_1")
        x = self.conv(x, 32, 3, 1, "stem_2")
        return self.conv(x, 64, 3, 1, "stem_3")

    def last(
        self,
        x: keras.KerasTensor,
        residual: keras.KerasTensor,
        filters: int,
        kernel_size: int,
        name: str,
        num_copies: int,
    ) -> Copies:
        """Returns the end of a block, as often as it is needed."""
        return layers.ConvNorm(
            filters,
            kernel_size,
            1,
            self.batch_norm_decay,
            next(self.seeds),
            name,
            zero_gamma=self.zero_last_gamma,
            num_copies=num_copies,
        )(x, residual)

    def shortcut(
        self,
        x: keras.KerasTensor,
        filters: int,
        stride: int,
        is_first: bool,
        name: str,
    ) -> keras.KerasTensor:
        if not is_first:
            return x
        if self.is_resnet_d and stride == 2:
            x = layers.AvgPool(name=f"{name}_shortcut_pool")(x)
            stride = 1
        return self.conv(x, filters, 1, stride, f"{name}_shortcut", relu=False)

    def basic(
        self,
        copies: Copies,
        filters: int,
        stride: int,
        is_first: bool,
        name: str,
        num_copies: int,
    ) -> Copies:
        """Returns the output of a block of two 3x3 convolutions."""
        x, shortcut = copies
        residual = self.shortcut(shortcut, filters, stride, is_first, name)
        x = self.conv(x, filters, 3, stride, f"{name}_1")
        return self.last(x, residual, filters, 3, f"{name}_2", num_copies)

    def bottleneck(
        self,
        copies: Copies,
        filters: int,
        stride: int,
        is_first: bool,
        name: str,
        num_copies: int,
    ) -> Copies:
        """Returns the output of a 1x1, a 3x3 and an expanding 1x1 convolution."""
        expanded = BOTTLENECK_EXPANSION * filters
        x, shortcut = copies
        residual = self.shortcut(shortcut, expanded, stride, is_first, name)
        x = self.conv(x, filters, 1, 1, f"{name}_1")
        x = self.conv(x, filters, 3, stride, f"{name}_2")
        return self.last(x, residual, expanded, 1, f"{name}_3", num_copies)
