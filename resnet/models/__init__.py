"""The networks, by name. Keras and TensorFlow are loaded when one is built."""

from typing import TYPE_CHECKING

from data_prep.errors import UserError
from resnet.models import names

if TYPE_CHECKING:
    import keras


def build(
    name: str,
    num_classes: int = 1000,
    image_size: int = 224,
    batch_norm_decay: float = 0.95,
    compute_dtype: str = "float32",
    seed: int = 0,
    zero_last_gamma: bool = True,
) -> "keras.Model":
    """Returns a new network: normalized float32 images in, float32 logits out.

    It takes images of any size, `[batch, height, width, 3]`.

    Args:
        name: One of `names.MODELS`; that of a ResNet-D ends in "d".
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
    if name not in names.MODELS:
        raise UserError(
            f"expected a model among {', '.join(names.MODELS)}; got {name!r}"
        )
    import keras

    from resnet.models import resnet, resnet9

    settings = (num_classes, image_size, batch_norm_decay, compute_dtype, seed)
    if name == "resnet9":
        model = resnet9.build(*settings)
    else:
        depth = int(name.removeprefix("resnet").removesuffix("d"))
        model = resnet.build(depth, *settings, zero_last_gamma, name.endswith("d"))
    # By itself Keras refuses all sizes but that of its input; the layers take any.
    model.input_spec = keras.InputSpec(shape=(None, None, None, 3))
    return model
