"""Which vectors of a network's gradients are compressed."""

from collections.abc import Sequence

_WHOLE_MODEL = "model"


def sizes(
    names: Sequence[str], num_values: Sequence[int], granularity: str
) -> dict[str, int]:
    """Returns the lengths of the vectors that are compressed, by their names.

    Args:
        names: Names of the variables.
        num_values: Number of values of each variable.
        granularity: "none", "layerwise" or "entiremodel"
            (`CompressionSettings.compress`).
    """
    if granularity == "none":
        return {}
    if granularity == "entiremodel":
        return {_WHOLE_MODEL: sum(num_values)}
    return dict(zip(names, num_values, strict=True))
