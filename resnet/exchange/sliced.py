"""Exchanges the coded messages of vectors in slices, each summed up by one rank."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from resnet.exchange.codecs import messages, slices
from resnet.exchange.gathered import GatheredMessages

_SLICE_PREFIX = "slice_residual/"


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

    def _prepare(self) -> None:
        super()._prepare()
        alignment = slices.alignment(self._compression, max(self._sizes))
        self._slices = [
            slices.cut(
                [self._sizes[vector] for vector in bucket], self._num_ranks, alignment
            )
            for bucket in self._buckets
        ]
        if self._compression.keeps_residuals:
            for number, of_ranks in enumerate(self._slices):
                size = num_values(of_ranks[self._rank])
                self.rank_variables[slice_name(number)] = tf.Variable(tf.zeros([size]))

    def _bytes_gathered(self, bucket: Sequence[int]) -> int:
        """Returns the bytes of all ranks' slices, which together are one message."""
        return super()._bytes_gathered(bucket) // self._num_ranks

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


def num_values(pieces: Sequence[slices.Piece]) -> int:
    """Returns the number of values of a slice."""
    return sum(piece.size for piece in pieces)


def slice_name(bucket: int) -> str:
    """Returns the stored name of the residual of a rank's slice of a bucket."""
    return f"{_SLICE_PREFIX}{bucket}"


def is_slice(name: str) -> bool:
    """Returns whether a stored name is that of the residual of a slice."""
    return name.startswith(_SLICE_PREFIX)
