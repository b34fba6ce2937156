"""TensorFlow ops of our own, in C++, for what the stock ops do slowly.

`make venv` compiles the sources of this folder (install/build_native.sh). Each op has
a twin made of stock ops, which gives the same numbers and stands in where the library
isn't there or can't be loaded.
"""

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

LIBRARY = Path(__file__).with_name("libresnet_ops.so")


@functools.cache
def ops() -> Any | None:
    """Returns the module of the compiled ops, or None; says once why there is none."""
    if not LIBRARY.exists():
        logging.warning(
            "%s is not there: slower stock ops read and resize the pictures. make venv"
            " builds it.",
            LIBRARY,
        )
        return None
    try:
        return tf.load_op_library(str(LIBRARY))
    except tf.errors.OpError as error:  # Of another TensorFlow or another machine.
        logging.warning(
            "%s can't be loaded (%s): slower stock ops read and resize the pictures."
            " make clean venv builds it anew.",
            LIBRARY,
            error.message,
        )
        return None
