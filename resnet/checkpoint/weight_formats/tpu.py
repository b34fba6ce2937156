"""The names of the TPU recipe's ResNets in TensorFlow's checkpoints.

TensorFlow 1 numbers the layers of a kind in the order in which they are made: `conv2d`,
`conv2d_1` and so on, in each block the shortcut first. Each convolution is followed by
a normalization, so `conv2d_7` belongs to `batch_normalization_7`. Arrays have our axes.

Source: tensorflow/tpu, models/official/resnet/resnet_model.py.
"""

import re
from collections.abc import Collection

from resnet.checkpoint.weight_formats.files import Stored

FIRST = "conv2d/kernel"  # In each file, and in none of the other formats.
VARIANT = "tpu"
EPSILON = 1e-5  # Added to the variance by batch normalization.
_STEP = "global_step"
_BELOW_A_VARIABLE = re.compile(r"(conv2d|batch_normalization|dense)(_\d+)?/\w+/.+")
_STEM = re.compile(r"stem(?:_(\d))?")
_BLOCK = re.compile(r"stage(\d)_block(\d+)_(shortcut|\d)")


def places(paths: Collection[str]) -> dict[str, Stored]:
    """Returns the places of variables by their paths, of those that the recipe has."""
    layers = {path.rpartition("/")[0] for path in paths}
    orders = {layer: _order(layer) for layer in layers}
    numbered = sorted((order, layer) for layer, order in orders.items() if order)
    number_of = {layer: number for number, (_, layer) in enumerate(numbered)}
    places = {}
    for path in paths:
        layer, _, variable = path.rpartition("/")
        if layer == "classifier":
            places[path] = Stored(f"dense/{variable}")
        elif layer in number_of:
            kind = "conv2d" if variable == "kernel" else "batch_normalization"
            number = number_of[layer]
            places[path] = Stored(f"{kind}{f'_{number}' if number else ''}/{variable}")
    return places


def is_extra(name: str) -> bool:
    """Returns whether a file may have an array that is none of the weights.

    These are the step and, in a scope of its own below each variable, what optimizers
    and moving averages of the weights keep, such as `conv2d/kernel/Momentum`.
    """
    return name == _STEP or _BELOW_A_VARIABLE.fullmatch(name) is not None


def _order(layer: str) -> tuple[int, int, int] | None:
    """Returns the stage, the block and the number of a layer with a convolution."""
    if stem := _STEM.fullmatch(layer):
        return 0, 0, int(stem[1] or 0)
    if block := _BLOCK.fullmatch(layer):
        return int(block[1]), int(block[2]), int(block[3].replace("shortcut", "0"))
    return None
