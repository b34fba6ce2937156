"""Inception-BN for ImageNet's images, and a small one for images of 28 pixels.

Modules of parallel convolutions whose channels are concatenated; convolutions have a
bias, although normalization subtracts it again.

Source: Ioffe and Szegedy 2015, arXiv:1502.03167, in the form of dmlc/mxnet,
example/distributed-training (imagenet.py and cifar10.py), November 2015. Differences:
weights are initialized as in the other networks of this package, unless `models.build`
is told otherwise, and the last pool covers the whole feature map for any size of
images.
"""

import dataclasses
from typing import NamedTuple

import keras

from resnet.models import layers
from resnet.models.options import NetworkOptions


class Module(NamedTuple):
    """A module: filters of its branches, of which the concatenation is the output.

    A module of stride 2 has neither 1x1 convolutions nor a projection (both are 0); its
    pool is concatenated as it is.
    """

    name: str
    filters_1x1: int
    filters_3x3: tuple[int, int]  # Of a 1x1 convolution, and of a 3x3 one of it.
    filters_double: tuple[int, int]  # Of a 1x1 convolution, and of two 3x3 ones of it.
    pool: str  # "avg" or "max", over 3x3 windows.
    projection: int  # Filters of the 1x1 convolution of the pool.

    @property
    def stride(self) -> int:
        """The stride of the module."""
        return 1 if self.projection else 2


MODULES = (
    Module("3a", 64, (64, 64), (64, 96), "avg", 32),
    Module("3b", 64, (64, 96), (64, 96), "avg", 64),
    Module("3c", 0, (128, 160), (64, 96), "max", 0),
    Module("4a", 224, (64, 96), (96, 128), "avg", 128),
    Module("4b", 192, (96, 128), (96, 128), "avg", 128),
    Module("4c", 160, (128, 160), (128, 160), "avg", 128),
    Module("4d", 96, (128, 192), (160, 192), "avg", 128),
    Module("4e", 0, (128, 192), (192, 256), "max", 0),
    Module("5a", 352, (192, 320), (160, 224), "avg", 128),
    Module("5b", 352, (192, 320), (192, 224), "max", 128),
)
# Name, filters of the 1x1 and of the 3x3 convolution. Modules without the first have
# stride 2, and a max pool instead.
SMALL_MODULES = (
    ("3a", 32, 32),
    ("3b", 32, 48),
    ("3c", 0, 80),
    ("4a", 112, 48),
    ("4b", 96, 64),
    ("4c", 80, 80),
    ("4d", 48, 96),
    ("4e", 0, 96),
    ("5a", 176, 160),
    ("5b", 176, 160),
)
SMALL_STEM_FILTERS = 96


def build(
    name: str, images: keras.KerasTensor, options: NetworkOptions
) -> keras.KerasTensor:
    """Returns the float32 logits of float32 images, of 224 or 28 pixels by the name."""
    builder = _Builder(options)
    x = layers.Cast(options.compute_dtype, name="cast")(images)
    x = builder.small(x) if name == "inception_bn_28" else builder.large(x)
    return layers.Classifier(options.num_classes, builder.seed(), name="classifier")(x)


class _Builder:
    """Makes layers and modules; draws the seed of each layer in order."""

    def __init__(self, options: NetworkOptions) -> None:
        self.norm = dataclasses.replace(options.batch_norm, use_bias=True)
        self.seed = options.seeds()

    def large(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the features of images of 224 pixels."""
        x = self.conv(64, 7, 2, "stem_1")(x)
        x = layers.MaxPool(3, 2, name="stem_1_pool")(x)
        x = self.conv(64, 1, 1, "stem_2")(x)
        x = self.conv(192, 3, 1, "stem_3")(x)
        x = layers.MaxPool(3, 2, name="stem_3_pool")(x)
        for module in MODULES:
            x = self.module(x, module)
        return x

    def small(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the features of images of 28 pixels."""
        x = self.conv(SMALL_STEM_FILTERS, 3, 1, "stem")(x)
        for name, filters_1x1, filters_3x3 in SMALL_MODULES:
            if filters_1x1:
                first = self.conv(filters_1x1, 1, 1, f"{name}_1x1")(x)
                second = self.conv(filters_3x3, 3, 1, f"{name}_3x3")(x)
            else:
                first = self.conv(filters_3x3, 3, 2, f"{name}_3x3")(x)
                second = layers.MaxPool(3, 2, name=f"{name}_pool")(x)
            x = layers.Concat(name)([first, second])
        return x

    def conv(
        self,
        filters: int,
        kernel_size: int,
        stride: int,
        name: str,
        kind: type[layers.ConvNorm] = layers.ConvNorm,
    ) -> layers.ConvNorm:
        """Returns a convolution with bias, batch normalization and ReLU."""
        return kind(filters, kernel_size, stride, self.seed(), name, self.norm)

    def module(self, x: keras.KerasTensor, module: Module) -> keras.KerasTensor:
        """Returns the output of a module."""
        name, stride = module.name, module.stride
        branches = []
        if module.filters_1x1:
            branches.append(self.conv(module.filters_1x1, 1, 1, f"{name}_1x1")(x))
        reduction, filters = module.filters_3x3
        branch = self.conv(reduction, 1, 1, f"{name}_3x3_reduce")(x)
        branches.append(self.conv(filters, 3, stride, f"{name}_3x3")(branch))
        reduction, filters = module.filters_double
        branch = self.conv(reduction, 1, 1, f"{name}_double_reduce")(x)
        branch = self.conv(filters, 3, 1, f"{name}_double_1")(branch)
        branches.append(self.conv(filters, 3, stride, f"{name}_double_2")(branch))
        kind: type[layers.ConvNorm] = layers.ProjectedPool
        if module.pool == "max":
            x = layers.MaxPool(3, stride, name=f"{name}_pool")(x)
            kind = layers.ConvNorm
        if module.projection:
            x = self.conv(module.projection, 1, 1, f"{name}_projection", kind)(x)
        return layers.Concat(name)([*branches, x])
