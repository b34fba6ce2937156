"""The layers of the networks, as `layers.ConvNorm` and so on.

The functions that they call are imported from their modules.
"""

from resnet.models.layers.activations import Activation as Activation
from resnet.models.layers.activations import Gate as Gate
from resnet.models.layers.activations import Gelu as Gelu
from resnet.models.layers.base import Add as Add
from resnet.models.layers.base import Cast as Cast
from resnet.models.layers.base import Concat as Concat
from resnet.models.layers.base import Dense as Dense
from resnet.models.layers.base import Flatten as Flatten
from resnet.models.layers.base import Layer as Layer
from resnet.models.layers.base import ScaledLinear as ScaledLinear
from resnet.models.layers.base import ZeroPadShortcut as ZeroPadShortcut
from resnet.models.layers.conv_norm import Conv as Conv
from resnet.models.layers.conv_norm import ConvNorm as ConvNorm
from resnet.models.layers.conv_norm import PooledConvNorm as PooledConvNorm
from resnet.models.layers.conv_norm import ProjectedPool as ProjectedPool
from resnet.models.layers.dropout import Dropout as Dropout
from resnet.models.layers.pooling import AvgPool as AvgPool
from resnet.models.layers.pooling import BlurPool as BlurPool
from resnet.models.layers.pooling import Classifier as Classifier
from resnet.models.layers.pooling import GlobalAvgPool as GlobalAvgPool
from resnet.models.layers.pooling import GlobalMaxPool as GlobalMaxPool
from resnet.models.layers.pooling import MaxPool as MaxPool
from resnet.models.layers.whitening import Whitening as Whitening
