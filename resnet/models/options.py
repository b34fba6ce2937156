"""What all networks can be built with."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

EPSILON = 1e-5  # The TPU recipe's.


@dataclass(frozen=True, kw_only=True)
class NormOptions:
    """How a `ConvNorm` normalizes the results of its convolution.

    It returns `num_copies` references to its output. With one for each consuming layer,
    the gradients of all of them are summed inside this layer's backward op instead of
    by an op of their own.
    """

    momentum: float = 0.95  # Of the moving averages, in [0, 1); the 24K recipe's.
    epsilon: float = EPSILON  # Added to the variance before the square root.
    fixed_gamma: bool = False  # Gamma, the scale, is the constant 1 and no variable.
    zero_gamma: bool = False  # Gamma is initialized to 0 instead of 1.
    use_bias: bool = False  # The convolution has a trainable bias, initialized to 0.
    relu: bool = True
    num_copies: int = 1

    def __post_init__(self) -> None:
        """Refuses a gamma that is fixed and 0."""
        if self.zero_gamma and self.fixed_gamma:
            raise ValueError(
                "expected at most one of zero_gamma and fixed_gamma, got both; a fixed"
                " gamma is always 1"
            )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The options of a network; each network ignores those of other kinds of networks.

    Those with the name of a setting are described where it is declared
    (`config.recipe`). The image size is that which `flops` counts the operations for,
    and that of the images of networks with `has_one_image_size`.
    """

    num_classes: int = 1000
    image_size: int = 224
    compute_dtype: str = "float32"  # Or "bfloat16"; variables are float32 in any case.
    seed: int = 0  # Of the initial weights and of the dropout layers.
    batch_norm_momentum: float = NormOptions.momentum
    batch_norm_epsilon: float = EPSILON
    fixed_gamma: bool = False
    zero_last_gamma: bool = True
    initialization: str = "variance_scaling"
    resnet_variant: str = "tpu"
    activation: str = "relu"
    se_ratio: float = 0.0
    blur_pool: str = "none"
    classifier_bias_init: float = 0.0  # 0 leaves them as `initialization` says.

    @property
    def batch_norm(self) -> NormOptions:
        """How the convolutions of the network normalize, unless they are special."""
        return NormOptions(
            momentum=self.batch_norm_momentum,
            epsilon=self.batch_norm_epsilon,
            fixed_gamma=self.fixed_gamma,
        )

    def seeds(self) -> Callable[[], int]:
        """Returns a function that draws the seed of the next layer."""
        return functools.partial(random.Random(self.seed).getrandbits, 31)
