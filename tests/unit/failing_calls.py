"""Functions that fail as the operating system's do, in the place of these."""

import os
from unittest.mock import Mock


def failing(number: int) -> Mock:
    """Returns a function that raises the OSError of a number of `errno`."""
    return Mock(side_effect=OSError(number, os.strerror(number)))
