"""How many parameters each network trains. Needs no TensorFlow.

The numbers are those of the networks that `models.build` makes for images of their
default size, with a trained gamma in each batch normalization.
"""

from typing import NamedTuple

BYTES_PER_PARAMETER = 4  # Variables and gradients are float32.


class Parameters(NamedTuple):
    """The trained variables of a network whose classifier is left out.

    Attributes:
        kernel_values: The values of all kernels.
        kernel_sides: The sum of rows and columns of the kernels, each taken as a matrix
            whose columns are its last axis: the values of an approximation of rank 1.
        vector_values: The values of all biases, gammas and betas.
        num_variables: The number of kernels and vectors.
        num_features: The number of inputs of the classifier.
        has_bias: Whether the classifier has a bias.
    """

    kernel_values: int
    kernel_sides: int
    vector_values: int
    num_variables: int
    num_features: int
    has_bias: bool = True

    def with_classifier(self, num_classes: int) -> "Parameters":
        """Returns the same of the whole network."""
        bias = num_classes if self.has_bias else 0
        return self._replace(
            kernel_values=self.kernel_values + self.num_features * num_classes,
            kernel_sides=self.kernel_sides + self.num_features + num_classes,
            vector_values=self.vector_values + bias,
            num_variables=self.num_variables + 1 + self.has_bias,
        )


# By the names of `names.MODELS`.
_WITHOUT_CLASSIFIER = {
    "resnet8": Parameters(74_160, 1_851, 480, 21, 64),
    "resnet20": Parameters(267_696, 6_331, 1_376, 57, 64),
    "resnet9": Parameters(6_563_520, 17_819, 4_480, 24, 512, False),
    "alexnet": Parameters(23_221_952, 22_555, 9_344, 14, 4096),
    "alexnet_bn": Parameters(2_250_432, 9_243, 2_304, 15, 256, False),
    "inception_bn_28": Parameters(1_644_320, 17_515, 5_136, 76, 336),
    "mlp": Parameters(108_544, 1_104, 192, 4, 64),
    "resnet18": Parameters(11_171_008, 36_051, 9_728, 63, 512),
    "resnet34": Parameters(21_271_744, 73_171, 17_152, 111, 512),
    "resnet50": Parameters(23_454_912, 79_443, 53_120, 159, 2048),
    "resnet101": Parameters(42_394_816, 166_483, 105_344, 312, 2048),
    "resnet152": Parameters(57_992_384, 243_283, 151_424, 465, 2048),
    "resnet200": Parameters(62_448_832, 284_243, 176_000, 609, 2048),
    "resnet18d": Parameters(11_190_112, 36_571, 9_856, 69, 512),
    "resnet34d": Parameters(21_290_848, 73_691, 17_280, 117, 512),
    "resnet50d": Parameters(23_474_016, 79_963, 53_248, 165, 2048),
    "resnet101d": Parameters(42_413_920, 167_003, 105_472, 318, 2048),
    "resnet152d": Parameters(58_011_488, 243_803, 151_552, 471, 2048),
    "resnet200d": Parameters(62_467_936, 284_763, 176_128, 615, 2048),
    "inception_bn": Parameters(10_240_192, 68_115, 30_048, 276, 1024),
}


def parameters(model: str, num_classes: int) -> Parameters:
    """Returns the trained variables of a network, those of its classifier included.

    Args:
        model: The name of the network, one of `names.MODELS`.
        num_classes: The number of logits.
    """
    return _WITHOUT_CLASSIFIER[model].with_classifier(num_classes)


def count(model: str, num_classes: int) -> int:
    """Returns the number of trained values of a network.

    Args:
        model: The name of the network, one of `names.MODELS`.
        num_classes: The number of logits.
    """
    found = parameters(model, num_classes)
    return found.kernel_values + found.vector_values


def gradient_bytes(model: str, num_classes: int) -> int:
    """Returns the bytes of a network's gradients, float32.

    Args:
        model: The name of the network, one of `names.MODELS`.
        num_classes: The number of logits.
    """
    return BYTES_PER_PARAMETER * count(model, num_classes)
