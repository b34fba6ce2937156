"""The sizes of the networks: parameters and activations. Needs no TensorFlow.

They are tables, since counting them takes the network. A test counts them.
"""

from dataclasses import dataclass

from resnet.models import names

_FLOAT_BYTES = 4


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
    "resnet50": Size(23_508_032, 2049, 11_113_984),
}


def num_parameters(model: str, num_classes: int) -> int:
    """Returns the number of trainable values of a network.

    Args:
        model: The name of the network, one of `names.MODELS`.
        num_classes: The number of its classes.
    """
    size = SIZES[model]
    return size.num_body_parameters + num_classes * size.num_class_parameters


def gradient_bytes(model: str, num_classes: int) -> int:
    """Returns the bytes of the gradients of a step, which are float32."""
    return _FLOAT_BYTES * num_parameters(model, num_classes)


def num_activations(model: str, image_size: int) -> int:
    """Returns the number of values that the convolutions put out for an image.

    Args:
        model: The name of the network.
        image_size: The height and width of the image in pixels.
    """
    scale = (image_size / names.default_image_size(model)) ** 2
    return round(SIZES[model].num_activations * scale)
