"""The networks: one table of their names, modules, sizes, which a test counts."""

import functools
from typing import NamedTuple

# Number of layers -> (number of blocks in each stage, whether they are bottlenecks).
RESNET_BLOCKS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
STAGE_FILTERS = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4


class ModelRow(NamedTuple):
    """What is known of a network without building it."""

    module: str  # That of `resnet.models` whose `build` takes its name and options.
    num_body_parameters: int  # Trainable values in front of the last layer.
    num_class_parameters: int  # Those in the last layer, for one class.
    num_activations: int  # Outputs of the layers in front of it, for `image_size`.
    image_size: int = 224  # The side in pixels of the images that the network is for.
    depth: int = 0  # The number of layers of a ResNet; 0 of other networks.
    has_parts: bool = False  # Other activations, squeeze-and-excitation, BlurPool.
    has_variants: bool = False  # Whether `resnet_variant` chooses its details.
    has_batch_norm: bool = True
    has_last_bias: bool = True
    has_one_image_size: bool = False  # Whether its dense layers fit one size of images.
    has_image_statistics: bool = False  # Weights computed from training images.


def _resnet(depth: int, body: int, activations: int, is_d: bool = False) -> ModelRow:
    classifier = STAGE_FILTERS[-1]
    if RESNET_BLOCKS[depth][1]:
        classifier *= BOTTLENECK_EXPANSION
    return ModelRow(
        "resnet",
        body,
        classifier + 1,
        activations,
        depth=depth,
        has_parts=True,
        has_variants=not is_d,
    )


_airbench = functools.partial(
    ModelRow, "airbench", image_size=32, has_last_bias=False, has_image_statistics=True
)

MODELS = {
    "resnet8": ModelRow("cifar_resnet", 74_640, 65, 73_728, 32, depth=8),
    "resnet20": ModelRow("cifar_resnet", 269_072, 65, 188_416, 32, depth=20),
    "resnet9": ModelRow("resnet9", 6_568_000, 512, 376_832, 32, has_last_bias=False),
    "airbench94": _airbench(1_968_792, 256, 183_960),
    "airbench96": _airbench(9_910_296, 512, 362_008),
    "alexnet": ModelRow(
        "alexnet",
        23_231_296,
        4_097,
        51_200,
        32,
        has_batch_norm=False,
        has_one_image_size=True,
    ),
    "alexnet_bn": ModelRow("alexnet", 2_252_736, 256, 43_008, 32, has_last_bias=False),
    "inception_bn_28": ModelRow("inception", 1_649_456, 337, 363_776, 28),
    "mlp": ModelRow(
        "mlp", 108_736, 65, 192, 28, has_batch_norm=False, has_one_image_size=True
    ),
    "resnet18": _resnet(18, 11_180_736, 2_684_416),
    "resnet34": _resnet(34, 21_288_896, 3_938_816),
    "resnet50": _resnet(50, 23_508_032, 11_113_984),
    "resnet101": _resnet(101, 42_500_160, 16_231_936),
    "resnet152": _resnet(152, 58_143_808, 22_554_112),
    "resnet200": _resnet(200, 62_624_832, 32_187_904),
    "resnet18d": _resnet(18, 11_199_968, 3_487_232, is_d=True),
    "resnet34d": _resnet(34, 21_308_128, 4_741_632, is_d=True),
    "resnet50d": _resnet(50, 23_527_264, 11_916_800, is_d=True),
    "resnet101d": _resnet(101, 42_519_392, 17_034_752, is_d=True),
    "resnet152d": _resnet(152, 58_163_040, 23_356_928, is_d=True),
    "resnet200d": _resnet(200, 62_644_064, 32_990_720, is_d=True),
    "inception_bn": ModelRow("inception", 10_270_240, 1_025, 3_736_544),
}
ACTIVATIONS = ("relu", "silu", "mish")
# Initial weights are uniform from -x to x.
UNIFORM_LIMITS = {"uniform_0.01": 0.01, "uniform_0.07": 0.07}
# The dtype that a network computes in, by the name of the precision.
COMPUTE_DTYPES = {"float32": "float32", "bf16": "bfloat16"}


def num_parameters(model: str, num_classes: int, se_ratio: float = 0.0) -> int:
    """Returns the number of trainable values of a network of `MODELS`."""
    row = MODELS[model]
    number = row.num_body_parameters + num_classes * row.num_class_parameters
    if not se_ratio:
        return number
    blocks, is_bottleneck = RESNET_BLOCKS[row.depth]
    for num_blocks, filters in zip(blocks, STAGE_FILTERS, strict=True):
        channels = filters * (BOTTLENECK_EXPANSION if is_bottleneck else 1)
        units = num_squeezed(channels, se_ratio)
        number += num_blocks * (2 * channels * units + units + channels)
    return number


def num_squeezed(channels: int, se_ratio: float) -> int:
    """Returns the units of the first dense layer of squeeze-and-excitation.

    Source: tensorflow/tpu, models/official/resnet/resnet_layers.py, squeeze_excitation.
    """
    return max(1, int(channels * se_ratio))


def num_activations(model: str, image_size: int) -> int:
    """Returns the number of values that layers put out for an image of this side."""
    scale = (image_size / MODELS[model].image_size) ** 2
    return round(MODELS[model].num_activations * scale)
