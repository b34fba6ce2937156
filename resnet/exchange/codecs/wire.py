"""The bytes that all messages share: their header, and integers of a few bits.

A message holds one vector of float32 values, the gradient of a variable or of all
variables. All numbers in it are little-endian, and bits are counted from the lowest bit
of the first byte. It begins with a header of 8 bytes:

    bytes 0 to 3   length of the message in bytes, with its header, uint32
    byte 4         kind: one of the constants below
    byte 5         width in bits of the integers in the message, 0 where there are none
    bytes 6 and 7  zero

The message of a dense vector (`DENSE`) continues with its values in float32, one of a
cast vector with its values in IEEE half precision (`FLOAT16`) or in bfloat16
(`BFLOAT16`). Messages of several vectors stand one after the other without a gap.
"""

import struct

import numpy as np
import numpy.typing as npt

DENSE = 0
SPARSE_FLOAT32 = 1
SPARSE_BFLOAT16 = 2
TERNARY = 3
QSGD = 4
FLOAT16 = 5
BFLOAT16 = 6

HEADER_BYTES = 8
KIND_BYTE = 4
_HEADER = struct.Struct("<IBBH")

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def join(kind: int, bit_width: int, *parts: np.ndarray) -> Bytes:
    """Returns a message of the parts, which are written as they are in memory."""
    body = b"".join(
        part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts
    )
    return np.frombuffer(header(kind, bit_width, len(body)) + body, np.uint8)


def split(messages: Bytes) -> tuple[int, int, bytes, Bytes]:
    """Splits the first message off.

    Args:
        messages: One or more messages.

    Returns:
        Its kind, its bit width, its body, and the messages after it.

    Raises:
        ValueError: If the bytes begin with no whole message.
    """
    if len(messages) < HEADER_BYTES:
        raise ValueError(
            f"a message has a header of 8 bytes; there are {len(messages)}"
        )
    length, kind, bit_width, zero = _HEADER.unpack(messages[:HEADER_BYTES].tobytes())
    if zero or kind > BFLOAT16 or not HEADER_BYTES <= length <= len(messages):
        raise ValueError(
            f"the header of a message is corrupt: length {length} of {len(messages)}"
            f" bytes, kind {kind}"
        )
    body = messages[HEADER_BYTES:length].tobytes()
    return kind, bit_width, body, messages[length:]


def header(kind: int, bit_width: int, num_body_bytes: int) -> bytes:
    """Returns the header of a message.

    Args:
        kind: Kind of the message.
        bit_width: Width of its integers, in bits.
        num_body_bytes: Length of the message without its header.
    """
    return _HEADER.pack(HEADER_BYTES + num_body_bytes, kind, bit_width, 0)


def encode_dense(values: Values) -> Bytes:
    """Returns the message of a dense vector."""
    return join(DENSE, 0, values)


def pack_integers(integers: npt.NDArray[np.uint32], bit_width: int) -> Bytes:
    """Returns non-negative integers below `2**bit_width`, each in so many bits."""
    bits = integers[:, np.newaxis] >> np.arange(bit_width, dtype=np.uint32) & 1
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack_integers(
    packed: Bytes, bit_width: int, count: int
) -> npt.NDArray[np.uint32]:
    """Returns the integers that `pack_integers` has packed."""
    bits = np.unpackbits(packed, count=count * bit_width, bitorder="little")
    weights = np.uint32(1) << np.arange(bit_width, dtype=np.uint32)
    return bits.reshape(count, bit_width) @ weights


def num_packed_bytes(count: int, bit_width: int) -> int:
    """Returns the number of bytes of so many packed integers."""
    return -(-count * bit_width // 8)
