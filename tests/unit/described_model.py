"""Networks that are described without the values of their variables."""

import keras

from resnet import models


def without_values(name: str, *arguments, **given) -> keras.Model:
    """Returns a network whose variables are only described.

    Making them would be most of the time. `value` returns what each starts with.
    """
    with keras.StatelessScope(initialize_variables=False):
        model = models.build(name, *arguments, **given)
    keras.utils.clear_session(free_memory=False)  # Or Keras makes them later.
    return model
