"""The codecs of messages in NumPy, slowly: `encode` and `decode_mean`.

The formats are described in `resnet/exchange/codecs/`. A corrupt message is a
ValueError.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from resnet.config.compression import CompressionSettings, topk_count

DENSE, SPARSE_FLOAT32, SPARSE_BFLOAT16, TERNARY, QSGD, FLOAT16, BFLOAT16 = range(7)
TWO_BIT = 7  # And sparse.
_VALUE_BYTES = {DENSE: 4, FLOAT16: 2, BFLOAT16: 2}
_HEADER = struct.Struct("<IBBH")

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


class Stream(NamedTuple):
    """What the random numbers of a vector depend on (`Context.stream`)."""

    seed: int
    vector: int
    step: int
    rank: int


def encode(
    values: Values, settings: CompressionSettings, stream: Stream
) -> tuple[Bytes, Values]:
    """Returns the message that a method makes of a vector, and what it lacks."""
    method = settings.method
    if method == "terngrad":
        return encode_ternary(values, stream)
    if method == "qsgd":
        return encode_qsgd(
            values, stream, settings.qstates, settings.qsgd_bucket, settings.qsgd_norm
        )
    if method == "fp16":
        clipped = np.where(np.isinf(values), values, np.clip(values, -65_504, 65_504))
        nearest = clipped.astype(np.float16)
        return join(FLOAT16, 0, nearest), values - nearest.astype(np.float32)
    if method == "bf16":
        rounded = round_to_bfloat16(values)
        return join(BFLOAT16, 0, _upper_half(rounded)), values - rounded
    threshold = {
        "topk": lambda: threshold_of_topk(
            values, topk_count(values.size, settings.ratio)
        ),
        "thresholdv": lambda: np.float32(settings.threshold),
        "adaptivethreshold": lambda: threshold_of_adaptive(values),
    }[method]()
    return encode_sparse(values, threshold, settings.kept_values)


def decode_mean(messages: Bytes, sizes: Sequence[int], num_ranks: int) -> list[Values]:
    """Returns the means over ranks of vectors, as the op does."""
    factor = np.float32(1) / np.float32(num_ranks)
    means = [np.zeros(size, np.float32) for size in sizes]
    for _ in range(num_ranks):
        for mean in means:
            kind, bit_width, body, messages = split(messages)
            with np.errstate(invalid="ignore", over="ignore"):
                mean += _decode(kind, bit_width, body, mean.size) * factor
    _check(not messages.size)
    return means


def join(kind: int, bit_width: int, *parts: np.ndarray) -> Bytes:
    """Returns a message of the parts, which are written as they are in memory."""
    return _message(kind, bit_width, b"".join(part.tobytes() for part in parts))


def split(messages: Bytes) -> tuple[int, int, bytes, Bytes]:
    """Returns kind, bit width and body of the first message, and those after it."""
    _check(len(messages) >= _HEADER.size)
    length, kind, bit_width, zero = _HEADER.unpack(messages[: _HEADER.size].tobytes())
    _check(not zero and kind <= TWO_BIT and _HEADER.size <= length <= len(messages))
    body = messages[_HEADER.size : length].tobytes()
    return kind, bit_width, body, messages[length:]


def uniform(stream: Stream, count: int) -> Values:
    """Returns numbers from 0 to below 1, multiples of 2**-24."""
    groups = np.arange(-(-count // 4), dtype=np.uint64)
    others = (stream.vector, stream.step, stream.rank)
    counter = [groups, *(np.full_like(groups, number) for number in others)]
    bits = philox(counter, (stream.seed & 0xFFFFFFFF, stream.seed >> 32))
    numbers = np.stack(bits, axis=1).ravel()[:count] >> np.uint64(8)
    return numbers.astype(np.float32) * np.float32(2**-24)


def philox(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Returns Philox4x32-10 of counters; all words are below 2**32, in uint64."""
    mask = np.uint64(0xFFFFFFFF)
    a, b, c, d = counter
    for number in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        keys = [
            np.uint64(word + number * step & 0xFFFFFFFF)
            for word, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        ]
        a, b = (second >> np.uint64(32)) ^ b ^ keys[0], second & mask
        c, d = (first >> np.uint64(32)) ^ d ^ keys[1], first & mask
    return [a, b, c, d]


def threshold_of_topk(values: Values, count: int) -> np.float32:
    """Returns the magnitude of the `count`-th largest value; NaN is the largest."""
    place = values.size - count
    bits = np.partition(_magnitude_bits(values), place)[place : place + 1]
    return bits.view(np.float32)[0]


def threshold_of_adaptive(values: Values) -> np.float32:
    """Returns half of the largest magnitude; NaN if a value is NaN."""
    largest = _magnitude_bits(values).max(initial=0)
    return largest.astype(np.uint32).view(np.float32) / np.float32(2)


def encode_sparse(
    values: Values, threshold: np.float32, kept_values: str = "float32"
) -> tuple[Bytes, Values]:
    """Returns the message of the values of at least a magnitude, and what it lacks."""
    smallest = max(int(threshold.view(np.uint32)), 1)
    indices = np.flatnonzero(_magnitude_bits(values) >= smallest)
    kind, rounded = {
        "float32": (SPARSE_FLOAT32, lambda kept: kept),
        "bfloat16": (SPARSE_BFLOAT16, round_to_bfloat16),
        "2bit": (TWO_BIT, round_to_levels),
    }[kept_values]
    sent = rounded(values[indices])
    left = values.copy()
    left[indices] -= sent
    return _sparse_message(indices, sent, values.size, kind), left


def round_to_levels(values: Values) -> Values:
    """Returns for each value the mean of the large or the small ones of its sign."""
    rounded = values.copy()
    is_large = np.abs(values) > np.float32(_mean(np.abs(values)))
    for negative, large in itertools.product((False, True), repeat=2):
        chosen = (np.signbit(values) == negative) & (is_large == large)
        rounded[chosen] = _mean(values[chosen])
    return rounded


def _mean(values: Values) -> np.float64:
    """Returns the mean in float64, added up one by one."""
    return np.cumsum([*values, 0], dtype=np.float64)[-1] / max(values.size, 1)


def round_to_bfloat16(values: Values) -> Values:
    """Returns the nearest bfloat16 values, ties to even, as float32; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    rounded = np.where(np.isnan(values), bits | 0x400000, rounded) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def encode_ternary(values: Values, stream: Stream) -> tuple[Bytes, Values]:
    """Returns the message of TernGrad, and what it lacks."""
    magnitudes = np.abs(values)
    scale = magnitudes.max(initial=np.float32(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        is_sent = uniform(stream, values.size) < magnitudes / scale
    signs = np.where(is_sent, np.sign(values), 0)
    digits = np.zeros(-(-values.size // 5) * 5, np.int64)
    digits[: values.size] = signs + 1
    packed = (digits.reshape(-1, 5) @ 3 ** np.arange(5)).astype(np.uint8)
    message = join(TERNARY, 0, np.array([scale], np.float32), packed)
    with np.errstate(invalid="ignore"):
        return message, values - signs.astype(np.float32) * scale


def encode_qsgd(
    values: Values, stream: Stream, states: int, bucket: int = 0, norm: str = "l2"
) -> tuple[Bytes, Values]:
    """Returns the message of QSGD, and what it lacks."""
    size = min(bucket or values.size, values.size) or 1
    buckets = np.zeros((-(-values.size // size), size), np.float32)
    buckets.ravel()[: values.size] = values
    norms = _norms(buckets, norm)
    of_each = np.repeat(norms, size)[: values.size]
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.abs(values) / of_each * np.float32(states)
    is_valid = (of_each > 0) & np.isfinite(of_each)
    drawn = np.floor(np.where(is_valid, scaled, 0) + uniform(stream, values.size))
    levels = np.minimum(np.where(is_valid, drawn, 0), states).astype(np.int64)
    levels = np.where(np.signbit(values), -levels, levels)
    width = (2 * states).bit_length()
    fixed = np.array([states, bucket], np.uint32)
    message = join(QSGD, width, fixed, norms, _packed(levels + states, width))
    with np.errstate(invalid="ignore"):
        return message, values - _values_of_levels(levels, of_each, states)


def _message(kind: int, bit_width: int, body: bytes) -> Bytes:
    header = _HEADER.pack(_HEADER.size + len(body), kind, bit_width, 0)
    return np.frombuffer(header + body, np.uint8)


def _decode(kind: int, bit_width: int, body: bytes, num_values: int) -> Values:
    if kind == TERNARY:
        _check(len(body) == 4 - (-num_values // 5))
        packed = np.frombuffer(body[4:], np.uint8)
        _check(packed.max(initial=0) < 3**5)
        digits = packed[:, np.newaxis].astype(np.int64) // 3 ** np.arange(5) % 3
        signs = (digits.ravel()[:num_values] - 1).astype(np.float32)
        with np.errstate(invalid="ignore"):
            return signs * np.frombuffer(body[:4], "<f4")
    if kind == QSGD:
        states, size, norms_end = _layout_of_qsgd(bit_width, body, num_values)
        norms = np.frombuffer(body[8:norms_end], "<f4")
        codes = _unpacked(body[norms_end:], bit_width, num_values)
        _check(codes.max(initial=0) <= 2 * states)
        of_each = np.repeat(norms, size)[:num_values]
        return _values_of_levels(codes - states, of_each, states)
    if kind in (SPARSE_FLOAT32, SPARSE_BFLOAT16, TWO_BIT):
        indices, sent = _kept(kind, bit_width, body, num_values)
        values = np.zeros(num_values, np.float32)
        values[indices] = sent
        return values
    _check(len(body) == num_values * _VALUE_BYTES[kind])
    if kind == BFLOAT16:
        return _from_upper_half(np.frombuffer(body, "<u2"))
    dtype = "<f2" if kind == FLOAT16 else "<f4"
    return np.frombuffer(body, dtype).astype(np.float32)


def _sparse_message(
    indices: np.ndarray, sent: Values, num_values: int, kind: int
) -> Bytes:
    """Returns the message of the kept values `sent` at increasing indices."""
    bit_width = 0
    if indices.size:
        bit_width = (693 * num_values // (1000 * indices.size)).bit_length() - 1
        bit_width = max(bit_width, 0)
    gaps = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum((gaps >> bit_width) + 1)
    unary = np.zeros(ends[-1] if indices.size else 0, np.uint8)
    unary[ends - 1] = 1
    numbers = [_upper_half(sent) if kind == SPARSE_BFLOAT16 else sent]
    if kind == TWO_BIT:
        bits = sent.view(np.uint32).tolist()
        levels = list(dict.fromkeys(bits))
        codes = np.array([levels.index(one) for one in bits], np.int64)
        numbers = [np.array([*levels, 0, 0, 0, 0][:4]).astype("u4"), _packed(codes, 2)]
    message = join(
        kind,
        bit_width,
        np.array([indices.size], np.uint32),
        *numbers,
        _packed(gaps & ((1 << bit_width) - 1), bit_width),
        np.packbits(unary, bitorder="little"),
    )
    if message.size > _HEADER.size + 4 * num_values:
        dense = np.zeros(num_values, np.float32)
        dense[indices] = sent
        message = join(DENSE, 0, dense)
    return message


def _kept(
    kind: int, bit_width: int, body: bytes, num_values: int
) -> tuple[np.ndarray, Values]:
    """Returns the indices and the values of a sparse message."""
    _check(len(body) >= 4 and bit_width <= 31)
    count = int.from_bytes(body[:4], "little")
    dtype = np.dtype("<u2" if kind == SPARSE_BFLOAT16 else "<f4")
    values_end = 4 + count * dtype.itemsize
    if kind == TWO_BIT:
        values_end = 20 - (-count // 4)
    remainders_end = values_end - (-count * bit_width // 8)
    _check(count <= num_values and remainders_end <= len(body))
    if kind == TWO_BIT:
        levels = np.frombuffer(body[4:20], "<f4")
        numbers = levels[_unpacked(body[20:values_end], 2, count)]
    else:
        numbers = np.frombuffer(body[4:values_end], dtype)
    remainders = _unpacked(body[values_end:remainders_end], bit_width, count)
    unary = np.frombuffer(body[remainders_end:], np.uint8)
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    _check(ends.size == count)
    quotients = np.diff(ends, prepend=-1) - 1
    indices = np.cumsum((quotients << bit_width) + remainders + 1) - 1
    _check(not count or indices[-1] < num_values)
    if kind == SPARSE_BFLOAT16:
        return indices, _from_upper_half(numbers)
    return indices, numbers.astype(np.float32)


def _layout_of_qsgd(
    bit_width: int, body: bytes, num_values: int
) -> tuple[int, int, int]:
    """Returns the states, the values of a bucket, and where the norms end in a body."""
    _check(len(body) >= 8)
    states, bucket = struct.unpack("<II", body[:8])
    size = min(bucket or num_values, num_values) or 1
    norms_end = 8 + 4 * -(-num_values // size)
    _check(1 <= states <= 2**23 and bit_width == (2 * states).bit_length())
    _check(len(body) == norms_end - (-num_values * bit_width // 8))
    return states, size, norms_end


def _values_of_levels(levels: np.ndarray, norms: Values, states: int) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        return norms * levels.astype(np.float32) / np.float32(states)


def _norms(buckets: np.ndarray, kind: str) -> Values:
    """Returns norms of buckets; sums of squares are float64, in a fixed order."""
    if kind == "max":
        return np.abs(buckets).max(axis=1)
    count, size = buckets.shape
    totals = np.zeros(count)
    for begin in range(0, size, 1 << 16):
        squares = np.square(buckets[:, begin : begin + (1 << 16)].astype(np.float64))
        squares = np.pad(squares, ((0, 0), (0, -squares.shape[1] % 8)))
        rows = squares.reshape(count, squares.shape[1] // 8, 8)
        for lane in np.add.reduce(rows, axis=1).T:  # Row after row.
            totals += lane
    with np.errstate(over="ignore"):
        return np.sqrt(totals).astype(np.float32)


def _packed(integers: np.ndarray, bit_width: int) -> Bytes:
    """Returns integers below `2**bit_width`, each in so many bits."""
    bits = integers.astype(np.uint32)[:, np.newaxis] >> np.arange(
        bit_width, dtype=np.uint32
    )
    return np.packbits((bits & 1).astype(np.uint8).ravel(), bitorder="little")


def _unpacked(packed: bytes, bit_width: int, count: int) -> np.ndarray:
    bits = np.unpackbits(
        np.frombuffer(packed, np.uint8), count=count * bit_width, bitorder="little"
    )
    weights = np.int64(1) << np.arange(bit_width, dtype=np.int64)
    return bits.reshape(count, bit_width) @ weights


def _magnitude_bits(values: Values) -> npt.NDArray[np.uint32]:
    """Returns the bits without signs, whose order is that of the magnitudes."""
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _upper_half(values: Values) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def _from_upper_half(bits: np.ndarray) -> Values:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("a message is corrupt")
