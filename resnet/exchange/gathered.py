"""Exchanges the coded messages of vectors by an all-gather.

The messages of successive vectors travel together, some megabytes of gradients at a
time, as soon as these are computed.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.distributed.communicator import AgreedError
from resnet.exchange.account import Traffic
from resnet.exchange.codecs import message_sizes, messages
from resnet.exchange.vector_exchange import Means, VectorExchange

# Values whose messages are sent together: 4 MB of gradients.
BUCKET_VALUES = 1 << 20
_MOST_BYTES = 2**31 - 1  # Horovod calls MPI_Allgatherv, which has 32-bit counts.


class GatheredMessages(VectorExchange):
    """Each rank receives the messages of all others, and decodes them to their mean.

    A rank sends its messages to R - 1 others.
    """

    def _prepare(self) -> None:
        self._buckets = buckets(self._sizes)
        largest = max(map(self._bytes_gathered, self._buckets), default=0)
        if largest > _MOST_BYTES:
            raise AgreedError(
                f"--exchange=allgather can bring a rank {_MOST_BYTES:,} bytes in one"
                f" piece; messages of {self._num_ranks:,} ranks can have {largest:,}."
                " Set --exchange=sliced or --compress=layerwise."
            )

    def _bytes_gathered(self, bucket: Sequence[int]) -> int:
        """Returns the most bytes of all ranks' messages for the vectors of a bucket."""
        return self._num_ranks * sum(
            message_sizes.largest_of_vector(self._compression, self._sizes[vector])
            for vector in bucket
        )

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks, as `VectorExchange` says."""
        encoded: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        means: dict[int, tf.Tensor] = {}
        sent = []
        for number, bucket in enumerate(self._buckets):
            for vector in bucket:
                encoded[vector] = self._encode(flat[vector], vector, step, ratio)
            coded = [encoded[vector][0] for vector in bucket]
            of_bucket, num_bytes = self._mean_of_bucket(number, coded, step, ratio)
            means.update(zip(bucket, of_bucket, strict=True))
            sent.append(num_bytes)
        order = range(len(flat))
        return Means(
            [means[i] for i in order],
            [encoded[i][1] for i in order],
            Traffic.of_messages([encoded[i][0] for i in order], sent),
        )

    def _mean_of_bucket(
        self, number: int, coded: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the means of a bucket's vectors, and the bytes that this rank sends.

        Args:
            number: Number of the bucket.
            coded: The messages of its vectors, uint8.
            step: Number of the step.
            ratio: Fraction of the values to keep.
        """
        del step, ratio
        bucket = self._buckets[number]
        message = tf.concat(coded, axis=0)
        gathered = self._collectives.allgather(
            message, f"compressed/{self._names[bucket[0]]}"
        )
        sizes = [self._sizes[vector] for vector in bucket]
        means = messages.decode_mean(gathered, sizes, self._num_ranks)
        return means, self._bytes_to_all(message)

    def _bytes_to_all(self, message: tf.Tensor) -> tf.Tensor:
        return message_sizes.sent_by_allgather(
            tf.size(message, tf.int64), self._num_ranks
        )

    def _encode(
        self, values: tf.Tensor, vector: int, step: tf.Tensor, ratio: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the message of a vector of that number, and what it lacks."""
        stream = tf.stack([self._seed, tf.constant(vector, tf.int64), step, self._rank])
        return messages.encode(values, self._compression, stream, ratio)


def buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of the vectors whose messages are sent together.

    The last variables come first, as they have their gradients first. Each bucket has
    `BUCKET_VALUES` values or more, except for the last one.

    Args:
        sizes: Length of each vector.
    """
    found: list[list[int]] = []
    in_bucket = BUCKET_VALUES
    for number in reversed(range(len(sizes))):
        if in_bucket >= BUCKET_VALUES:
            found.append([])
            in_bucket = 0
        found[-1].append(number)
        in_bucket += sizes[number]
    return found
