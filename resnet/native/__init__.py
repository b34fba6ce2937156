"""Custom TensorFlow ops in C++ that replace slow sequences of stock ops.

`make venv` compiles the sources in this folder (install/build_native.sh). Each op has a
reference implementation of stock ops, which gives the same numbers and is the fallback
where the library is missing, can't be loaded or needs instructions that the CPU lacks.
"""

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from resnet.hardware import cpu_features

LIBRARY = Path(__file__).with_name("libresnet_ops.so")

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


_is_disabled = False


def disable() -> None:
    """Makes this process use TensorFlow's own ops instead of the compiled ones.

    To be called before a network or an input pipeline is built.
    """
    global _is_disabled
    _is_disabled = True
    for lookup in (ops, fast_ops, convolutions):
        lookup.cache_clear()


@functools.cache
def ops() -> Any | None:
    """Returns the module of the compiled ops, or None after a warning with the reason.

    The warning is logged once per process.
    """
    if _is_disabled:
        return None
    if not LIBRARY.exists():
        logging.warning(
            "compiled ops unavailable: expected the library %s, found no such file;"
            " falling back to TensorFlow's slower ops. Run make venv to build it.",
            LIBRARY,
        )
        return None
    try:
        return tf.load_op_library(str(LIBRARY))
    except tf.errors.OpError as error:  # Built for another TensorFlow or machine.
        logging.warning(
            "compiled ops unavailable: the library %s can't be loaded (%s); falling"
            " back to TensorFlow's slower ops. Run make clean venv to rebuild it.",
            LIBRARY,
            error.message,
        )
        return None


@functools.cache
def fast_ops(dtype: tf.DType) -> Any | None:
    """Returns the module of the compiled ops if this CPU can run the AVX-512 ones.

    Otherwise it returns None and logs the reason once per process.

    Args:
        dtype: Dtype that the ops compute in, float32 or bfloat16.
    """
    needed = _AVX512 | ({"avx512_bf16"} if dtype == tf.bfloat16 else set())
    if missing := sorted(needed - cpu_features.flags()):
        logging.warning(
            "this CPU has no %s: falling back to TensorFlow's slower ops for"
            " convolution and batch normalization in %s",
            missing[0],
            dtype.name,
        )
        return None
    return ops()


@functools.cache
def convolutions(dtype: tf.DType) -> Any | None:
    """Returns the module of the compiled ops if its convolutions are the fastest here.

    They are, except in bfloat16 on a CPU with AMX, which only oneDNN uses.

    Args:
        dtype: Dtype that the convolutions compute in, float32 or bfloat16.
    """
    return None if dtype == tf.bfloat16 and has_amx() else fast_ops(dtype)


def has_amx() -> bool:
    """Returns whether oneDNN can use AMX, which multiplies matrices of bfloat16."""
    features = cpu_features.flags()
    return "amx_bf16" in features and not cpu_features.amx_is_hidden(features)
