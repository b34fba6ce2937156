"""The table of the networks' sizes is that of the networks."""

import math

import keras
import pytest

from resnet.models import names
from resnet.models.layers import PooledConvNorm
from tests.unit import described_model

CLASSES = 10
# The blocks of each stage. Building these networks would take most of the time.
DEEPER = {101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
DEEPER_NAMES = [f"resnet{depth}{ending}" for ending in ("", "d") for depth in DEEPER]


@pytest.mark.parametrize("name", sorted(set(names.MODELS) - set(DEEPER_NAMES)))
def test_the_table_has_the_size_of_the_network(name):
    image_size = names.MODELS[name].image_size
    model = described_model.without_values(name, CLASSES, image_size)
    shapes = [weight.shape for weight in model.trainable_weights]
    assert names.num_parameters(name, CLASSES) == sum(map(math.prod, shapes))
    of_last_layer = [math.prod(shape) for shape in shapes if shape[-1] == CLASSES]
    assert CLASSES * names.MODELS[name].num_class_parameters == sum(of_last_layer)
    has_bias = len(of_last_layer) == 2
    assert has_bias == names.MODELS[name].has_last_bias
    outputs = count_outputs(model) - CLASSES
    assert names.num_activations(name, image_size) == outputs


def count_outputs(model: keras.Model) -> int:
    """Returns the number of values that convolutions and dense layers put out."""
    count = 0
    for layer in model.layers:
        for weight in layer.weights:
            if len(weight.shape) == 4:
                output, *_ = keras.tree.flatten(layer.output)
                if isinstance(layer, PooledConvNorm):  # Of stride 1: before the pool.
                    output = layer.input
                count += math.prod(output.shape[1:3]) * weight.shape[-1]
            elif len(weight.shape) == 2:
                count += weight.shape[-1]
    return count


@pytest.mark.parametrize("name", DEEPER_NAMES)
def test_deeper_networks_have_so_many_more_blocks_than_resnet50(name):
    ending = "d" * name.endswith("d")
    expected = names.MODELS[f"resnet50{ending}"]
    parameters, activations = expected.num_body_parameters, expected.num_activations
    blocks = DEEPER[int(name.removeprefix("resnet").removesuffix("d"))]
    for stage, (number, of_50) in enumerate(zip(blocks, (3, 4, 6, 3), strict=True)):
        width, side = 64 << stage, 56 >> stage
        kernels = (4 + 9 + 4) * width**2  # 1x1, 3x3 and 1x1, on 4, 1 and 1 widths.
        parameters += (number - of_50) * (kernels + 2 * (1 + 1 + 4) * width)
        activations += (number - of_50) * (1 + 1 + 4) * width * side**2
    found = names.MODELS[name]
    assert (found.num_body_parameters, found.num_activations) == (
        parameters,
        activations,
    )
    assert found.num_class_parameters == expected.num_class_parameters


def test_known_sizes():
    # torchvision's ResNet-18 has an identity in its first stage: 4,224 values less.
    assert names.num_parameters("resnet18", 1000) == 11_693_736
    assert names.num_parameters("resnet50", 1000) == 25_557_032
    assert names.gradient_bytes("resnet50", 1000) == 102_228_128
    assert set(names.MODELS) == set(names.MODELS)


def test_activations_grow_with_the_area():
    assert names.num_activations("resnet50", 112) == 11_113_984 / 4
