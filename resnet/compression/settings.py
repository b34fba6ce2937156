"""The method of compression of a run, with its parameters. No TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Compression:
    """A method and its parameters.

    Attributes:
        granularity: What is compressed as one vector, one of `names.GRANULARITIES`.
        method: The method, one of `names.METHODS`.
        ratio: Fraction of the values that topk and randomk keep.
        threshold: Smallest magnitude that thresholdv keeps.
        qstates: Levels above zero of QSGD.
        qsgd_bucket: Values that share a norm in QSGD; 0: all of a vector.
        qsgd_norm: The norm of QSGD, one of `names.QSGD_NORMS`.
        value_dtype: Type in which kept values are sent, one of `names.VALUE_DTYPES`.
        error_feedback: Whether each rank adds what a message lacks to the gradient of
            the next step.
    """

    granularity: str = "none"
    method: str = "topk"
    ratio: float = 0.5
    threshold: float = 0.001
    qstates: int = 255
    qsgd_bucket: int = 0
    qsgd_norm: str = "l2"
    value_dtype: str = "float32"
    error_feedback: bool = False
