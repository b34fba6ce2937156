"""TernGrad: each value becomes -1, 0 or 1 times the largest magnitude, at random.

    Q(g) = sign(g) max|g| b,  b = 1 with probability |g| / max|g|, else 0

Its mean is g. After the header (`wire`) of a message follow

    bytes 8 to 11  the largest magnitude, float32
    digits         five values a byte: the sum of (sign(value) + 1) 3^i over the places
                   i = 0 to 4; the places behind the last value count as 0

which is 1.6 bits a value, 0.015 above log2(3).

Source: Wen et al. 2017, arXiv:1705.07878, without its clipping, as in
sands-lab/layer-wise-aaai20, CIFAR10/core.py, TernGrad.
"""

from collections.abc import Sequence

import numpy as np

from resnet.exchange.codecs import random_bits, wire
from resnet.exchange.codecs.random_bits import Stream
from resnet.exchange.codecs.wire import Bytes, Values

VALUES_PER_BYTE = 5
_POWERS = 3 ** np.arange(VALUES_PER_BYTE)
SCALE_BYTES = 4


def encode(values: Values, stream: Stream) -> tuple[Bytes, Values]:
    """Returns the message of a vector, and what it lacks.

    If a value is infinite or NaN, all values in the message are NaN.

    Args:
        values: `[n]` float32.
        stream: What the random numbers depend on.

    Returns:
        The message, and `values` minus the values in the message, float32.
    """
    magnitudes = np.abs(values)
    scale = magnitudes.max(initial=np.float32(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        is_sent = random_bits.uniform(stream, values.size) < magnitudes / scale
    signs = np.where(is_sent, np.sign(values), 0)
    digits = np.zeros(-(-values.size // VALUES_PER_BYTE) * VALUES_PER_BYTE, np.int64)
    digits[: values.size] = signs + 1
    packed = (digits.reshape(-1, VALUES_PER_BYTE) @ _POWERS).astype(np.uint8)
    message = wire.join(wire.TERNARY, 0, np.array([scale], np.float32), packed)
    with np.errstate(invalid="ignore"):
        return message, values - signs.astype(np.float32) * scale


def decode(body: bytes, num_values: int) -> Values:
    """Returns the values of a message.

    Args:
        body: The message without its header.
        num_values: Length of the vector.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector.
    """
    _check_length(body, num_values)
    scale = np.frombuffer(body[:SCALE_BYTES], "<f4")
    packed = np.frombuffer(body[SCALE_BYTES:], np.uint8)
    if packed.max(initial=0) >= 3**VALUES_PER_BYTE:
        raise ValueError(f"a byte of five ternary digits is {packed.max()}")
    digits = packed[:, np.newaxis].astype(np.int64) // _POWERS % 3
    with np.errstate(invalid="ignore"):
        return (digits.ravel()[:num_values] - 1).astype(np.float32) * scale


def pieces(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Returns the bodies of the messages of successive pieces of a message's vector.

    Args:
        body: The message without its header.
        sizes: Length of each piece, except for the last one a multiple of 5.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector, or if
            it can't be cut there.
    """
    _check_length(body, sum(sizes))
    if any(size % VALUES_PER_BYTE for size in sizes[:-1]):
        raise ValueError("a ternary message can be cut behind multiples of 5 values")
    scale, digits = body[:SCALE_BYTES], body[SCALE_BYTES:]
    found = []
    for size in sizes:
        num_bytes = -(-size // VALUES_PER_BYTE)
        found.append(scale + digits[:num_bytes])
        digits = digits[num_bytes:]
    return found


def _check_length(body: bytes, num_values: int) -> None:
    if len(body) != SCALE_BYTES - (-num_values // VALUES_PER_BYTE):
        raise ValueError(
            f"a ternary message of {num_values} values has {len(body)} bytes"
        )
