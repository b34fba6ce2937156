"""From each rank's gradients to the mean of all ranks' compressed gradients."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from resnet.compression import messages, random_coordinates, sparse, vectors
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config
from resnet.distributed import exchange_account
from resnet.distributed.communicator import Communicator
from resnet.distributed.exchange_account import ExchangeAccount, Traffic
from resnet.distributed.gradient_exchange import (
    Exchanged,
    GradientExchange,
    nan_unless_finite,
)

# Values whose messages are sent together: 4 MB of gradients.
_BUCKET_VALUES = 1 << 20


class CompressedExchange(GradientExchange):
    """Averages what the ranks' messages hold of their gradients.

    Each rank compresses its own gradients and decodes the messages of all ranks, in one
    order: so all ranks have the same mean. Messages of successive variables are sent
    together, as soon as these have their gradients. With error feedback, what a message
    lacks is added to the vector of the next step.

    Sources: sands-lab/layer-wise-aaai20, CIFAR10/core.py; for error feedback,
    Karimireddy et al. 2019, arXiv:1901.09847.
    """

    def __init__(
        self,
        communicator: Communicator,
        names: Sequence[str],
        compression: CompressionSettings,
        seed: int,
        residuals: Mapping[str, tf.Variable],
    ) -> None:
        """Prepares the exchange.

        Args:
            communicator: The ranks.
            names: Names of the variables, the same on all ranks.
            compression: The settings of compression.
            seed: Seed of the random numbers that the methods draw.
            residuals: For error feedback what the last messages lacked, `[n]` float32
                for each vector by its name (`vectors.sizes`); else empty.
        """
        super().__init__(communicator.collectives, names)
        self._variable_names = list(names)
        self._rank, self._num_ranks = communicator.rank, communicator.num_ranks
        self._compression = compression
        self._seed = seed
        self._residuals = residuals

    def __call__(
        self,
        gradients: Sequence[tf.Tensor],
        loss: tf.Tensor,
        flags: tf.Tensor,
        step: tf.Tensor,
    ) -> Exchanged:
        """Returns the means over ranks, as `GradientExchange` does."""
        # A message may lack the value that isn't finite, so the loss must tell it.
        local_loss = nan_unless_finite(loss, gradients[0])
        means = self._mean_of_status(local_loss, flags)
        mean_gradients, account = self._mean_of_gradients(gradients, step)
        return Exchanged(
            gradients=mean_gradients,
            local_loss=local_loss,
            loss=nan_unless_finite(means[0], mean_gradients[0]),
            flags=means[1:],
            account=account,
        )

    def _mean_of_gradients(
        self, gradients: Sequence[tf.Tensor], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], ExchangeAccount]:
        sizes = [gradient.shape.num_elements() for gradient in gradients]
        granularity = self._compression.compress
        names = list(vectors.sizes(self._variable_names, sizes, granularity))
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        if len(names) < len(flat):
            flat = [tf.concat(flat, axis=0)]
        flat = [
            vector + self._residuals[name] if name in self._residuals else vector
            for name, vector in zip(names, flat, strict=True)
        ]
        if self._compression.method == "randomk":
            means, left, traffic = self._exchange_coordinates(names, flat, step)
        else:
            means, left, traffic = self._exchange_messages(names, flat, step)
        account = exchange_account.account(traffic, gradients, means, flat, left)
        for name, rest in zip(names, left, strict=True):
            if name in self._residuals:
                self._residuals[name].assign(rest)
        if len(means) < len(gradients):
            means = tf.split(means[0], sizes)
        return [
            tf.reshape(mean, gradient.shape)
            for mean, gradient in zip(means, gradients, strict=True)
        ], account

    def _exchange_coordinates(
        self, names: Sequence[str], flat: Sequence[tf.Tensor], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], Traffic]:
        """Returns the means of the same random coordinates of all ranks, and the rest.

        All ranks draw the same coordinates: what they send can be summed on its way.
        """
        means, left, num_values = [], [], 0
        for number, (name, vector) in enumerate(zip(names, flat, strict=True)):
            size = vector.shape.num_elements()
            indices = random_coordinates.draw(
                size, self._compression.ratio, self._seed, number, step
            )
            (mean,) = self._collectives.allreduce_mean(
                [tf.gather(vector, indices)], [f"compressed/{name}"]
            )
            num_values += sparse.randomk_count(size, self._compression.ratio)
            places = indices[:, tf.newaxis]
            means.append(tf.scatter_nd(places, mean, [size]))
            zeros = tf.zeros_like(mean)
            left.append(tf.tensor_scatter_nd_update(vector, places, zeros))
        traffic = exchange_account.of_allreduce(num_values, self._num_ranks)
        return means, left, traffic

    def _exchange_messages(
        self, names: Sequence[str], flat: Sequence[tf.Tensor], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], Traffic]:
        """Returns the means of the messages of all ranks, and what this rank's lack."""
        sizes = [vector.shape.num_elements() for vector in flat]
        encoded: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        means: dict[int, tf.Tensor] = {}
        for bucket in buckets(sizes):
            for number in bucket:
                stream = tf.stack(
                    [self._seed, tf.constant(number, tf.int64), step, self._rank]
                )
                encoded[number] = messages.encode(
                    flat[number], self._compression, stream
                )
            message = tf.concat([encoded[number][0] for number in bucket], axis=0)
            gathered = self._collectives.allgather(
                message, f"compressed/{names[bucket[0]]}"
            )
            decoded = messages.decode_mean(
                gathered, [sizes[number] for number in bucket], self._num_ranks
            )
            means.update(zip(bucket, decoded, strict=True))
        order = range(len(flat))
        traffic = exchange_account.of_allgather(
            [encoded[i][0] for i in order], self._num_ranks
        )
        return [means[i] for i in order], [encoded[i][1] for i in order], traffic


def exchange_of_run(
    config: Config,
    names: Sequence[str],
    residuals: Mapping[str, tf.Variable],
    communicator: Communicator,
) -> GradientExchange:
    """Returns the exchange of gradients that the settings of a run ask for.

    Args:
        config: The settings.
        names: Names of the variables.
        residuals: As `CompressedExchange` takes them.
        communicator: The ranks.
    """
    if config.compress == "none":
        return GradientExchange(communicator.collectives, names)
    return CompressedExchange(communicator, names, config, config.seed, residuals)


def buckets(sizes: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of the vectors whose messages are sent together.

    The last variables come first, as they have their gradients first. Each bucket has
    `_BUCKET_VALUES` values or more, except for the last one.

    Args:
        sizes: Length of each vector.
    """
    found: list[list[int]] = []
    num_values = _BUCKET_VALUES
    for number in reversed(range(len(sizes))):
        if num_values >= _BUCKET_VALUES:
            found.append([])
            num_values = 0
        found[-1].append(number)
        num_values += sizes[number]
    return found
