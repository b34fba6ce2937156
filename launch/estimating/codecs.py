"""The seconds that encoding and decoding compressed gradients take, as measured."""

from typing import NamedTuple

from resnet.config.compression import CompressionSettings

_MEASURED_VALUES = 25_557_032  # The parameters of ResNet-50.


class Codec(NamedTuple):
    """The cost of a method's codec on one core.

    Attributes:
        encode: The seconds for each value of a vector that is encoded.
        decode: The seconds for each value of a vector that a message is decoded to.
    """

    encode: float
    decode: float


def _measured(encode_seconds: float, decode_seconds: float) -> Codec:
    return Codec(encode_seconds / _MEASURED_VALUES, decode_seconds / _MEASURED_VALUES)


# One core of an AMD EPYC (Zen 5), medians of 7: RESULTS.md, "Compressed gradients".
# topk spends 18 of its 35 ms on the threshold, which the other two are given.
_CODECS = {
    "topk": _measured(0.035, 0.0098),
    "dgc": _measured(0.035, 0.0098),
    "thresholdv": _measured(0.017, 0.0098),
    "adaptivethreshold": _measured(0.017, 0.0098),
    "qsgd": _measured(0.083, 0.026),
    "terngrad": _measured(0.097, 0.031),
}


def is_measured(compression: CompressionSettings) -> bool:
    """Returns whether the codec of a method has been measured."""
    return compression.method in _CODECS


def seconds(
    compression: CompressionSettings, num_values: int, num_ranks: int, exchange: str
) -> float:
    """Returns the seconds that a rank encodes and decodes in a step, on one core.

    0 for methods that haven't been measured. With "allgather" a rank decodes R
    messages; with "sliced" R slices of one message, then the means of R slices, of
    which it encodes one.

    Args:
        compression: The method.
        num_values: The number of values of the gradients.
        num_ranks: The number of ranks R.
        exchange: "allgather" or "sliced".
    """
    codec = _CODECS.get(compression.method, Codec(0.0, 0.0))
    encoded, decoded = 1.0, float(num_ranks)
    if exchange == "sliced":
        encoded, decoded = 1 + 1 / num_ranks, 2.0
    return num_values * (encoded * codec.encode + decoded * codec.decode)
