"""Custom TensorFlow ops in C++ that replace slow sequences of stock ops.

`make venv` compiles the sources in this folder (install/build_native.sh). Each op has a
reference implementation of stock ops, which gives the same numbers and is the fallback
where the library is missing, can't be loaded or needs instructions that the CPU lacks.
"""

import contextlib
import functools
from collections.abc import Iterator
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
    _set_disabled(True)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Makes the graphs that are traced inside the block use TensorFlow's own ops."""
    before = _is_disabled
    _set_disabled(True)
    try:
        yield
    finally:
        _set_disabled(before)


def _set_disabled(is_disabled: bool) -> None:
    global _is_disabled
    _is_disabled = is_disabled
    for lookup in (ops, fast_ops, convolutions):
        lookup.cache_clear()


@functools.cache
def ops() -> Any | None:
    """Returns the module of the compiled ops, or None after a warning with the reason.

    The warning is logged once per process. If the compiler could not build the AVX-512
    ops, the module has only the others.
    """
    if _is_disabled:
        return None
    library, reason = _load()
    if library is None:
        logging.warning(
            "compiled ops unavailable: %s; falling back to TensorFlow's slower ops. %s",
            reason,
            _advice(),
        )
    return library


def _load() -> tuple[Any | None, str]:
    """Returns the module of the compiled ops, or None and the reason."""
    if not LIBRARY.exists():
        return None, f"expected the library {LIBRARY}, found no such file"
    try:
        return tf.load_op_library(str(LIBRARY)), ""
    except tf.errors.OpError as error:  # Built for another TensorFlow or machine.
        return None, f"the library {LIBRARY} can't be loaded ({error.message})"


def _advice() -> str:
    if not (LIBRARY.parents[2] / "install" / "build_native.sh").exists():
        return "They are built in a clone of the project, by make venv."
    if LIBRARY.exists():
        return (
            f"To build it again, delete it and run make venv in {LIBRARY.parents[2]}."
        )
    return f"To build it, run make venv in {LIBRARY.parents[2]}."


@functools.cache
def fast_ops(dtype: tf.DType) -> Any | None:
    """Returns the module of the compiled ops if this CPU can run the AVX-512 ones.

    Otherwise it returns None and logs the reason once per process.

    Args:
        dtype: Dtype that the ops compute in, float32 or bfloat16.
    """
    library = ops()
    if library is None:
        return None
    if reason := _why_not_fast(library, dtype):
        logging.warning(
            "%s: falling back to TensorFlow's slower ops for convolution and batch"
            " normalization in %s",
            reason,
            dtype.name,
        )
        return None
    return library


def _why_not_fast(library: Any, dtype: tf.DType) -> str:
    """Returns why a library's AVX-512 ops can't be used here; empty if they can."""
    needed = _AVX512 | ({"avx512_bf16"} if dtype == tf.bfloat16 else set())
    if missing := sorted(needed - cpu_features.flags()):
        return f"this CPU has no {missing[0]}"
    if not hasattr(library, "resnet_conv2d"):
        return (
            "the library of compiled ops lacks those for AVX-512, which need GCC 10 or"
            " newer (make venv CXX=/path/to/g++)"
        )
    return ""


def describe() -> str:
    """Returns whether the compiled ops are used on this machine, and if not, why."""
    library, reason = _load()
    if library is None:
        return f"compiled ops: no, because {reason}. {_advice()}"
    if reason := _why_not_fast(library, tf.float32):
        return (
            "compiled ops: only for reading, resizing, updates of weights and"
            " compression of gradients, because"
            f" {reason}"
        )
    if reason := _why_not_fast(library, tf.bfloat16):
        return f"compiled ops: yes, but not in bfloat16, because {reason}"
    return "compiled ops: yes"


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
