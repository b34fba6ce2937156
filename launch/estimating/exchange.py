"""The exchange of gradients or weights: its bytes, its seconds, and what overlaps."""

import math
from typing import NamedTuple

from launch.estimating import collectives
from launch.estimating.cluster import Cluster
from launch.estimating.collectives import Stages
from launch.estimating.workload import Workload
from resnet.config.compression import (
    BUCKET_VALUES,
    METHODS,
    CompressionSettings,
    num_bytes,
)

# The loss and the three flags that all ranks share in each step.
_FLAG_BYTES = 16
# Of three products of matrices in a layer, the backward pass computes two: the
# gradients of the kernel and those of the inputs (`resnet.models.flops`).
BACKWARD_SHARE = 2 / 3


class Exchange(NamedTuple):
    """One exchange of the gradients or weights of the whole network.

    Attributes:
        network_seconds: The seconds on the network, without any overlap.
        codec_seconds: The seconds that the ranks encode and decode.
        num_buckets: The number of messages that follow each other.
        sent_bytes: The bytes that a node sends.
    """

    network_seconds: float = 0.0
    codec_seconds: float = 0.0
    num_buckets: int = 1
    sent_bytes: float = 0.0

    def exposed_seconds(self, backward_seconds: float, overlap: float) -> float:
        """Returns the seconds by which the exchange makes a step longer.

        The last bucket of k is only sent after the backward pass, and the others during
        it, as far as that lasts. Encoding takes the cores of the computation.

        Args:
            backward_seconds: The seconds of the backward pass.
            overlap: The fraction of it during which the exchange makes progress.

        Source: Agarwal et al. 2021, arXiv:2103.00543, the performance model:
        max(T_backward, (k - 1) T_bucket) + T_last.
        """
        last = self.network_seconds / self.num_buckets
        before = self.network_seconds - last
        late = max(0.0, before - overlap * backward_seconds)
        return self.codec_seconds + late + last


def of_gradients(
    workload: Workload, cluster: Cluster, num_nodes: int, allreduce: str = "auto"
) -> Exchange:
    """Returns the exchange of the gradients in a step.

    Args:
        workload: The training.
        cluster: The cluster.
        num_nodes: The number of nodes; on one there is no exchange between nodes.
        allreduce: The kind of all-reduce, one of `collectives.ALLREDUCES`.
    """
    if num_nodes == 1:
        return Exchange()
    compression = workload.compression
    is_one = compression.compress == "entiremodel"
    num_buckets = 1 if is_one else math.ceil(workload.num_values / BUCKET_VALUES)
    if compression.compress == "none":
        message = workload.gradient_bytes
    else:
        message = message_bytes(workload)
    is_sum = compression.compress == "none" or METHODS[compression.method].is_summed
    codec = 0.0
    if is_sum:
        of_bucket = collectives.allreduce(
            message / num_buckets, num_nodes, cluster, allreduce
        )
    else:
        way, of_bucket = _messages(
            compression, message / num_buckets, num_nodes, cluster
        )
        num_ranks = cluster.num_ranks(num_nodes)
        codec = codec_seconds(compression, workload.num_values, num_ranks, way)
    return Exchange(
        num_buckets * of_bucket.seconds(cluster),
        codec,
        num_buckets,
        num_buckets * of_bucket.sent_bytes,
    )


def of_weights(
    workload: Workload, cluster: Cluster, num_nodes: int, allreduce: str = "auto"
) -> Exchange:
    """Returns an average of the weights after a round of local SGD.

    It has as many bytes as gradients that aren't compressed, and overlaps with nothing.
    The averages of batch normalization's statistics, 0.2 % of ResNet-50's, are left
    out.

    Args:
        workload: The training.
        cluster: The cluster.
        num_nodes: The number of nodes.
        allreduce: The kind of all-reduce, one of `collectives.ALLREDUCES`.
    """
    if num_nodes == 1:
        return Exchange()
    stages = collectives.allreduce(
        workload.gradient_bytes, num_nodes, cluster, allreduce
    )
    return Exchange(stages.seconds(cluster), sent_bytes=stages.sent_bytes)


def flags_seconds(cluster: Cluster, num_nodes: int) -> float:
    """Returns the seconds in which all ranks share loss and flags in a local step."""
    stages = collectives.recursive_doubling(
        _FLAG_BYTES, num_nodes, cluster.ranks_per_node
    )
    return stages.seconds(cluster)


def message_bytes(workload: Workload) -> int:
    """Returns the bytes of one rank's compressed gradients in a step.

    All values are taken as one vector; the headers of each variable's message, where
    these are compressed one by one, are 0.1 % of the messages of topk with a ratio of
    1 %. So are the short ones that `dense_below` leaves whole, those of fewer than
    2,048 values being 0.15 MB of ResNet-50's 102 MB. Of methods with a threshold, 1 %
    is taken to be sent.
    """
    return num_bytes(workload.compression, [workload.num_values])


def codec_seconds(
    compression: CompressionSettings, num_values: int, num_ranks: int, exchange: str
) -> float:
    """Returns the seconds that a rank encodes and decodes in a step, on one core.

    0 for methods that haven't been measured. With "allgather" a rank decodes R
    messages; with "sliced" R slices of one message, then the means of R slices, of
    which it encodes one.
    """
    encoded, decoded = 1.0, float(num_ranks)
    if exchange == "sliced":
        encoded, decoded = 1 + 1 / num_ranks, 2.0
    encode, decode = METHODS[compression.method].value_seconds
    return num_values * (encoded * encode + decoded * decode)


def _messages(
    compression: CompressionSettings, num_bytes: float, num_nodes: int, cluster: Cluster
) -> tuple[str, Stages]:
    """Returns how messages reach all ranks: the fastest way, or the one that is set."""
    num_ranks = cluster.num_ranks(num_nodes)
    ways = {
        "allgather": collectives.allgather(num_bytes, num_ranks),
        "sliced": collectives.slices(num_bytes, num_ranks, cluster.ranks_per_node),
    }
    if compression.exchange != "auto":
        return compression.exchange, ways[compression.exchange]
    # The run itself compares the network's seconds only (resnet.exchange.choice).
    if num_ranks <= 2:
        return "allgather", ways["allgather"]
    way = min(ways, key=lambda name: ways[name].seconds(cluster))
    return way, ways[way]
