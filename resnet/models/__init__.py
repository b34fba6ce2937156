"""Builds the networks by name. Keras and TensorFlow are imported when one is built."""

import importlib
from typing import TYPE_CHECKING, Any

from resnet.base import names
from resnet.base.errors import UserError
from resnet.config.networks import MODELS
from resnet.models.options import NetworkOptions

if TYPE_CHECKING:
    import keras


def build(
    name: str, num_classes: int = 1000, image_size: int = 224, **options: Any
) -> "keras.Model":
    """Returns a new Keras model from normalized float32 images to float32 logits.

    Its inputs are `[batch, height, width, 3]` with any height and width; those of
    networks of one image size with `image_size` only. The options are those of
    `NetworkOptions`. Raises UserError if there is no network of that name, and
    ValueError if the classifier lacks the biases for an initial logit.
    """
    if name not in MODELS:
        raise UserError(names.unknown("the network", name, MODELS, "--helpfull"))
    import keras

    from resnet.models.initialization import initialize, initialize_last_bias

    chosen = NetworkOptions(num_classes=num_classes, image_size=image_size, **options)
    module = importlib.import_module(f"resnet.models.{MODELS[name].module}")
    images = keras.Input((image_size, image_size, 3), name="images")
    model = keras.Model(images, module.build(name, images, chosen), name=name)
    initialize(model, chosen.initialization, chosen.seed)
    if chosen.classifier_bias_init:
        initialize_last_bias(model, chosen.classifier_bias_init)
    if not MODELS[name].has_one_image_size:
        # Without this Keras refuses images of any size but `image_size`.
        model.input_spec = keras.InputSpec(shape=(None, None, None, 3))
    return model
