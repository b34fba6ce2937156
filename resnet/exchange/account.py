"""What an exchange of gradients costs: bytes, what is left out, and time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from resnet.exchange import plan


class Traffic(NamedTuple):
    """The bytes of one rank's gradients in a step, without Horovod's own messages.

    `message_bytes` are those of the rank's coded gradients, however they are sent, or
    of its gradients where they aren't compressed; `bytes_sent` those that it sends, 0
    on one rank. `num_dense` is the number of compressed vectors whose messages are
    dense, since coded ones would be longer.
    """

    message_bytes: Any
    bytes_sent: Any
    num_dense: Any = 0

    @classmethod
    def of_allreduce(cls, num_values: int, num_ranks: int) -> "Traffic":
        """Returns the traffic of float32 values that are summed on their way."""
        num_bytes = 4 * num_values
        return cls(num_bytes, plan.sent_by_allreduce(num_bytes, num_ranks))


class ExchangeAccount(NamedTuple):
    """The cost of an exchange on one rank: float64 scalars in a graph, later floats.

    Attributes:
        message_bytes, bytes_sent, num_dense: As in `Traffic`.
        compression_error: Norm of the residuals, divided by that of what was to be sent
            (with error feedback, with what earlier messages lacked); NaN if not coded.
        exposed_seconds: Seconds from this rank's last gradient to the last mean
            gradient: of the exchange, what the backward pass doesn't cover. With Muon
            it contains the orthogonalizations of the gradients that arrive first.
    """

    message_bytes: Any
    bytes_sent: Any
    num_dense: Any
    compression_error: Any
    exposed_seconds: Any


def measure_exchange(
    traffic: Traffic,
    gradients: Sequence[tf.Tensor],
    means: Sequence[tf.Tensor],
    vectors: Sequence[tf.Tensor] = (),
    left: Sequence[tf.Tensor] = (),
) -> ExchangeAccount:
    """Returns the account of an exchange; to be called inside the graph of a step.

    Nothing waits for what it adds to the graph. Of compressed gradients `vectors` were
    to be sent, and their messages lack `left`, float32.
    """
    # Each timestamp has its own control inputs. TensorFlow also keeps the order of
    # stateful ops: a stateful op that is made between the two would disturb them.
    with tf.control_dependencies(gradients):
        computed_at = tf.timestamp()
    with tf.control_dependencies(means):
        exchanged_at = tf.timestamp()
    error = tf.constant(np.nan)
    if vectors:  # By halves of the sums of squares, in one pass each.
        energy, total = (
            tf.add_n([tf.nn.l2_loss(tensor) for tensor in tensors])
            for tensors in (left, vectors)
        )
        error = tf.sqrt(tf.math.divide_no_nan(energy, total))
    return ExchangeAccount(
        message_bytes=tf.cast(traffic.message_bytes, tf.float64),
        bytes_sent=tf.cast(traffic.bytes_sent, tf.float64),
        num_dense=tf.cast(traffic.num_dense, tf.float64),
        compression_error=tf.cast(error, tf.float64),
        exposed_seconds=tf.maximum(exchanged_at - computed_at, 0.0),
    )
