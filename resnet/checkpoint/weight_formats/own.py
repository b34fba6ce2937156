"""The names in our own checkpoints, and in files of our variables by their paths.

A checkpoint has the variables of the network as `model/PATH`, beside velocities and
moving averages.
"""

from collections.abc import Iterable

from resnet.checkpoint.weight_formats.stored import Stored

_PREFIX = "model/"


def places_in_checkpoint(paths: Iterable[str]) -> dict[str, Stored]:
    """Returns the places of variables in a checkpoint.

    Args:
        paths: The variables' paths in our network, such as `stage1_block1_1/kernel`.
    """
    return {path: Stored(f"{_PREFIX}{path}") for path in paths}


def places(paths: Iterable[str]) -> dict[str, Stored]:
    """Returns the places of variables in a file that has them by their paths."""
    return {path: Stored(path) for path in paths}


def is_extra_in_checkpoint(name: str) -> bool:
    """Returns whether a checkpoint may have an array that is none of the weights."""
    return not name.startswith(_PREFIX)


def is_extra(name: str) -> bool:
    """Returns False: other files have the network's variables only."""
    return False
