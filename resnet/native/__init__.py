"""Custom TensorFlow ops in C++ that replace slow sequences of stock ops.

`make venv` compiles the sources in this folder (install/build_native.sh). Stock ops
give the same numbers, and are the fallback where the library is missing, can't be
loaded or needs instructions that the CPU lacks. Only the messages of compressed
gradients have no fallback: compression needs the library.
"""

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from resnet.hardware import cpu_features
from resnet.native import instruction_sets

OPS_LIBRARY = Path(__file__).with_name("libresnet_ops.so")

_is_disabled = False


def disable() -> None:
    """Makes this process use TensorFlow's ops; before a network or input is built."""
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
    for lookup in (ops, fast_ops):
        lookup.cache_clear()


@functools.cache
def ops() -> Any | None:
    """Returns the module of the compiled ops, or None after a warning with the reason.

    Raises UserError if RESNET_MAX_CPU_ISA names no instruction set.
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
    if not OPS_LIBRARY.exists():
        return None, f"expected the library {OPS_LIBRARY}, found no such file"
    if reason := _why_outdated():
        return None, f"the library {OPS_LIBRARY} was built {reason}"
    try:
        library = tf.load_op_library(str(OPS_LIBRARY))
    except tf.errors.OpError as error:  # Built for another TensorFlow or machine.
        return None, f"the library {OPS_LIBRARY} can't be loaded ({error.message})"
    instruction_sets.kernels(OPS_LIBRARY)  # Limits them as the environment says.
    return library, ""


def _why_outdated() -> str:
    """Returns what has changed since the library was built; empty if nothing has."""
    key = OPS_LIBRARY.with_suffix(".key")
    if not key.exists():
        return ""
    sources, version, *_ = [*key.read_text().splitlines(), "", ""]
    if version and version != tf.__version__.replace("-", ""):
        return f"with TensorFlow {version}, and this is {tf.__version__}"
    script = OPS_LIBRARY.parents[2] / "install" / "build_native.sh"
    if script.exists() and sources != _digest_of_sources(script):
        return "from other sources"
    return ""


def _digest_of_sources(script: Path) -> str:
    digest = hashlib.sha256(script.read_bytes())
    for suffix in ("cc", "h"):
        for source in sorted(OPS_LIBRARY.parent.glob(f"*.{suffix}")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _advice() -> str:
    clone = OPS_LIBRARY.parents[2]
    if not (clone / "install" / "build_native.sh").exists():
        return "They are built in a clone of the project, by make venv."
    if OPS_LIBRARY.exists():
        return f"To build it again, delete it and run make venv in {clone}."
    return f"To build it, run make venv in {clone}."


@functools.cache
def fast_ops(dtype: tf.DType) -> Any | None:
    """Returns the compiled ops if they convolve and normalize in float32 or bfloat16.

    Otherwise it returns None and logs the reason once per process.
    """
    library = ops()
    if library is None:
        return None
    if reason := _why_not_fast(dtype):
        logging.warning(
            "%s: falling back to TensorFlow's slower ops for convolution and batch"
            " normalization in %s",
            reason,
            dtype.name,
        )
        return None
    return library


def _why_not_fast(dtype: tf.DType) -> str:
    """Returns why the loaded library has no kernels for a dtype; empty if it has."""
    kernels = instruction_sets.kernels(OPS_LIBRARY)
    index = instruction_sets.index
    needed = (
        instruction_sets.FIRST_IN_BFLOAT16
        if dtype == tf.bfloat16
        else instruction_sets.FIRST_IN_FLOAT32
    )
    if index(kernels.current()) >= index(needed):
        return ""
    if index(kernels.best()) >= index(needed):
        return (
            f"{instruction_sets.VARIABLE} limits the compiled ops to"
            f" {kernels.current()}"
        )
    if missing := sorted(instruction_sets.CPU_FLAGS[needed] - cpu_features.flags()):
        return f"this CPU has no {missing[0]}"
    return (
        f"the library of compiled ops lacks the kernels for {needed}, which need GCC 10"
        " or newer, or clang (make venv CXX=/path/to/g++)"
    )


def describe() -> str:
    """Returns whether the compiled ops are used on this machine, and if not, why."""
    library, reason = _load()
    if library is None:
        return f"compiled ops: no, because {reason}. {_advice()}"
    if reason := _why_not_fast(tf.float32):
        return (
            "compiled ops: only for reading, resizing, updates of weights and"
            f" compression of gradients, because {reason}"
        )
    name = instruction_sets.kernels(OPS_LIBRARY).current()
    if reason := _why_not_fast(tf.bfloat16):
        return f"compiled ops: yes, with {name}, but not in bfloat16, because {reason}"
    return f"compiled ops: yes, with {name}"


def instruction_set() -> str:
    """Returns the instruction set whose kernels convolve and normalize, or "NONE"."""
    return "NONE" if ops() is None else instruction_sets.kernels(OPS_LIBRARY).current()


def has_two_bf16_products() -> bool:
    """Returns whether `widen_bf16` makes a difference to convolutions on this CPU."""
    return instruction_set() == "AVX512_CORE_BF16"


def widen_bf16(is_widened: bool) -> None:
    """Makes the compiled ops multiply bfloat16 as float32, or by AVX512_BF16.

    Some CPUs have an AVX512_BF16 that is slower than float32. It acts from the ops'
    next calls on, on matrix products alone: Winograd's algorithm always multiplies
    float32.
    """
    instruction_sets.kernels(OPS_LIBRARY).widen_bf16(is_widened)
