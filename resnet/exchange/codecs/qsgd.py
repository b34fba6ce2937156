"""QSGD: each value becomes one of a few levels of its vector's norm, at random.

    Q(g) = sign(g) norm floor(|g| / norm s + u) / s,  u uniform from 0 to 1

Its mean is g. The norm is that of a bucket of successive values, or of all of them.
After the header (`wire`) of a message, whose bit width (w) is the least with
2^w > 2 s, follow

    bytes 8 to 11   number of states s, uint32
    bytes 12 to 15  values of a bucket, uint32; 0: all values are one bucket
    norms           one float32 for each bucket
    levels          for each value sign(value) floor(...) + s in w bits; padded with
                    zero bits to a whole byte

Source: Alistarh et al. 2017, arXiv:1610.02132; with one norm of all values as in
sands-lab/layer-wise-aaai20, CIFAR10/core.py, RandomDithering; buckets, and the largest
magnitude as the norm, as in CGX (arXiv:2111.08617).
"""

from collections.abc import Sequence

import numpy as np

from resnet.exchange.codecs import random_bits, wire
from resnet.exchange.codecs.random_bits import Stream
from resnet.exchange.codecs.wire import Bytes, Values

LARGEST_STATES = 2**23
FIXED_BYTES = 8
_BLOCK = 1 << 16  # Values whose squares are summed apart.
_LANES = 8


def encode(
    values: Values, stream: Stream, states: int, bucket: int = 0, norm: str = "l2"
) -> tuple[Bytes, Values]:
    """Returns the message of a vector, and what it lacks.

    If a value is infinite or NaN, all values of its bucket in the message are NaN.

    Args:
        values: `[n]` float32.
        stream: What the random numbers depend on.
        states: Number of levels above zero, from 1 to `LARGEST_STATES`.
        bucket: Values that share a norm; 0: all of them.
        norm: "l2", or "max" for the largest magnitude.

    Returns:
        The message, and `values` minus the values in the message, float32.
    """
    size = min(bucket or values.size, values.size) or 1
    buckets = [values[i : i + size] for i in range(0, values.size, size)]
    norms = np.array([_norm(one, norm) for one in buckets], np.float32)
    of_each = np.repeat(norms, size)[: values.size]
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.abs(values) / of_each * np.float32(states)
    is_valid = (of_each > 0) & np.isfinite(of_each)
    drawn = np.floor(
        np.where(is_valid, scaled, 0) + random_bits.uniform(stream, values.size)
    )
    levels = np.minimum(np.where(is_valid, drawn, 0), states).astype(np.int64)
    levels = np.where(np.signbit(values), -levels, levels)
    width = level_width(states)
    message = wire.join(
        wire.QSGD,
        width,
        np.array([states, bucket], np.uint32),
        norms,
        wire.pack_integers((levels + states).astype(np.uint32), width),
    )
    with np.errstate(invalid="ignore"):
        return message, values - _values(levels, of_each, states)


def decode(bit_width: int, body: bytes, num_values: int) -> Values:
    """Returns the values of a message.

    Args:
        bit_width: Bit width in the header of the message.
        body: The message without its header.
        num_values: Length of the vector.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector.
    """
    states, size, norms_end = _layout(bit_width, body, num_values)
    norms = np.frombuffer(body[FIXED_BYTES:norms_end], "<f4")
    packed = np.frombuffer(body[norms_end:], np.uint8)
    codes = wire.unpack_integers(packed, bit_width, num_values).astype(np.int64)
    if codes.max(initial=0) > 2 * states:
        raise ValueError(
            f"a level of a QSGD message is {codes.max() - states} of {states}"
        )
    return _values(codes - states, np.repeat(norms, size)[:num_values], states)


def pieces(bit_width: int, body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Returns the bodies of the messages of successive pieces of a message's vector.

    A norm of all values is in each of them.

    Args:
        bit_width: Bit width in the header of the message.
        body: The message without its header.
        sizes: Length of each piece, except for the last one a multiple of 8 and of the
            bucket.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector, or if
            it can't be cut there.
    """
    num_values = sum(sizes)
    _, bucket, norms_end = _layout(bit_width, body, num_values)
    has_one_norm = bucket >= num_values
    if any(size % 8 or (size % bucket and not has_one_norm) for size in sizes[:-1]):
        raise ValueError(
            "a QSGD message can be cut behind multiples of 8 and of the bucket"
        )
    fixed, norms, levels = np.split(
        np.frombuffer(body, np.uint8), [FIXED_BYTES, norms_end]
    )
    found, place = [], 0
    for size in sizes:
        end = place + size
        begin_norm = 0 if has_one_norm else place // bucket
        end_norm = 1 if has_one_norm else -(-end // bucket)
        begin_byte, end_byte = place // 8 * bit_width, -(-end * bit_width // 8)
        parts = (
            *(fixed, norms[4 * begin_norm : 4 * end_norm]),
            levels[begin_byte:end_byte],
        )
        found.append(b"".join(part.tobytes() for part in parts))
        place = end
    return found


def _layout(bit_width: int, body: bytes, num_values: int) -> tuple[int, int, int]:
    """Returns the states, the values of a bucket, and where the norms end in a body.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector.
    """
    states, bucket = np.frombuffer(
        body[:FIXED_BYTES].ljust(FIXED_BYTES), "<u4"
    ).tolist()
    size = min(bucket or num_values, num_values) or 1
    norms_end = FIXED_BYTES + 4 * -(-num_values // size)
    expected = norms_end + wire.num_packed_bytes(num_values, bit_width)
    is_corrupt = not 1 <= states <= LARGEST_STATES or len(body) != expected
    if is_corrupt or bit_width != level_width(states):
        raise ValueError(
            f"a QSGD message of {num_values} values is corrupt: s = {states}"
        )
    return states, size, norms_end


def level_width(states: int) -> int:
    """Returns the bits of a level: the least w with 2^w > 2 s."""
    return (2 * states).bit_length()


def _values(levels: np.ndarray, norms: Values, states: int) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        return norms * levels.astype(np.float32) / np.float32(states)


def _norm(values: Values, kind: str) -> np.float32:
    """Returns the norm of a bucket; the sum of squares is float64, in a fixed order."""
    if kind == "max":
        return np.abs(values).max(initial=np.float32(0))
    total = np.float64(0)
    for begin in range(0, values.size, _BLOCK):
        squares = np.square(values[begin : begin + _BLOCK].astype(np.float64))
        squares.resize(-(-squares.size // _LANES), _LANES)  # Zeros behind the end.
        lanes = np.add.reduce(squares, axis=0)  # Row after row.
        for lane in lanes:
            total += lane
    with np.errstate(over="ignore"):
        return np.sqrt(total).astype(np.float32)
