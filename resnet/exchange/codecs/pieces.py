"""Cuts the message of a vector into messages of its pieces, without coding it anew.

What the pieces hold together is what the message of the vector holds, so the formula of
a method acts on the whole vector, wherever it is cut.
"""

from collections.abc import Sequence

import numpy as np

from resnet.exchange.codecs import qsgd, sparse, ternary, wire
from resnet.exchange.codecs.wire import Bytes

_VALUE_BYTES = {wire.DENSE: 4, wire.FLOAT16: 2, wire.BFLOAT16: 2}


def cut(message: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Returns the messages of successive pieces of a vector.

    Args:
        message: The message of the vector.
        sizes: Length of each piece, at least 1; their sum is the length of the vector.
            A piece must begin at a multiple of 5 values in a ternary message, and of 8
            values and of the bucket in one of QSGD.

    Raises:
        ValueError: If the message is corrupt, or can't be cut there.
    """
    kind, bit_width, body, rest = wire.split(message)
    if rest.size:
        raise ValueError(f"{rest.size} bytes are behind the message")
    if kind in (wire.SPARSE_FLOAT32, wire.SPARSE_BFLOAT16):
        return sparse.pieces(kind, bit_width, body, sizes)
    if kind == wire.TERNARY:
        bodies = ternary.pieces(body, sizes)
    elif kind == wire.QSGD:
        bodies = qsgd.pieces(bit_width, body, sizes)
    else:
        bodies = _pieces_of_values(body, sizes, _VALUE_BYTES[kind])
    return [
        np.frombuffer(wire.header(kind, bit_width, len(one)) + one, np.uint8)
        for one in bodies
    ]


def _pieces_of_values(
    body: bytes, sizes: Sequence[int], value_bytes: int
) -> list[bytes]:
    ends = np.cumsum(sizes) * value_bytes
    if len(body) != ends[-1]:
        raise ValueError(f"a message of {sum(sizes)} values has {len(body)} bytes")
    return [
        body[end - size * value_bytes : end]
        for end, size in zip(ends.tolist(), sizes, strict=True)
    ]
