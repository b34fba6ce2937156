"""The layers of the networks, as `layers.ConvNorm` and so on.

The functions that they call are imported from their modules.
"""

from resnet.models.layers.activations import Activation, Gate
from resnet.models.layers.base import Cast, Layer
from resnet.models.layers.blur_pool import BlurPool
from resnet.models.layers.branches import Add, Concat, ZeroPadShortcut
from resnet.models.layers.classifiers import Classifier, ScaledLinear
from resnet.models.layers.conv_norm import ConvNorm
from resnet.models.layers.dropout import Dropout
from resnet.models.layers.gelu import Gelu
from resnet.models.layers.plain import Conv, Dense, Flatten
from resnet.models.layers.pooled_conv_norm import PooledConvNorm, ProjectedPool
from resnet.models.layers.pooling import AvgPool, GlobalAvgPool, GlobalMaxPool, MaxPool
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
