"""The names of the networks that can be built. Needs no TensorFlow."""

# Number of layers -> (number of blocks in each stage, whether they are bottlenecks).
RESNET_BLOCKS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
RESNET_DEPTHS = tuple(RESNET_BLOCKS)
STAGE_FILTERS = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4
CIFAR_RESNET_DEPTHS = (8, 20)

# Networks for CIFAR-10's images of 32 pixels, cropped to 28 for Inception, and for
# MNIST's of 28; the others are for ImageNet's of 224.
MODELS_FOR_28_PIXELS = ("inception_bn_28", "mlp")
CIFAR_MODELS = (
    *(f"resnet{depth}" for depth in CIFAR_RESNET_DEPTHS),
    *("resnet9", "airbench94", "alexnet", "alexnet_bn"),
    *MODELS_FOR_28_PIXELS,
)
MODELS_WITH_RESIDUAL_BLOCKS = (
    *(f"resnet{depth}" for depth in CIFAR_RESNET_DEPTHS),
    *(f"resnet{depth}{variant}" for variant in ("", "d") for depth in RESNET_DEPTHS),
)
MODELS = (
    *CIFAR_MODELS,
    *MODELS_WITH_RESIDUAL_BLOCKS[len(CIFAR_RESNET_DEPTHS) :],
    "inception_bn",
)

# The networks whose details `resnet_variant` chooses, and the programs that have them.
RESNETS = tuple(f"resnet{depth}" for depth in RESNET_DEPTHS)
RESNET_VARIANTS = ("tpu", "torchvision")
# The networks that can have other activations, squeeze-and-excitation and BlurPool.
RESNETS_WITH_PARTS = MODELS_WITH_RESIDUAL_BLOCKS[len(CIFAR_RESNET_DEPTHS) :]
ACTIVATIONS = ("relu", "silu", "mish")
# Which strided layers blur their inputs: none, convolutions, or the max pooling, too.
BLUR_POOLS = ("none", "convolutions", "all")
# The last layer of these has no bias.
MODELS_WITHOUT_LAST_BIAS = ("resnet9", "airbench94", "alexnet_bn")
MODELS_WITHOUT_BATCH_NORM = ("alexnet", "mlp")
# The dense layers of these fit one size of images.
MODELS_OF_ONE_IMAGE_SIZE = ("alexnet", "mlp")

# The networks with weights that are computed from the training images.
MODELS_WITH_IMAGE_STATISTICS = ("airbench94",)

# The distributions of the initial weights. Those of "uniform_x" are uniform from -x to
# x.
UNIFORM_LIMITS = {"uniform_0.01": 0.01, "uniform_0.07": 0.07}
INITIALIZATIONS = ("variance_scaling", "pytorch", "dirac", *UNIFORM_LIMITS)

# The dtype that a network computes in, by the name of the precision.
COMPUTE_DTYPES = {"float32": "float32", "bf16": "bfloat16"}


def depth_of(resnet: str) -> int:
    """Returns the number of layers of a ResNet or ResNet-D."""
    return int(resnet.removeprefix("resnet").removesuffix("d"))


def default_image_size(model: str) -> int:
    """Returns the height and width in pixels of the images that a network is for."""
    if model in MODELS_FOR_28_PIXELS:
        return 28
    return 32 if model in CIFAR_MODELS else 224
