"""The transports of compressed vectors: all-reduce, gather, and slices.

They know codecs and no methods. A transport returns the mean over ranks of what the
ranks send, the same on all ranks.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from resnet.config.compression import (
    BUCKET_VALUES,
    METHODS,
    CompressionSettings,
    dense_bytes,
    most_bytes,
    num_bytes,
)
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.exchange import plan
from resnet.exchange.account import Traffic
from resnet.exchange.codecs import CODECS, messages
from resnet.exchange.codecs.codec import Context

_MOST_BYTES = 2**31 - 1  # Horovod calls MPI_Allgatherv, which has 32-bit counts.


class Means(NamedTuple):
    """Of each vector, `[n]` float32: its mean over ranks, and what this didn't send.

    The means are of what was sent, and the same on all ranks. `traffic` has the bytes.
    """

    means: list[tf.Tensor]
    left: list[tf.Tensor]
    traffic: Traffic


class Transport:
    """Averages what the ranks send of some vectors; a subclass says how it travels.

    `rank_variables` is what this rank keeps from step to step, by its stored name.
    """

    def __init__(
        self,
        communicator: Communicator,
        shapes: Mapping[str, Sequence[int]],
        settings: CompressionSettings,
        seed: int,
    ) -> None:
        """Prepares the exchange of vectors, by the shapes of their gradients.

        Raises:
            AgreedError: On all ranks, if the settings don't fit the shapes or a host.
        """
        self.rank_variables: dict[str, tf.Variable] = {}
        self._communicator = communicator
        self._collectives = communicator.collectives
        self._rank, self._num_ranks = communicator.rank, communicator.num_ranks
        self._settings = settings
        self._codec = CODECS[settings.method]
        self._shapes = dict(shapes)
        self._names = list(shapes)
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        self._seed = seed
        self._prepare()

    def _prepare(self) -> None:
        """Makes what else a subclass keeps."""

    def __call__(
        self, vectors: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> Means:
        """Returns the means over ranks; to be called inside the graph of a step.

        The number of the step is an int64 scalar; `ratio` is that of `Context`.
        """
        raise NotImplementedError

    def _context(
        self,
        number: int,
        name: str,
        shape: Sequence[int],
        step: tf.Tensor,
        ratio: Any,
        state: tf.Variable | None = None,
    ) -> Context:
        """Returns what the codec may use for the vector of a number."""

        def mean(tensor: tf.Tensor, part: str) -> tf.Tensor:
            names = [f"compressed/{name}{part}"]
            return self._collectives.allreduce_mean([tensor], names)[0]

        stream = tf.stack([self._seed, tf.constant(number, tf.int64), step, self._rank])
        return Context(self._settings, shape, stream, ratio, state, mean)


class AllReduce(Transport):
    """Sums what the ranks send on its way."""

    def _prepare(self) -> None:
        self._prefix = f"{self._settings.method}/"
        for number, (name, shape) in enumerate(self._shapes.items()):
            seed = [self._seed, number]
            state = self._codec.state(self._settings, name, shape, seed)
            if state is not None:
                self.rank_variables[self._prefix + name] = state
        sizes = (num_bytes(self._settings, shape) for shape in self._shapes.values())
        self._num_bytes = sum(sizes)

    def __call__(
        self, vectors: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> Means:
        """Returns the means, as `Transport` says."""
        assert self._codec.average is not None  # noqa: S101
        means, left = [], []
        for number, (name, shape) in enumerate(self._shapes.items()):
            state = self.rank_variables.get(self._prefix + name)
            context = self._context(number, name, shape, step, ratio, state)
            mean, rest = self._codec.average(vectors[number], context)
            means.append(mean)
            left.append(rest)
        traffic = Traffic.of_allreduce(self._num_bytes // 4, self._num_ranks)
        return Means(means, left, traffic)


class Gather(Transport):
    """Each rank receives the messages of all others, and decodes them to their mean.

    A rank sends its messages to R - 1 others. Those of successive vectors travel
    together, some megabytes of gradients at a time, as soon as these are computed.
    """

    def _prepare(self) -> None:
        with self._communicator.collective_errors():
            messages.check_ops(self._settings.method)
        self._buckets = buckets(self._sizes)
        largest = max(map(self._bytes_gathered, self._buckets), default=0)
        if largest > _MOST_BYTES:
            raise AgreedError(
                f"--exchange=allgather can bring a rank {_MOST_BYTES:,} bytes in one"
                f" piece; messages of {self._num_ranks:,} ranks can have {largest:,}."
                " Set --exchange=sliced or --compress=layerwise."
            )

    def _bytes_gathered(self, bucket: Sequence[int]) -> int:
        """Returns the most bytes that a rank receives of a bucket in one piece."""
        return self._num_ranks * sum(
            most_bytes(self._settings, [self._sizes[vector]]) for vector in bucket
        )

    def __call__(
        self, vectors: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> Means:
        """Returns the means, as `Transport` says."""
        encoded: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        means: dict[int, tf.Tensor] = {}
        sent = []
        for number, bucket in enumerate(self._buckets):
            for vector in bucket:
                encoded[vector] = self._encode(vectors[vector], vector, step, ratio)
            coded = [encoded[vector][0] for vector in bucket]
            of_bucket, bytes_sent = self._mean_of_bucket(number, coded, step, ratio)
            means.update(zip(bucket, of_bucket, strict=True))
            sent.append(bytes_sent)
        order = range(len(vectors))
        own, left = zip(*(encoded[vector] for vector in order), strict=True)
        traffic = Traffic(
            message_bytes=tf.add_n([tf.size(message, tf.int64) for message in own]),
            bytes_sent=tf.add_n(sent),
            num_dense=tf.math.count_nonzero(list(map(messages.is_dense, own))),
        )
        return Means([means[vector] for vector in order], list(left), traffic)

    def _mean_of_bucket(
        self, number: int, coded: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the means of a bucket's vectors, and the bytes that this rank sends.

        `coded` are the messages of its vectors, uint8.
        """
        del step, ratio
        message = tf.concat(coded, axis=0)
        gathered = self._collectives.allgather(message, self._name_of(number))
        sizes = [self._sizes[vector] for vector in self._buckets[number]]
        means = messages.decode_mean(gathered, sizes, self._num_ranks)
        return means, self._bytes_to_all(message)

    def _name_of(self, bucket: int) -> str:
        return f"compressed/{self._names[self._buckets[bucket][0]]}"

    def _bytes_to_all(self, message: tf.Tensor) -> tf.Tensor:
        return plan.sent_by_allgather(tf.size(message, tf.int64), self._num_ranks)

    def _encode(
        self, values: tf.Tensor, number: int, step: tf.Tensor, ratio: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the message of the vector of a number, and what it lacks.

        It is dense if any would be longer; if that depends on values, the op chooses.
        """
        shape = values.shape.as_list()
        method = METHODS[self._settings.method]
        if method.size == "exact" and (
            method.coded_bytes(self._settings, shape) > dense_bytes(math.prod(shape))
        ):
            return messages.of_values(values), tf.zeros_like(values)
        assert self._codec.encode is not None  # noqa: S101
        context = self._context(number, "", shape, step, ratio)
        return self._codec.encode(values, context)


class Slices(Gather):
    """Each rank sums up one slice of all vectors, and sends its mean to the others.

    Each rank sends the others their slices of its messages, decodes what it receives
    for its own slice, and compresses the mean of it once more, as one vector, for all
    ranks. With error feedback, what this second message lacks is added to the mean of
    the next step. A rank sends 2 (R - 1) / R times its messages, whatever the number R
    of ranks.

    Sources: Tang et al. 2019, arXiv:1905.05957 (DoubleSqueeze), for the error feedback
    of both messages; CGX, arXiv:2111.08617, for the exchange by scatter and gather.
    """

    def _prepare(self) -> None:
        super()._prepare()
        alignment = self._codec.alignment(self._settings, max(self._sizes))
        self._slices = [
            slices_of(
                [self._sizes[vector] for vector in bucket], self._num_ranks, alignment
            )
            for bucket in self._buckets
        ]
        if self._settings.keeps_residuals:
            for number, of_ranks in enumerate(self._slices):
                size = _num_values(of_ranks[self._rank])
                residual = tf.Variable(tf.zeros([size]))
                self.rank_variables[f"slice_residual/{number}"] = residual

    def _bytes_gathered(self, bucket: Sequence[int]) -> int:
        # The slices of all ranks together are one message.
        return super()._bytes_gathered(bucket) // self._num_ranks

    def _mean_of_bucket(
        self, number: int, coded: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        bucket, of_ranks = self._buckets[number], self._slices[number]
        name = self._name_of(number)
        received, bytes_sent = self._send_slices(coded, of_ranks, name)
        message = self._message_of_slice(number, received, step, ratio)
        gathered = self._collectives.allgather(message, f"{name}/slice")
        sizes = [size for pieces in of_ranks if (size := _num_values(pieces))]
        whole = tf.concat(messages.decode_mean(gathered, sizes, 1), axis=0)
        means = tf.split(whole, [self._sizes[vector] for vector in bucket])
        return means, bytes_sent + self._bytes_to_all(message)

    def _send_slices(
        self,
        coded: Sequence[tf.Tensor],
        of_ranks: Sequence[Sequence["Piece"]],
        name: str,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the messages for this rank's slice, and the bytes that it sends."""
        cut, lengths = [], []
        for vector, message in enumerate(coded):
            sizes = [
                piece.size
                for pieces in of_ranks
                for piece in pieces
                if piece.vector == vector
            ]
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
        """Returns the message of this rank's slice of a bucket, which may be empty."""
        pieces = self._slices[number][self._rank]
        if not pieces:
            return tf.zeros([0], tf.uint8)
        sizes = [piece.size for piece in pieces]
        means = messages.decode_mean(received, sizes, self._num_ranks)
        values = tf.concat(means, axis=0)
        residual = self.rank_variables.get(f"slice_residual/{number}")
        if residual is not None:
            values += self._settings.residual_decay * residual
        message, left = self._encode(values, len(self._sizes) + number, step, ratio)
        if residual is not None:
            residual.assign(left)
        return message


class Piece(NamedTuple):
    """The part of a vector that is in one slice: its number in the bucket, and size."""

    vector: int
    size: int


def slices_of(
    sizes: Sequence[int], num_slices: int, alignment: int
) -> list[list[Piece]]:
    """Returns the pieces of each slice, in the order of the vectors.

    The slices are equal parts of all vectors together, whatever the sizes of these,
    except that pieces begin at multiples of the alignment in their vector. There are
    slices without pieces where there are too few values.
    """
    total = sum(sizes)
    cuts = [total * number // num_slices for number in range(1, num_slices)]
    slices: list[list[Piece]] = [[]]
    first = 0  # The place of the vector in its bucket.
    for vector, size in enumerate(sizes):
        begin = 0
        while len(slices) <= len(cuts) and cuts[len(slices) - 1] < first + size:
            place = cuts[len(slices) - 1] - first + alignment // 2
            end = min(max(place // alignment * alignment, begin), size)
            if end > begin:
                slices[-1].append(Piece(vector, end - begin))
            slices.append([])
            begin = end
        if size > begin:
            slices[-1].append(Piece(vector, size - begin))
        first += size
    return slices + [[] for _ in range(num_slices - len(slices))]


def _num_values(pieces: Sequence[Piece]) -> int:
    return sum(piece.size for piece in pieces)


def buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of the vectors whose messages are sent together.

    The last variables come first, as they have their gradients first. Each bucket has
    `BUCKET_VALUES` values or more, except for the last one.
    """
    in_order: list[list[int]] = []
    in_bucket = BUCKET_VALUES
    for number in reversed(range(len(sizes))):
        if in_bucket >= BUCKET_VALUES:
            in_order.append([])
            in_bucket = 0
        in_order[-1].append(number)
        in_bucket += sizes[number]
    return in_order


class ShortVectorsWhole(Transport):
    """Averages vectors of fewer than `dense_below` values, such as biases, as they are.

    Source: synxlin/deep-gradient-compression, whose train.py compresses variables of
    two or more dimensions only.
    """

    def _prepare(self) -> None:
        is_short = [size < self._settings.dense_below for size in self._sizes]
        self._short = [number for number, short in enumerate(is_short) if short]
        self._long = [number for number, short in enumerate(is_short) if not short]
        self._transport: Transport | None = None
        if self._long:
            names = [self._names[number] for number in self._long]
            others = {name: self._shapes[name] for name in names}
            self._transport = _kind(self._settings)(
                self._communicator, others, self._settings, self._seed
            )
            self.rank_variables = self._transport.rank_variables

    def __call__(
        self, vectors: Sequence[tf.Tensor], step: tf.Tensor, ratio: Any
    ) -> Means:
        """Returns the means, as `Transport` says."""
        means, left = list(vectors), [tf.zeros_like(vector) for vector in vectors]
        num_values = sum(self._sizes[number] for number in self._short)
        traffic = Traffic.of_allreduce(num_values, self._num_ranks)
        of_short = self._collectives.allreduce_mean(
            [vectors[number] for number in self._short],
            [f"whole/{self._names[number]}" for number in self._short],
        )
        for number, mean in zip(self._short, of_short, strict=True):
            means[number] = mean
        if self._transport:
            others = self._transport([vectors[i] for i in self._long], step, ratio)
            for index, number in enumerate(self._long):
                means[number], left[number] = others.means[index], others.left[index]
            traffic = Traffic(*map(operator.add, traffic, others.traffic))
        return Means(means, left, traffic)


def kind_of(settings: CompressionSettings) -> type[Transport]:
    """Returns the transport that the settings ask for."""
    return ShortVectorsWhole if settings.dense_below else _kind(settings)


def _kind(settings: CompressionSettings) -> type[Transport]:
    """Returns the transport of the vectors that are compressed."""
    if METHODS[settings.method].is_summed:
        return AllReduce
    return Slices if settings.exchange == "sliced" else Gather
