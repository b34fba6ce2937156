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

from resnet import cpu_features

LIBRARY = Path(__file__).with_name("libresnet_ops.so")

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@functools.cache
def ops() -> Any | None:
    """Returns the module of the compiled ops, or None; says once why there is none."""
    if not LIBRARY.exists():
        logging.warning(
            "%s is not there: slower stock ops read pictures and train. make venv"
            " builds it.",
            LIBRARY,
        )
        return None
    try:
        return tf.load_op_library(str(LIBRARY))
    except tf.errors.OpError as error:  # Of another TensorFlow or another machine.
        logging.warning(
            "%s can't be loaded (%s): slower stock ops read pictures and train."
            " make clean venv builds it anew.",
            LIBRARY,
            error.message,
        )
        return None


@functools.cache
def fast_ops(dtype: tf.DType) -> Any | None:
    """Returns the module of the compiled ops if those with AVX-512 can be used.

    Says once why they can't.

    Args:
        dtype: What they are to compute in, float32 or bfloat16.
    """
    needed = _AVX512 | ({"avx512_bf16"} if dtype == tf.bfloat16 else set())
    if missing := sorted(needed - cpu_features.flags()):
        logging.warning(
            "this CPU has no %s: slower stock ops convolve and normalize in %s",
            missing[0],
            dtype.name,
        )
        return None
    return ops()


@functools.cache
def convolutions(dtype: tf.DType) -> Any | None:
    """Returns the module of the compiled ops if its convolutions are the fastest here.

    They are, but in bfloat16 on a CPU with AMX, which only oneDNN makes use of.
    """
    features = cpu_features.flags()
    has_amx = "amx_bf16" in features and not cpu_features.amx_is_hidden(features)
    return None if dtype == tf.bfloat16 and has_amx else fast_ops(dtype)
