"""The table of the networks' sizes is that of the networks."""

import math

import keras
import pytest

from resnet.models import names, sizes
from tests.unit import described_model

CLASSES = 10


@pytest.mark.parametrize("name", names.MODELS)
def test_the_table_has_the_size_of_the_network(name):
    image_size = names.default_image_size(name)
    model = described_model.without_values(name, CLASSES, image_size)
    shapes = [weight.shape for weight in model.trainable_weights]
    assert sizes.num_parameters(name, CLASSES) == sum(map(math.prod, shapes))
    of_last_layer = [math.prod(shape) for shape in shapes if shape[-1] == CLASSES]
    assert CLASSES * sizes.SIZES[name].num_class_parameters == sum(of_last_layer)
    outputs = count_outputs(model) - CLASSES
    assert sizes.num_activations(name, image_size) == outputs


def count_outputs(model: keras.Model) -> int:
    """Returns the number of values that convolutions and dense layers put out."""
    count = 0
    for layer in model.layers:
        for weight in layer.trainable_weights:
            if len(weight.shape) == 4:
                output, *_ = keras.tree.flatten(layer.output)
                count += math.prod(output.shape[1:3]) * weight.shape[-1]
            elif len(weight.shape) == 2:
                count += weight.shape[-1]
    return count


def test_known_sizes():
    # torchvision's ResNet-18 has an identity in its first stage: 4,224 values less.
    assert sizes.num_parameters("resnet18", 1000) == 11_693_736
    assert sizes.num_parameters("resnet50", 1000) == 25_557_032
    assert sizes.gradient_bytes("resnet50", 1000) == 102_228_128
    assert set(sizes.SIZES) == set(names.MODELS)


def test_activations_grow_with_the_area():
    assert sizes.num_activations("resnet50", 112) == 11_113_984 / 4
