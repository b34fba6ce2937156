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
) -> keras.Model:
    """Returns a new network: normalized float32 images in, float32 logits out.

    Args:
        name: "resnet9", or "resnet" and a depth: 18, 34, 50, 101, 152 or 200.
        num_classes: Length of the logits.
        image_size: Side of the images in pixels.
        batch_norm_decay: Of the moving averages; 0.95 as in the 24K recipe.
        compute_dtype: "float32" or "bfloat16"; the variables are float32 in both.
        seed: Of the initial weights.

    Raises:
        UserError: If there is no network of that name.
    """
    settings = (num_classes, image_size, batch_norm_decay, compute_dtype, seed)
    depths = {f"resnet{depth}": depth for depth in resnet.DEPTHS}
    if name == "resnet9":
        return resnet9.build(*settings)
    if name in depths:
        return resnet.build(depths[name], *settings)
    raise UserError(
        f"expected a model among resnet9, {', '.join(depths)}; got {name!r}"
    )
