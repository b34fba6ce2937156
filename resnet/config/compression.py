"""The settings of compressed gradients, and what each method is without its codec."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from resnet.base.settings import (
    AT_LEAST_ZERO,
    COUNT,
    COUNT_OR_ZERO,
    changeable_setting,
    setting,
)
from resnet.config import topics

BUCKET_VALUES = 1 << 20  # Values whose messages travel together: 4 MB of gradients.
HEADER_BYTES = 8  # Of each message (`resnet.exchange.codecs.messages`).
_ASSUMED_RATIO = 0.01  # Of the values kept by a threshold, unknown before the run.
_TIMED_VALUES = 25_557_032  # The parameters of ResNet-50, whose codecs were timed.


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of compression, apart from its codec."""

    # The bytes that a rank sends of a vector, by the shape of the gradient in it.
    coded_bytes: Callable[["CompressionSettings", Sequence[int]], int]
    size: str = "exact"  # Or "estimated" or, of gradients' values, "assumed".
    is_summed: bool = False  # By an all-reduce; others send messages to be decoded.
    has_momentum: bool = False  # In the residuals, instead of the optimizer.
    needs_matrices: bool = False  # Whether it needs the matrix of each variable.
    # The first epochs, which keep more values than later ones.
    num_warmup_epochs: Callable[["CompressionSettings"], int] = lambda _: 0
    # Why the squared error may exceed the squared gradient, so that error feedback
    # would grow without bounds; empty if it can't.
    why_unbounded: Callable[["CompressionSettings"], str] = lambda _: ""
    # Of one core of an AMD EPYC (Zen 5), to encode and decode `_TIMED_VALUES` values
    # (RESULTS.md, "Compressed gradients"); 0 where they haven't been measured.
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def value_seconds(self) -> tuple[float, float]:
        """The seconds of encoding and decoding a value; 0 if they weren't measured."""
        encode, decode = self.seconds
        return encode / _TIMED_VALUES, decode / _TIMED_VALUES


def topk_count(num_values: int, ratio: float) -> int:
    """Returns how many of n values topk keeps, n - ceil(n (1 - ratio)) + 1, at most n.

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, as of `randomk_count`.
    """
    return min(num_values - math.ceil(num_values * (1 - ratio)) + 1, num_values)


def randomk_count(num_values: int, ratio: float) -> int:
    """Returns how many of n values randomk keeps, ceil(n ratio)."""
    return min(math.ceil(num_values * ratio), num_values)


def matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns rows and columns, the last axis, of a gradient; nothing for a vector."""
    return () if len(shape) < 2 else (math.prod(shape[:-1]), shape[-1])


def dense_bytes(num_values: int) -> int:
    """Returns the bytes of the message of all values in float32."""
    return HEADER_BYTES + 4 * num_values


def _bytes_of_topk(settings: "CompressionSettings", shape: Sequence[int]) -> int:
    """Returns the bytes of a message of topk with unequal values in random positions.

    With the probability q that a value is dropped, a quotient of a gap by w = 2^b has
    on average q^w / (1 - q^w) zero bits: P(gap >= i w) = q^(i w) over i = 1, 2, ...
    """
    num_values = math.prod(shape)
    count = topk_count(num_values, settings.ratio)
    bit_width = max((693 * num_values // (1000 * count)).bit_length() - 1, 0)
    dropped = (1 - count / num_values) ** (1 << bit_width)
    unary_bits = count * (1 + dropped / (1 - dropped))
    bits = {"float32": 32, "bfloat16": 16, "2bit": 2}[settings.kept_values]
    streams = count * bits, count * bit_width, round(unary_bits)
    return HEADER_BYTES + 4 + 16 * (bits == 2) + _packed(*streams)


def _bytes_of_threshold(settings: "CompressionSettings", shape: Sequence[int]) -> int:
    return _bytes_of_topk(dataclasses.replace(settings, ratio=_ASSUMED_RATIO), shape)


def _bytes_of_qsgd(settings: "CompressionSettings", shape: Sequence[int]) -> int:
    num_values = math.prod(shape)
    num_norms = -(-num_values // (settings.qsgd_bucket or num_values))
    levels = num_values * (2 * settings.qstates).bit_length()
    return HEADER_BYTES + 8 + 4 * num_norms + _packed(levels)


def _bytes_of_powersgd(settings: "CompressionSettings", shape: Sequence[int]) -> int:
    matrix = matrix_shape(shape)
    return 4 * (settings.powersgd_rank * sum(matrix) if matrix else math.prod(shape))


def _packed(*bits: int) -> int:
    """Returns the bytes of streams of so many bits, each padded to whole bytes."""
    return sum(-(-of_stream // 8) for of_stream in bits)


def _why_unbounded_qsgd(settings: "CompressionSettings") -> str:
    """Returns why the error of QSGD may exceed the gradient; empty if it can't.

    With d values a norm and s levels, its expected squared error is at most
    min(d / s^2, sqrt(d) / s) times the squared norm. With the largest magnitude it is
    3 % for 7 levels and 1,024 normal values; one level is TernGrad, and two are too
    coarse for a whole vector.

    Source: Alistarh et al. 2017, arXiv:1610.02132, lemma 3.1; Karimireddy et al. 2019,
    arXiv:1901.09847, on error feedback.
    """
    bucket, states = settings.qsgd_bucket, settings.qstates
    if settings.qsgd_norm == "max":
        if states > (1 if bucket else 2):
            return ""
        return "qsgd's may be larger with so few levels, --qstates below 3"
    if bucket and bucket < states**2:
        return ""
    values = f"{bucket} values" if bucket else "all values of a vector"
    return (
        f"qsgd's may be larger with {states} states for one l2 norm of {values}; it is"
        " smaller with --qsgd_norm=max and --qstates of at least 3, or with"
        f" --qsgd_bucket below {states**2}"
    )


_THRESHOLD = Method(
    coded_bytes=_bytes_of_threshold, size="assumed", seconds=(0.017, 0.0098)
)
_CAST = Method(coded_bytes=lambda _, shape: HEADER_BYTES + 2 * math.prod(shape))
# The first six are those of sands-lab/layer-wise-aaai20, CIFAR10/core.py, whose names
# are Randomk, Topk, Thresholdv, AdaptiveThreshold, TernGrad and RandomDithering (QSGD
# in its README). topk spends 18 of its 35 ms on the threshold.
METHODS: Mapping[str, Method] = {
    "randomk": Method(
        coded_bytes=lambda settings, shape: (
            4 * randomk_count(math.prod(shape), settings.ratio)
        ),
        is_summed=True,
    ),
    "topk": Method(
        coded_bytes=_bytes_of_topk, size="estimated", seconds=(0.035, 0.0098)
    ),
    "thresholdv": _THRESHOLD,
    "adaptivethreshold": _THRESHOLD,
    "terngrad": Method(
        # Five values a byte.
        coded_bytes=lambda _, shape: HEADER_BYTES + 4 - (-math.prod(shape) // 5),
        why_unbounded=lambda _: (
            "terngrad's is 2.6 times as large for normally distributed values"
        ),
        seconds=(0.097, 0.031),
    ),
    "qsgd": Method(
        coded_bytes=_bytes_of_qsgd,
        why_unbounded=_why_unbounded_qsgd,
        seconds=(0.083, 0.026),
    ),
    "fp16": _CAST,
    "bf16": _CAST,
    "powersgd": Method(
        coded_bytes=_bytes_of_powersgd, is_summed=True, needs_matrices=True
    ),
    "dgc": Method(
        coded_bytes=_bytes_of_topk,
        size="estimated",
        has_momentum=True,
        num_warmup_epochs=lambda settings: settings.dgc_warmup_epochs,
        seconds=(0.035, 0.0098),
    ),
}


@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """How the ranks compress the gradients that they exchange.

    The flags' short forms are those of sands-lab/layer-wise-aaai20, CIFAR10/README.md.
    """

    TOPIC: ClassVar[str] = topics.COMPRESSION

    compress: str = setting(
        "none",
        "Whether the ranks compress gradients, one of {names}: not at all, each"
        " variable's by itself, or all as one vector.",
        names=("none", "layerwise", "entiremodel"),
        short_flag="c",
        common=True,
    )
    method: str = setting(
        "topk",
        "The method of compression, one of {names}.",
        names=tuple(METHODS),
        common=True,
    )
    ratio: float = setting(
        0.5,
        "The fraction of the values that topk, randomk and dgc keep.",
        bounds=(1e-9, 1),
        short_flag="K",
        common=True,
    )
    threshold: float = setting(
        0.001 / 512,  # The source sums the loss over a batch of 512.
        "The smallest magnitude of a mean loss's gradient that thresholdv keeps.",
        bounds=AT_LEAST_ZERO,
        short_flag="V",
    )
    qstates: int = setting(
        255,
        "The number of levels above zero to which qsgd rounds magnitudes.",
        bounds=(1, 2**23),
        short_flag="Q",
        common=True,
    )
    qsgd_bucket: int = setting(
        0,
        "The successive values that share a norm in qsgd; 0 is one for all.",
        bounds=(0, 2**31 - 1),
    )
    qsgd_norm: str = setting(
        "l2",
        "The norm of qsgd, one of {names}: Euclidean, or the largest magnitude.",
        names=("l2", "max"),
    )
    kept_values: str = setting(
        "float32",
        "The type of the values that topk, dgc and thresholds send, one of {names};"
        " 2bit sends one of four means instead of each.",
        names=("float32", "bfloat16", "2bit"),
    )
    dense_below: int = setting(
        0,
        "Variables with fewer values are sent uncompressed; 0 compresses all.",
        bounds=COUNT_OR_ZERO,
    )
    powersgd_rank: int = setting(
        4,
        "The rank of the matrices by which powersgd approximates gradients.",
        bounds=COUNT,
    )
    dgc_warmup_epochs: int = setting(
        4,
        "The number of epochs in which dgc keeps more values than it does later.",
        bounds=COUNT_OR_ZERO,
    )
    exchange: str = changeable_setting(
        "auto",
        "How compressed gradients reach all ranks, one of {names}: by an all-gather,"
        " by slices (scatter-reduce and all-gather), or by what is predicted to be"
        " faster here. randomk and powersgd use an all-reduce.",
        names=("auto", "allgather", "sliced"),
    )
    error_feedback: bool = setting(
        False,
        "Whether each rank adds its residual, the compression error of the last step,"
        " to its next gradients (error feedback); dgc always does.",
        common=True,
    )
    residual_decay: float = setting(
        1.0, "The factor of the residual that error feedback adds.", bounds=(0, 1)
    )

    @property
    def keeps_residuals(self) -> bool:
        """Whether each rank keeps the residuals of its messages for later steps."""
        return self.error_feedback or METHODS[self.method].has_momentum

    @property
    def num_warmup_epochs(self) -> int:
        """The number of the first epochs that keep more values than later ones."""
        return METHODS[self.method].num_warmup_epochs(self)

    @property
    def largest_ratio(self) -> float:
        """The largest fraction of the values that a step keeps, by `dgc.Velocities`."""
        return float(self.ratio ** (1 / (self.num_warmup_epochs + 1)))


def vectors(
    shapes: Mapping[str, Sequence[int]], granularity: str
) -> dict[str, Sequence[int]]:
    """Returns the shapes of what is compressed as one vector each, by their names."""
    if granularity == "entiremodel":
        return {"model": [sum(map(math.prod, shapes.values()))]}
    return dict(shapes)


def num_bytes(settings: CompressionSettings, shape: Sequence[int]) -> int:
    """Returns the bytes that a rank sends of a vector, as exact as `Method.size` says.

    A message that would be longer than a dense one is dense.
    """
    num_values = math.prod(shape)
    if num_values < settings.dense_below:
        return 4 * num_values
    method = METHODS[settings.method]
    coded = method.coded_bytes(settings, shape)
    return coded if method.is_summed else min(coded, dense_bytes(num_values))


def most_bytes(settings: CompressionSettings, shape: Sequence[int]) -> int:
    """Returns the bytes of the longest message of a vector in any step."""
    if METHODS[settings.method].size == "assumed":
        return dense_bytes(math.prod(shape))
    largest = dataclasses.replace(settings, ratio=settings.largest_ratio)
    return num_bytes(largest, shape)
