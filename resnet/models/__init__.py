"""The networks, by name."""

import keras

from data_prep.errors import UserError
from resnet.models import resnet, resnet9


def build(
    name: str,
    num_classes: int = 1000,
    image_size: int = 224,
    batch_norm_decay: float = 0.95,
    compute_dtype: str = "float32",
    seed: int = 0,
    zero_last_gamma: bool = True,
) -> keras.Model:
    """Returns a new network: normalized float32 images in, float32 logits out.

    It takes images of any size, `[batch, height, width, 3]`.

    Args:
        name: "resnet9", or "resnet" and a depth: 18, 34, 50, 101, 152 or 200; that of a
            ResNet-D ends in "d".
        num_classes: Length of the logits.
        image_size: Side in pixels of the images that `flops` counts the operations for.
        batch_norm_decay: Of the moving averages; 0.95 as in the 24K recipe.
        compute_dtype: "float32" or "bfloat16"; the variables are float32 in both.
        seed: Of the initial weights.
        zero_last_gamma: Whether the last normalization of a block starts at 0, so that
            the block is first left out, rather than at 1; ResNet9 has none.

    Raises:
        UserError: If there is no network of that name.
    """
    settings = (num_classes, image_size, batch_norm_decay, compute_dtype, seed)
    resnets = {
        f"resnet{depth}{ending}": (depth, ending == "d")
        for ending in ("", "d")
        for depth in resnet.DEPTHS
    }
    if name == "resnet9":
        model = resnet9.build(*settings)
    elif name in resnets:
        depth, is_resnet_d = resnets[name]
        model = resnet.build(depth, *settings, zero_last_gamma, is_resnet_d)
    else:
        raise UserError(
            f"expected a model among resnet9, {', '.join(resnets)}; got {name!r}"
        )
    # By itself Keras refuses all sizes but that of its input; the layers take any.
    model.input_spec = keras.InputSpec(shape=(None, None, None, 3))
    return model
