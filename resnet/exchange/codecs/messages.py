"""Messages: the bytes by which ranks send coded vectors, as ops of `resnet.native`.

A message holds one vector of float32 values, the gradient of a variable or of all
variables. All numbers in it are little-endian, and bits are counted from the lowest bit
of the first byte. It begins with a header of 8 bytes:

    bytes 0 to 3   length of the message in bytes, with its header, uint32
    byte 4         kind: 0 dense, 1, 2 and 7 sparse with float32, bfloat16 and 2 bits
                   (`sparse`), 3 ternary, 4 qsgd, 5 and 6 IEEE half precision and
                   bfloat16 (all `quantized`)
    byte 5         width in bits of the integers in the message, 0 where there are none
    bytes 6 and 7  zero

A dense message continues with its values in float32. Messages of several vectors stand
one after the other without a gap.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from resnet import native
from resnet.base.errors import UserError
from resnet.config.compression import HEADER_BYTES

DENSE, FLOAT16, BFLOAT16 = 0, 5, 6
_KIND_BYTE = 4


def check_ops(method: str) -> None:
    """Refuses to compress without the compiled ops, with the reason why there are none.

    Raises:
        UserError: If they can't be used here.
    """
    if native.ops() is None:
        raise UserError(
            f"--method={method} needs the compiled ops on every host; here there are"
            f" none ({native.describe()}). Or leave --compress out."
        )


def ops() -> Any:
    """Returns the module of the compiled ops, which are there (`check_ops`)."""
    return native.ops()


def of_values(values: tf.Tensor, kind: int = DENSE) -> tf.Tensor:
    """Returns the message, uint8, of a vector whose values are sent one by one.

    They are `[n]`, of the dtype of the kind; n is known in the graph.
    """
    body = tf.reshape(tf.bitcast(values, tf.uint8), [-1])
    length = HEADER_BYTES + body.shape[0]
    header = struct.pack("<IBBH", length, kind, 0, 0)
    return tf.concat([np.frombuffer(header, np.uint8), body], axis=0)


def is_dense(message: tf.Tensor) -> tf.Tensor:
    """Returns whether a message holds all values in float32; a bool scalar."""
    return tf.equal(message[_KIND_BYTE], DENSE)


def cut(message: tf.Tensor, sizes: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts a message into those of successive pieces of its vector, not coded anew.

    What these hold together is what the message holds, so the formula of a method acts
    on the whole vector, wherever it is cut. All pieces but the last one begin at
    multiples of the codec's alignment. Returns the messages, one behind the other,
    uint8; and their lengths in bytes, `[n]` int32.

    Raises:
        tf.errors.OpError: In the graph, if the message is corrupt.
    """
    if len(sizes) == 1:
        return message, tf.size(message)[tf.newaxis]
    return ops().resnet_cut_message(message, sizes=sizes)


def decode_mean(
    messages: tf.Tensor, sizes: Sequence[int], num_ranks: int
) -> list[tf.Tensor]:
    """Returns the means over ranks of vectors, `[n]` float32 each.

    The messages, uint8, are those of all vectors of rank 0, then of rank 1, and so on.

    Raises:
        tf.errors.DataLossError: In the graph, if they are corrupt.
    """
    return ops().resnet_decode_mean(
        messages, num_vectors=len(sizes), sizes=sizes, num_ranks=num_ranks
    )
