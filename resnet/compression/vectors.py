"""Which vectors of a network's gradients are compressed."""

from collections.abc import Mapping

_WHOLE_MODEL = "model"


def sizes(num_values: Mapping[str, int], granularity: str) -> dict[str, int]:
    """Returns the lengths of the vectors that are compressed, by their names.

    Args:
        num_values: Number of values of each variable by its name.
        granularity: "layerwise" or "entiremodel" (`CompressionSettings.compress`).
    """
    if granularity == "entiremodel":
        return {_WHOLE_MODEL: sum(num_values.values())}
    return dict(num_values)
