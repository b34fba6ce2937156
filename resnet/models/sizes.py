"""The sizes of the networks: parameters and activations. Needs no TensorFlow.

They are tables, since counting them takes the network. A test counts them.
"""

from dataclasses import dataclass

from resnet.models import names


@dataclass(frozen=True)
class Size:
    """The size of a network.

    Attributes:
        num_body_parameters: The number of trainable values in front of the last layer.
        num_class_parameters: The number of those in the last layer, for one class.
        num_activations: The number of values that the convolutions and dense layers in
            front of the last layer put out, for one image of the network's default
            size.
    """

    num_body_parameters: int
    num_class_parameters: int
    num_activations: int


SIZES = {
    "resnet8": Size(74_640, 65, 73_728),
    "resnet20": Size(269_072, 65, 188_416),
    "resnet9": Size(6_568_000, 512, 376_832),
    "airbench94": Size(1_968_792, 256, 183_960),
    "alexnet": Size(23_231_296, 4_097, 51_200),
    "alexnet_bn": Size(2_252_736, 256, 43_008),
    "inception_bn_28": Size(1_649_456, 337, 363_776),
    "mlp": Size(108_736, 65, 192),
    "resnet18": Size(11_180_736, 513, 2_684_416),
    "resnet34": Size(21_288_896, 513, 3_938_816),
    "resnet50": Size(23_508_032, 2_049, 11_113_984),
    "resnet101": Size(42_500_160, 2_049, 16_231_936),
    "resnet152": Size(58_143_808, 2_049, 22_554_112),
    "resnet200": Size(62_624_832, 2_049, 32_187_904),
    "resnet18d": Size(11_199_968, 513, 3_487_232),
    "resnet34d": Size(21_308_128, 513, 4_741_632),
    "resnet50d": Size(23_527_264, 2_049, 11_916_800),
    "resnet101d": Size(42_519_392, 2_049, 17_034_752),
    "resnet152d": Size(58_163_040, 2_049, 23_356_928),
    "resnet200d": Size(62_644_064, 2_049, 32_990_720),
    "inception_bn": Size(10_270_240, 1_025, 3_736_544),
}


def num_parameters(model: str, num_classes: int, se_ratio: float = 0.0) -> int:
    """Returns the number of trainable values of a network.

    Args:
        model: The name of the network, one of `names.MODELS`.
        num_classes: The number of its classes.
        se_ratio: The ratio of squeeze-and-excitation; 0 for none.
    """
    size = SIZES[model]
    number = size.num_body_parameters + num_classes * size.num_class_parameters
    if not se_ratio:
        return number
    blocks, is_bottleneck = names.RESNET_BLOCKS[names.depth_of(model)]
    for num_blocks, filters in zip(blocks, names.STAGE_FILTERS, strict=True):
        channels = filters * (names.BOTTLENECK_EXPANSION if is_bottleneck else 1)
        units = num_squeezed(channels, se_ratio)
        number += num_blocks * (2 * channels * units + units + channels)
    return number


def num_squeezed(channels: int, se_ratio: float) -> int:
    """Returns the units of the first dense layer of squeeze-and-excitation.

    Args:
        channels: The number of channels of a block.
        se_ratio: The ratio of the two, above 0 and at most 1.

    Source: tensorflow/tpu, models/official/resnet/resnet_layers.py, squeeze_excitation.
    """
    return max(1, int(channels * se_ratio))


def num_activations(model: str, image_size: int) -> int:
    """Returns the number of values that the convolutions put out for an image.

    Args:
        model: The name of the network.
        image_size: The height and width of the image in pixels.
    """
    scale = (image_size / names.default_image_size(model)) ** 2
    return round(SIZES[model].num_activations * scale)
