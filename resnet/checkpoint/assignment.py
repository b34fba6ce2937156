"""Assigns the tensors of a checkpoint to the variables of the same names and shapes."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from resnet.base.errors import UserError


def assign(
    variables: Mapping[str, tf.Variable], saved: Mapping[str, np.ndarray], problem: str
) -> None:
    """Assigns saved tensors to variables, all or none.

    Args:
        variables: The variables by their stored names.
        saved: The tensors of the checkpoint by their names.
        problem: What is wrong with the checkpoint if they differ: the first part of the
            sentence.

    Raises:
        UserError: If names or shapes differ.
    """
    expected = {name: tuple(variable.shape) for name, variable in variables.items()}
    shapes = {name: tuple(array.shape) for name, array in saved.items()}
    if different := sorted(set(expected.items()) ^ set(shapes.items())):
        name = different[0][0]
        raise UserError(
            f"{problem}: {name!r} must have the shape {expected.get(name)}; the"
            f" checkpoint's is {shapes.get(name)}"
        )
    for name, variable in variables.items():
        variable.assign(saved[name])
