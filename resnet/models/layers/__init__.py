"""The layers of the networks, as `layers.ConvNorm` and so on.

The functions that they call are imported from their modules.
"""

from resnet.models.layers.activations import Activation, Gate, Gelu
from resnet.models.layers.base import (
    Add,
    Cast,
    Concat,
    Dense,
    Flatten,
    Layer,
    ScaledLinear,
    ZeroPadShortcut,
)
from resnet.models.layers.conv_norm import Conv, ConvNorm, PooledConvNorm, ProjectedPool
from resnet.models.layers.dropout import Dropout
from resnet.models.layers.pooling import (
    AvgPool,
    BlurPool,
    Classifier,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool,
)
from resnet.models.layers.whitening import Whitening

__all__ = [
    "Activation",
    "Add",
    "AvgPool",
    "BlurPool",
    "Cast",
    "Classifier",
    "Concat",
    "Conv",
    "ConvNorm",
    "Dense",
    "Dropout",
    "Flatten",
    "Gate",
    "Gelu",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "Layer",
    "MaxPool",
    "PooledConvNorm",
    "ProjectedPool",
    "ScaledLinear",
    "Whitening",
    "ZeroPadShortcut",
]
