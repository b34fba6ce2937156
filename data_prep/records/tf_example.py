"""Encodes and parses serialized `tf.train.Example`s without TensorFlow."""

import struct
from collections.abc import Callable, Container, Iterator, Mapping

# Wire types of protobuf; a field's tag is number << 3 | wire type.
_VARINT = 0
_FIXED64 = 1
_LENGTH_DELIMITED = 2
_FIXED32 = 5

Feature = list[memoryview] | list[int] | list[float]


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """Returns a serialized `tf.train.Example` with one value in each feature.

    The features are sorted by name, so equal features give equal bytes.

    Args:
        features: Value of each feature by name; bytes become a `bytes_list`, signed
            64-bit integers an `int64_list`.
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _encode_feature(value)))
        for name, value in sorted(features.items())
    )
    return _field(1, entries)


def parse_example(
    data: bytes | memoryview, names: Container[str] | None = None
) -> dict[str, Feature]:
    """Returns the features of a serialized `tf.train.Example`, by name.

    The values of a feature are slices of `data` (bytes, not copied), integers or
    floats; a feature without a kind is an empty list. Unknown fields are skipped.

    Args:
        data: Serialized example.
        names: Names of the features to return; None returns all.

    Raises:
        ValueError: If `data` is not a serialized example.
    """
    view = memoryview(data)
    features: dict[str, Feature] = {}
    for number, kind, begin, end in _fields(view, 0, len(view)):
        if number == 1 and kind == _LENGTH_DELIMITED:
            _parse_features(view, begin, end, names, features)
    return features


def _parse_features(
    view: memoryview,
    begin: int,
    end: int,
    names: Container[str] | None,
    features: dict[str, Feature],
) -> None:
    """Adds the requested entries of a map from names to features to `features`."""
    for number, kind, start, stop in _fields(view, begin, end):
        if number == 1 and kind == _LENGTH_DELIMITED:
            _parse_entry(view, start, stop, names, features)


def _parse_entry(
    view: memoryview,
    begin: int,
    end: int,
    names: Container[str] | None,
    features: dict[str, Feature],
) -> None:
    name = ""
    value: tuple[int, int] | None = None
    for number, kind, start, stop in _fields(view, begin, end):
        if number == 1 and kind == _LENGTH_DELIMITED:
            name = str(view[start:stop], "utf-8")
            if names is not None and name not in names:
                return  # Saves much time: most features aren't requested.
        elif number == 2 and kind == _LENGTH_DELIMITED:
            value = start, stop
    if names is None or name in names:  # The name can be missing: "".
        features[name] = _parse_feature(view, *value) if value else []


def _parse_feature(view: memoryview, begin: int, end: int) -> Feature:
    feature: Feature = []
    for number, kind, start, stop in _fields(view, begin, end):
        if kind == _LENGTH_DELIMITED and number in _PARSERS:
            feature = _PARSERS[number](view, start, stop)
    return feature


def _parse_bytes_list(view: memoryview, begin: int, end: int) -> list[memoryview]:
    return [
        view[start:stop]
        for number, kind, start, stop in _fields(view, begin, end)
        if number == 1 and kind == _LENGTH_DELIMITED
    ]


def _parse_float_list(view: memoryview, begin: int, end: int) -> list[float]:
    values: list[float] = []
    for number, kind, start, stop in _fields(view, begin, end):
        if number != 1 or kind not in (_LENGTH_DELIMITED, _FIXED32):
            continue
        if (stop - start) % 4:
            raise ValueError("a list of floats is truncated")
        values += struct.unpack(f"<{(stop - start) // 4}f", view[start:stop])
    return values


def _parse_int64_list(view: memoryview, begin: int, end: int) -> list[int]:
    values: list[int] = []
    for number, kind, start, stop in _fields(view, begin, end):
        if number != 1 or kind not in (_LENGTH_DELIMITED, _VARINT):
            continue
        while start < stop:
            value, start = _read_varint(view, start, stop)
            values.append(value - 2**64 if value >= 2**63 else value)
    return values


_PARSERS: dict[int, Callable[[memoryview, int, int], Feature]] = {
    1: _parse_bytes_list,
    2: _parse_float_list,
    3: _parse_int64_list,
}


def _fields(
    view: memoryview, position: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, wire type, start and end of each field of a protobuf message."""
    while position < end:
        tag, begin = view[position], position + 1
        if tag >= 0x80:  # Rare; the call would slow down all others.
            tag, begin = _read_varint(view, position, end)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, begin = _read_varint(view, begin, end)
            position = begin + length
        elif kind == _VARINT:
            position = _read_varint(view, begin, end)[1]
        elif kind == _FIXED32:
            position = begin + 4
        elif kind == _FIXED64:
            position = begin + 8
        else:
            raise ValueError(f"it has a field of unknown wire type {kind}")
        if position > end:
            raise ValueError("a field is truncated")
        if tag < 8:
            raise ValueError("a field has number 0")
        yield tag >> 3, kind, begin, position


def _read_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """Returns an unsigned 64-bit integer and the position of its end."""
    if position < end and view[position] < 0x80:  # Faster than the loop.
        return view[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("a number is truncated")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise ValueError("a number has more than 64 bits")


def _encode_feature(value: bytes | int) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))  # bytes_list
    # A negative number is stored as its 64-bit two's complement.
    return _field(3, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))  # int64_list


def _field(number: int, content: bytes) -> bytes:
    tag = number << 3 | _LENGTH_DELIMITED
    return b"".join((_varint(tag), _varint(len(content)), content))


def _varint(value: int) -> bytes:
    """Returns 7 bits per byte, lowest first; the top bit says that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
