"""The names and axes of torchvision's ResNets, which are those of PyTorch's layers.

Kernels of convolutions are `[filters, channels, height, width]` there, and that of the
classifier is `[classes, channels]`.

Source: pytorch/vision, torchvision/models/resnet.py.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from resnet.checkpoint.weight_formats.files import Stored

FIRST = "conv1.weight"  # In each file, and in none of the other formats.
VARIANT = "torchvision"
EPSILON = 1e-5  # Added to the variance by batch normalization.
_BLOCK = re.compile(r"stage([1-4])_block(\d+)_(shortcut|[123])")
_OF_CONVOLUTION = (2, 3, 1, 0)
_NORMALIZATION = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_CLASSIFIER = {
    "classifier/kernel": Stored("fc.weight", (1, 0)),
    "classifier/bias": Stored("fc.bias"),
}
_NUM_BATCHES = ".num_batches_tracked"  # A count that PyTorch doesn't compute with.


def places(paths: Iterable[str]) -> dict[str, Stored]:
    """Returns the places of variables by their paths, of those that torchvision has."""
    places = {path: _place(path) for path in paths}
    return {path: place for path, place in places.items() if place is not None}


def is_extra(name: str) -> bool:
    """Returns whether a file may have an array that is none of the weights."""
    return name.endswith(_NUM_BATCHES)


def state_dict(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the state dict of the same network in torchvision.

    The values of all variables of our network, of the variant "torchvision", are
    float32. Raises ValueError if one has no place in torchvision's ResNets.
    """
    stored = places(values)
    if missing := sorted(set(values) - set(stored)):
        raise ValueError(f"torchvision's ResNets have no {missing[0]!r}")
    state = {}
    for path, place in stored.items():
        state[place.name] = np.ascontiguousarray(place.from_ours(values[path]))
        if place.name.endswith(".running_var"):
            counted = place.name.removesuffix(".running_var") + _NUM_BATCHES
            state[counted] = np.zeros([], np.int64)
    return state


def _place(path: str) -> Stored | None:
    layer, _, variable = path.rpartition("/")
    block = _BLOCK.fullmatch(layer)
    if layer == "stem":
        convolution, normalization = "conv1", "bn1"
    elif block:
        stage, number, part = block[1], int(block[2]) - 1, block[3]
        names = ("downsample.0", "downsample.1")
        if part != "shortcut":
            names = (f"conv{part}", f"bn{part}")
        convolution, normalization = (f"layer{stage}.{number}.{name}" for name in names)
    else:
        return _CLASSIFIER.get(path)
    if variable == "kernel":
        return Stored(f"{convolution}.weight", _OF_CONVOLUTION)
    if variable in _NORMALIZATION:
        return Stored(f"{normalization}.{_NORMALIZATION[variable]}")
    return None
