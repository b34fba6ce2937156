"""The settings of compressed gradients, and which of them fit together."""

from dataclasses import dataclass
from typing import ClassVar

from resnet.base.settings import AT_LEAST_ZERO, COUNT, COUNT_OR_ZERO, setting
from resnet.config import topics

# What is compressed as one vector: nothing, each variable's gradient, or all of them.
GRANULARITIES = ("none", "layerwise", "entiremodel")
# Of sands-lab/layer-wise-aaai20, CIFAR10/core.py, whose names are Randomk, Topk,
# Thresholdv, AdaptiveThreshold, TernGrad and RandomDithering (QSGD in its README).
_METHODS_OF_SOURCE = (
    *("randomk", "topk", "thresholdv"),
    *("adaptivethreshold", "terngrad", "qsgd"),
)
CASTS = ("fp16", "bf16")
METHODS = (*_METHODS_OF_SOURCE, *CASTS, "powersgd", "dgc")
# Methods whose messages are summed on their way.
SUMMED_METHODS = ("randomk", "powersgd")
EXCHANGES = ("auto", "allgather", "sliced")
VALUE_DTYPES = ("float32", "bfloat16")
QSGD_NORMS = ("l2", "max")
MOST_QSTATES = 2**23  # With their signs they have 24 bits.
# The source sums the loss over a batch of 512; here it is the mean.
_THRESHOLD = 0.001 / 512


@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """How the ranks compress the gradients that they exchange.

    The flags' short forms are those of sands-lab/layer-wise-aaai20, CIFAR10/README.md.
    """

    TOPIC: ClassVar[str] = topics.COMPRESSION

    compress: str = setting(
        "none",
        "Whether the ranks compress the gradients that they exchange, one of {names}:"
        " not at all, each variable's gradient by itself, or all gradients as one"
        " vector.",
        names=GRANULARITIES,
        short_flag="c",
        common=True,
    )
    method: str = setting(
        "topk", "The method of compression, one of {names}.", names=METHODS, common=True
    )
    ratio: float = setting(
        0.5,
        "The fraction of the values that topk, randomk and dgc keep.",
        bounds=(1e-9, 1),
        short_flag="K",
        common=True,
    )
    threshold: float = setting(
        _THRESHOLD,
        "The smallest magnitude of a gradient, that of the mean loss, which thresholdv"
        " keeps.",
        bounds=AT_LEAST_ZERO,
        short_flag="V",
    )
    qstates: int = setting(
        255,
        "The number of levels above zero to which qsgd rounds magnitudes.",
        bounds=(1, MOST_QSTATES),
        short_flag="Q",
        common=True,
    )
    qsgd_bucket: int = setting(
        0,
        "The number of successive values that share a norm in qsgd; 0 is one norm for"
        " the whole vector.",
        bounds=(0, 2**31 - 1),
    )
    qsgd_norm: str = setting(
        "l2",
        "The norm of qsgd, one of {names}: the Euclidean norm, or the largest"
        " magnitude.",
        names=QSGD_NORMS,
    )
    kept_values: str = setting(
        "float32",
        "The type in which topk, thresholdv, adaptivethreshold and dgc send the values"
        " that they keep, one of {names}.",
        names=VALUE_DTYPES,
    )
    dense_below: int = setting(
        0,
        "The gradients of variables with fewer values than this are sent uncompressed;"
        " 0 compresses all.",
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
    exchange: str = setting(
        "auto",
        "How compressed gradients reach all ranks, one of {names}: by an all-gather of"
        " all messages, by a scatter-reduce of slices and an all-gather (sliced), or by"
        " the one that is predicted to be faster on this network. randomk and powersgd"
        " use an all-reduce instead.",
        names=EXCHANGES,
        decides_the_result=False,
    )
    error_feedback: bool = setting(
        False,
        "Whether each rank adds its residual, the compression error of the last step,"
        " to its next gradients (error feedback); dgc always does.",
        common=True,
    )

    @property
    def keeps_residuals(self) -> bool:
        """Whether each rank keeps the residuals of its messages for later steps."""
        return self.error_feedback or self.method == "dgc"

    @property
    def largest_ratio(self) -> float:
        """The largest fraction of the values that a step keeps.

        That is `ratio`, for dgc the one of its first epoch (`resnet.exchange.dgc`).
        """
        if self.method != "dgc":
            return self.ratio
        return self.ratio ** (1 / (self.dgc_warmup_epochs + 1))


def problems_of_feedback(settings: CompressionSettings) -> list[str]:
    """Returns a sentence if residuals may grow without bounds; else nothing."""
    if reason := _why_no_contraction(settings):
        return [
            "--error_feedback needs a method whose error is smaller than the gradient,"
            f" or what is left out grows without bounds: {reason}. Leave it out, or"
            " choose another method."
        ]
    return []


def _why_no_contraction(settings: CompressionSettings) -> str:
    """Returns why the squared error may exceed the gradient's; empty if it can't.

    With d values a norm and s levels, QSGD's expected squared error is at most
    min(d / s^2, sqrt(d) / s) times the squared norm; TernGrad's has no such bound. With
    the largest magnitude for a norm it is small for normally distributed values and
    several levels: 3 % with 7 levels and 1,024 values. With one level the formula is
    that of TernGrad, and two are too coarse for the values of a whole vector.

    Source: Alistarh et al. 2017, arXiv:1610.02132, lemma 3.1; Karimireddy et al. 2019,
    arXiv:1901.09847, on error feedback.
    """
    if settings.method == "terngrad":
        return "terngrad's is 2.6 times as large for normally distributed values"
    if settings.method != "qsgd":
        return ""
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
