"""Files of weights as they are stored: names, shapes and values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]


class Stored(NamedTuple):
    """The place of one of our variables in a file of another program.

    Attributes:
        name: The name of the stored array.
        axes: The axes of the stored array in the order of ours; None for the same
            order.
    """

    name: str
    axes: tuple[int, ...] | None = None

    def shape_of(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the stored array for that of our variable."""
        return ours if self.axes is None else tuple(ours[axis] for axis in self._back)

    def shape_in_ours(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of our variable for that of the stored array."""
        if self.axes is None or len(stored) != len(self.axes):
            return stored
        return tuple(stored[axis] for axis in self.axes)

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Returns a stored array as the value of our variable."""
        return array if self.axes is None else array.transpose(self.axes)

    def from_ours(self, array: np.ndarray) -> np.ndarray:
        """Returns the value of our variable as it is stored, contiguous."""
        if self.axes is not None:
            array = array.transpose(self._back)
        return np.ascontiguousarray(array)

    @property
    def _back(self) -> tuple[int, ...]:
        axes = self.axes or ()
        return tuple(axes.index(axis) for axis in range(len(axes)))


@dataclass(frozen=True)
class WeightFile:
    """An open file of weights, whose arrays are read one by one.

    Attributes:
        shapes: The shape of each array by its name.
        read: A function that returns the array of a name.
        settings: Settings of the network that the weights are from, as `config.json` or
            the description of an export has them; empty if they aren't known.
    """

    shapes: Shapes
    read: Callable[[str], np.ndarray]
    settings: Mapping[str, Any]


def of_arrays(
    arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any] | None = None
) -> WeightFile:
    """Returns the file of arrays that are in memory."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    return WeightFile(shapes, arrays.__getitem__, settings or {})
