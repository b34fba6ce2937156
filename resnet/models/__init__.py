"""Builds the networks by name. Keras and TensorFlow are imported when one is built."""

from typing import TYPE_CHECKING, Any

from resnet.base.errors import UserError
from resnet.models import names
from resnet.models.options import NetworkOptions

if TYPE_CHECKING:
    import keras


def build(
    name: str, num_classes: int = 1000, image_size: int = 224, **options: Any
) -> "keras.Model":
    """Returns a new Keras model from normalized float32 images to float32 logits.

    Its inputs are `[batch, height, width, 3]` with any height and width, those of
    "alexnet" and "mlp" with `image_size` only.

    Args:
        name: Name of the network, one of `names.MODELS`.
        num_classes: Number of logits.
        image_size: As in `NetworkOptions`.
        **options: The other options of `NetworkOptions`.

    Raises:
        UserError: If there is no network of that name.
        ValueError: If the last layer lacks the biases for an initial logit.
    """
    if name not in names.MODELS:
        raise UserError(
            f"expected a model among {', '.join(names.MODELS)}; got {name!r}"
        )
    import keras

    from resnet.models import (
        airbench,
        alexnet,
        cifar_resnet,
        inception,
        mlp,
        resnet,
        resnet9,
    )
    from resnet.models.initialization import initialize, initialize_last_bias

    chosen = NetworkOptions(num_classes=num_classes, image_size=image_size, **options)
    others = {
        "resnet9": resnet9.build,
        "airbench94": airbench.build,
        "alexnet": alexnet.build,
        "alexnet_bn": alexnet.build_with_batch_norm,
        "inception_bn": inception.build,
        "inception_bn_28": inception.build_small,
        "mlp": mlp.build,
    }
    if name in others:
        model = others[name](chosen)
    else:
        depth = names.depth_of(name)
        if depth in names.CIFAR_RESNET_DEPTHS:
            model = cifar_resnet.build(depth, chosen)
        else:
            model = resnet.build(depth, chosen, is_resnet_d=name.endswith("d"))
    initialize(model, chosen.initialization, chosen.seed)
    if chosen.classifier_bias_init:
        initialize_last_bias(model, chosen.classifier_bias_init)
    if name in names.MODELS_OF_ONE_IMAGE_SIZE:
        return model
    # Without this Keras refuses images of any size but `image_size`.
    model.input_spec = keras.InputSpec(shape=(None, None, None, 3))
    return model
