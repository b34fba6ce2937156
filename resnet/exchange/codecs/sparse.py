"""Messages of the few values of a vector that are kept; the others count as zero.

After the header (`wire`) follow

    bytes 8 to 11  number of kept values k, uint32
    values         k numbers, float32 or bfloat16, in the order of their indices
    remainders     k integers of `bit_width` bits (b) each, padded to a whole byte
    quotients      k unary numbers to the end of the message: as many zero bits as the
                   quotient, then a one; padded with zero bits to a whole byte

Remainder and quotient are those of each gap divided by `2**b`, a gap being the number
of dropped values before a kept one since the last kept one: Rice's code, whose two
parts are in streams of their own. For random positions it takes 8.1 bits an index where
1 % is kept, 0.04 above their entropy.

Source: Rice and Plaunt 1971, "Adaptive variable-length coding".
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from resnet.exchange.codecs import wire
from resnet.exchange.codecs.wire import Bytes, Values

_DTYPE_OF_KIND = {wire.SPARSE_FLOAT32: "<f4", wire.SPARSE_BFLOAT16: "<u2"}
COUNT_BYTES = 4


def topk_count(num_values: int, ratio: float) -> int:
    """Returns how many values topk keeps, n - ceil(n (1 - ratio)) + 1, at most n.

    Args:
        num_values: Length n of the vector.
        ratio: Fraction of the values to keep, above 0 and at most 1.

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Topk.
    """
    return min(num_values - math.ceil(num_values * (1 - ratio)) + 1, num_values)


def randomk_count(num_values: int, ratio: float) -> int:
    """Returns how many values randomk keeps, ceil(n ratio).

    Args:
        num_values: Length n of the vector.
        ratio: Fraction of the values to keep, above 0 and at most 1.

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, Randomk.
    """
    return min(math.ceil(num_values * ratio), num_values)


def threshold_of_topk(values: Values, count: int) -> np.float32:
    """Returns the magnitude of the `count`-th largest value; NaN counts as the largest.

    Values that are as large as that one are kept too.

    Args:
        values: `[n]` float32.
        count: Number of values to keep, from 1 to n.
    """
    place = values.size - count
    bits = np.partition(_magnitude_bits(values), place)[place : place + 1]
    return bits.view(np.float32)[0]


def threshold_of_adaptive(values: Values) -> np.float32:
    """Returns half of the largest magnitude; NaN if a value is NaN.

    Source: sands-lab/layer-wise-aaai20, CIFAR10/core.py, AdaptiveThreshold.
    """
    largest = _magnitude_bits(values).max(initial=0)
    return largest.astype(np.uint32).view(np.float32) / np.float32(2)


def encode(
    values: Values, threshold: np.float32, is_bfloat16: bool = False
) -> tuple[Bytes, Values]:
    """Returns the message of the values of at least a magnitude, and what it lacks.

    Where the message would be longer than that of all values, it is a dense one of the
    kept values and zeros. Zeros are never kept; NaN always is.

    Args:
        values: `[n]` float32.
        threshold: The smallest magnitude that is kept, at least 0.
        is_bfloat16: Whether the kept values are rounded to bfloat16.

    Returns:
        The message, and `values` minus the values in the message, float32.
    """
    smallest = max(int(threshold.view(np.uint32)), 1)
    indices = np.flatnonzero(_magnitude_bits(values) >= smallest)
    kept = values[indices]
    sent = round_to_bfloat16(kept) if is_bfloat16 else kept
    left = values.copy()
    left[indices] -= sent
    return _message(indices, sent, values.size, is_bfloat16), left


def decode(kind: int, bit_width: int, body: bytes, num_values: int) -> Values:
    """Returns the values of a message, with zeros for those that were not kept.

    Args:
        kind: Kind of the message.
        bit_width: Bit width in its header.
        body: The message without its header.
        num_values: Length of the vector.

    Raises:
        ValueError: If the body is not one that `encode` makes for such a vector.
    """
    indices, sent = _kept(kind, bit_width, body, num_values)
    decoded = np.zeros(num_values, np.float32)
    decoded[indices] = sent
    return decoded


def pieces(kind: int, bit_width: int, body: bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Returns the messages of successive pieces of a message's vector.

    Args:
        kind: Kind of the message.
        bit_width: Bit width in its header.
        body: The message without its header.
        sizes: Length of each piece; their sum is the length of the vector.

    Raises:
        ValueError: If the message is corrupt.
    """
    indices, sent = _kept(kind, bit_width, body, sum(sizes))
    if kind == wire.SPARSE_BFLOAT16:
        sent = round_to_bfloat16(sent)  # It only changes signaling NaN.
    begins = np.cumsum([0, *sizes])
    places = np.searchsorted(indices, begins)
    return [
        _message(
            indices[first:last] - begin,
            *(sent[first:last], size, kind == wire.SPARSE_BFLOAT16),
        )
        for first, last, begin, size in zip(
            places, places[1:], begins, sizes, strict=False
        )
    ]


def rice_width(num_values: int, num_kept: int) -> int:
    """Returns the bits of a remainder: the largest b with 2^b <= ln(2) n / k."""
    if not num_kept:
        return 0
    return max((693 * num_values // (1000 * num_kept)).bit_length() - 1, 0)


def round_to_bfloat16(values: Values) -> Values:
    """Returns the nearest bfloat16 values, ties to even, as float32; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    rounded = np.where(np.isnan(values), bits | 0x400000, rounded) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def _magnitude_bits(values: Values) -> npt.NDArray[np.uint32]:
    """Returns the bits without signs, whose order is that of the magnitudes."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _message(
    indices: npt.NDArray[np.int64], sent: Values, num_values: int, is_bfloat16: bool
) -> Bytes:
    """Returns the message of the kept values `sent` at increasing indices."""
    bit_width = rice_width(num_values, indices.size)
    gaps = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum((gaps >> bit_width) + 1)
    unary = np.zeros(ends[-1] if indices.size else 0, np.uint8)
    unary[ends - 1] = 1
    numbers = sent.view(np.uint32) >> 16 if is_bfloat16 else sent
    message = wire.join(
        wire.SPARSE_BFLOAT16 if is_bfloat16 else wire.SPARSE_FLOAT32,
        bit_width,
        np.array([indices.size], np.uint32),
        numbers.astype(np.uint16) if is_bfloat16 else numbers,
        wire.pack_integers(
            (gaps & ((1 << bit_width) - 1)).astype(np.uint32), bit_width
        ),
        np.packbits(unary, bitorder="little"),
    )
    if message.size > wire.HEADER_BYTES + 4 * num_values:
        dense = np.zeros(num_values, np.float32)
        dense[indices] = sent
        message = wire.encode_dense(dense)
    return message


def _kept(
    kind: int, bit_width: int, body: bytes, num_values: int
) -> tuple[npt.NDArray[np.int64], Values]:
    """Returns the indices and the values of a message, as `decode` takes it."""
    dtype = np.dtype(_DTYPE_OF_KIND[kind])
    count = int.from_bytes(body[:COUNT_BYTES], "little")
    values_end = COUNT_BYTES + count * dtype.itemsize
    remainders_end = values_end + wire.num_packed_bytes(count, bit_width)
    is_corrupt = len(body) < COUNT_BYTES or bit_width > 31
    if is_corrupt or count > num_values or remainders_end > len(body):
        raise ValueError(f"a sparse message of {num_values} values is corrupt: {count}")
    numbers = np.frombuffer(body[COUNT_BYTES:values_end], dtype)
    packed = np.frombuffer(body[values_end:remainders_end], np.uint8)
    remainders = wire.unpack_integers(packed, bit_width, count).astype(np.int64)
    unary = np.frombuffer(body[remainders_end:], np.uint8)
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if ends.size != count:
        raise ValueError(f"a sparse message of {count} values has {ends.size} indices")
    quotients = np.diff(ends, prepend=-1) - 1
    indices = np.cumsum((quotients << bit_width) + remainders + 1) - 1
    if count and indices[-1] >= num_values:
        raise ValueError(f"an index of a message is {indices[-1]} of {num_values}")
    if kind == wire.SPARSE_BFLOAT16:
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return indices, numbers.astype(np.float32)
