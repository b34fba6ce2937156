"""Exchanges the coded messages of vectors: gathered by all ranks, or in slices.

The messages of successive vectors travel together, some megabytes of gradients at a
time, as soon as these are computed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from resnet.compression import message_sizes, messages, slices
from resnet.config.compression import CompressionSettings
from resnet.distributed import exchange_account
from resnet.distributed.communicator import Communicator
from resnet.distributed.exchange_account import Traffic

# Values whose messages are sent together: 4 MB of gradients.
BUCKET_VALUES = 1 << 20

_SLICE_PREFIX = "slice_residual/"


class Means(NamedTuple):
    """The result of an exchange of vectors.

    Attributes:
        means: Mean over ranks of what was sent of each vector, `[n]` float32 each, the
            same on all ranks.
        left: What this rank has not sent of each of its own vectors, `[n]` float32.
        traffic: The bytes of it.
    """

    means: list[tf.Tensor]
    left: list[tf.Tensor]
    traffic: Traffic


class GatheredMessages:
    """Each rank receives the messages of all others, and decodes them to their mean.

    A rank sends its messages to R - 1 others.

    Attributes:
        rank_variables: The state of this rank by its stored name: none.
    """

    def __init__(
        self,
        communicator: Communicator,
        vector_sizes: dict[str, int],
        compression: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange.

        Args:
            communicator: The ranks.
            vector_sizes: Length of each vector by its name, the same on all ranks.
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.
        """
        self.rank_variables: dict[str, tf.Variable] = {}
        self._collectives = communicator.collectives
        self._rank, self._num_ranks = communicator.rank, communicator.num_ranks
        self._names, self._sizes = list(vector_sizes), list(vector_sizes.values())
        self._compression = compression
        self._seed = seed
        self._buckets = buckets(self._sizes)

    def __call__(self, flat: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any) -> Means:
        """Returns the means over ranks; to be called inside the graph of a step.

        Args:
            flat: The vectors of this rank, `[n]` float32 each.
            step: Number of the step, an int64 scalar.
            ratio: Fraction of the values to keep, for methods that keep some: a number,
                or a float64 scalar.
        """
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
            exchange_account.of_messages([encoded[i][0] for i in order], sent),
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


class SlicedMessages(GatheredMessages):
    """Each rank sums up one slice of all vectors, and sends its mean to the others.

    Each rank sends the others their slices of its messages, decodes what it receives
    for its own slice, and compresses the mean of it once more, as one vector, for all
    ranks. With error feedback, what this second message lacks is added to the mean of
    the next step. A rank sends 2 (R - 1) / R times its messages, whatever the number R
    of ranks.

    Sources: Tang et al. 2019, arXiv:1905.05957 (DoubleSqueeze), for the error feedback
    of both messages; CGX, arXiv:2111.08617, for the exchange by scatter and gather.

    Attributes:
        rank_variables: With error feedback, what the messages of this rank's slices
            lacked, by their stored names.
    """

    def __init__(
        self,
        communicator: Communicator,
        vector_sizes: dict[str, int],
        compression: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange, as `GatheredMessages` does."""
        super().__init__(communicator, vector_sizes, compression, seed)
        alignment = slices.alignment(compression, max(self._sizes))
        self._slices = [
            slices.cut(
                [self._sizes[vector] for vector in bucket], self._num_ranks, alignment
            )
            for bucket in self._buckets
        ]
        if compression.keeps_residuals:
            for number, of_ranks in enumerate(self._slices):
                size = num_values(of_ranks[self._rank])
                self.rank_variables[slice_name(number)] = tf.Variable(tf.zeros([size]))

    def _mean_of_bucket(
        self, number: int, coded: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        bucket, of_ranks = self._buckets[number], self._slices[number]
        name = f"compressed/{self._names[bucket[0]]}"
        received, num_bytes = self._send_slices(coded, of_ranks, name)
        message = self._message_of_slice(number, received, step, ratio)
        gathered = self._collectives.allgather(message, f"{name}/slice")
        sizes = [size for pieces in of_ranks if (size := num_values(pieces))]
        decoded = messages.decode_mean(gathered, sizes, 1)
        whole = decoded[0] if len(decoded) == 1 else tf.concat(decoded, axis=0)
        means = tf.split(whole, [self._sizes[vector] for vector in bucket])
        return means, num_bytes + self._bytes_to_all(message)

    def _send_slices(
        self,
        coded: Sequence[tf.Tensor],
        of_ranks: Sequence[Sequence[slices.Piece]],
        name: str,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the messages that this rank receives for the pieces of its slice.

        And the bytes that it sends to other ranks for theirs.
        """
        cut, lengths = [], []
        for vector, message in enumerate(coded):
            sizes = [
                piece.size
                for pieces in of_ranks
                for piece in pieces
                if piece.vector == vector
            ]
            if len(sizes) == 1:
                cut.append(message)
                lengths.append(tf.size(message)[tf.newaxis])
            else:
                pieces_of_vector, lengths_of_pieces = messages.cut(message, sizes)
                cut.append(pieces_of_vector)
                lengths.append(lengths_of_pieces)
        receivers = [rank for rank, pieces in enumerate(of_ranks) for _ in pieces]
        bytes_of_rank = tf.math.unsorted_segment_sum(
            tf.concat(lengths, axis=0), tf.constant(receivers), len(of_ranks)
        )
        received = self._collectives.alltoall(
            tf.concat(cut, axis=0), bytes_of_rank, name
        )
        to_others = tf.reduce_sum(bytes_of_rank) - bytes_of_rank[self._rank]
        return received, tf.cast(to_others, tf.int64)

    def _message_of_slice(
        self, number: int, received: tf.Tensor, step: tf.Tensor, ratio: Any
    ) -> tf.Tensor:
        """Returns the message of this rank's slice of a bucket; empty without values.

        Args:
            number: Number of the bucket.
            received: The messages of all ranks for the pieces of this rank's slice.
            step: Number of the step.
            ratio: Fraction of the values to keep.
        """
        pieces = self._slices[number][self._rank]
        if not pieces:
            return tf.zeros([0], tf.uint8)
        sizes = [piece.size for piece in pieces]
        means = messages.decode_mean(received, sizes, self._num_ranks)
        values = means[0] if len(means) == 1 else tf.concat(means, axis=0)
        residual = self.rank_variables.get(slice_name(number))
        if residual is not None:
            values += residual
        message, left = self._encode(values, len(self._sizes) + number, step, ratio)
        if residual is not None:
            residual.assign(left)
        return message


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


def num_values(pieces: Sequence[slices.Piece]) -> int:
    """Returns the number of values of a slice."""
    return sum(piece.size for piece in pieces)


def slice_name(bucket: int) -> str:
    """Returns the stored name of the residual of a rank's slice of a bucket."""
    return f"{_SLICE_PREFIX}{bucket}"


def is_slice(name: str) -> bool:
    """Returns whether a stored name is that of the residual of a slice."""
    return name.startswith(_SLICE_PREFIX)
