"""The names of the networks that can be built. Needs no TensorFlow."""

RESNET_DEPTHS = (18, 34, 50, 101, 152, 200)

MODELS = (
    "resnet9",
    *(f"resnet{depth}{variant}" for variant in ("", "d") for depth in RESNET_DEPTHS),
)
