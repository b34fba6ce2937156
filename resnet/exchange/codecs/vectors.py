"""Which vectors of a network's gradients are compressed."""

import math
from collections.abc import Mapping, Sequence

_WHOLE_MODEL = "model"


def shapes(
    of_variables: Mapping[str, Sequence[int]], granularity: str
) -> dict[str, Sequence[int]]:
    """Returns the shapes of what is compressed as one vector each, by their names.

    Args:
        of_variables: Shape of each variable by its name.
        granularity: "layerwise" or "entiremodel" (`CompressionSettings.compress`).
    """
    if granularity == "entiremodel":
        return {_WHOLE_MODEL: [sum(map(math.prod, of_variables.values()))]}
    return dict(of_variables)
