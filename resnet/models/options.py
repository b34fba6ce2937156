"""What all networks can be built with."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The options of a network; each network ignores those of other kinds of networks.

    Attributes:
        num_classes: Number of logits.
        image_size: Height and width in pixels that `flops` counts the operations for,
            and the size of the images of "alexnet" and "mlp".
        compute_dtype: "float32" or "bfloat16"; variables are float32 in both cases.
        seed: Seed of the initial weights and of the dropout layers.
        batch_norm_momentum: Momentum of BatchNorm's moving averages, in [0, 1); 0.95 is
            that of the 24K recipe.
        batch_norm_epsilon: Constant that BatchNorm adds to the variance.
        fixed_gamma: Whether BatchNorm's gamma is the constant 1 and not a variable,
            which excludes `zero_last_gamma`.
        zero_last_gamma: Whether gamma of the last normalization in each residual block
            is initialized to 0 instead of 1, so that the block starts as the identity.
            It matters to networks with residual blocks only.
        initialization: Distribution of the initial weights, one of
            `names.INITIALIZATIONS`.
        resnet_variant: The program whose details `names.RESNETS` have, one of
            `names.RESNET_VARIANTS`; other networks have one variant only.
        activation: The activation of `names.RESNETS_WITH_PARTS`, one of
            `names.ACTIVATIONS`.
        se_ratio: The ratio of squeeze-and-excitation of the same networks, at most 1; 0
            for none.
        blur_pool: The strided layers of the same networks that blur, one of
            `names.BLUR_POOLS`.
        classifier_bias_init: The initial biases of the last layer; 0 leaves them as
            `initialization` says.
    """

    num_classes: int = 1000
    image_size: int = 224
    compute_dtype: str = "float32"
    seed: int = 0
    batch_norm_momentum: float = 0.95
    batch_norm_epsilon: float = 1e-5
    fixed_gamma: bool = False
    zero_last_gamma: bool = True
    initialization: str = "variance_scaling"
    resnet_variant: str = "tpu"
    activation: str = "relu"
    se_ratio: float = 0.0
    blur_pool: str = "none"
    classifier_bias_init: float = 0.0

    @property
    def batch_norm(self) -> dict[str, Any]:
        """The arguments of `layers.ConvNorm` about its batch normalization."""
        return {
            "batch_norm_momentum": self.batch_norm_momentum,
            "epsilon": self.batch_norm_epsilon,
            "fixed_gamma": self.fixed_gamma,
        }

    def seeds(self) -> Callable[[], int]:
        """Returns a function that draws the seed of the next layer."""
        return functools.partial(random.Random(self.seed).getrandbits, 31)
