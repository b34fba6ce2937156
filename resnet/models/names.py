"""The names of the networks that can be built. Needs no TensorFlow."""

RESNET_DEPTHS = (18, 34, 50, 101, 152, 200)
CIFAR_RESNET_DEPTHS = (8, 20)

# Networks for CIFAR-10's images of 32 pixels; the others are for ImageNet's of 224.
CIFAR_MODELS = (
    *(f"resnet{depth}" for depth in CIFAR_RESNET_DEPTHS),
    *("resnet9", "alexnet", "alexnet_bn"),
)

MODELS = (
    *CIFAR_MODELS,
    *(f"resnet{depth}{variant}" for variant in ("", "d") for depth in RESNET_DEPTHS),
)

# The distributions of the initial weights.
INITIALIZATIONS = ("variance_scaling", "pytorch")

# The dtype that a network computes in, by the name of the precision.
COMPUTE_DTYPES = {"float32": "float32", "bf16": "bfloat16"}
