"""The seconds that collective operations take, by formulas of bytes and ranks.

A message of n bytes takes latency + n / bandwidth, and a sum of n bytes takes n / sum
rate: alpha + n beta and n gamma in the source. Ranks are numbered node by node, and
what they exchange within a node counts as part of its rate, so that only stages between
nodes are counted. A node's ranks share its bandwidth.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), pages 49 to 66.
"""

import math
from typing import NamedTuple

from launch.estimating.cluster import SUM_BYTES_PER_SECOND, Cluster

# MPICH gathers in a logarithmic number of stages below these bytes, else in a ring
# (MPIR_CVAR_ALLGATHER_LONG_MSG_SIZE).
_SHORT_ALLGATHER_BYTES = 512 << 10


class Stages(NamedTuple):
    """What a node does one after the other in a collective operation.

    Attributes:
        num_messages: The number of messages that follow each other.
        sent_bytes: The bytes that the node sends, and as many that it receives.
        summed_bytes: The bytes that one of its ranks adds to others.
    """

    num_messages: float
    sent_bytes: float
    summed_bytes: float = 0.0

    def seconds(self, cluster: Cluster) -> float:
        """Returns the seconds that they take."""
        return (
            self.num_messages * cluster.latency
            + self.sent_bytes / cluster.bandwidth
            + self.summed_bytes / SUM_BYTES_PER_SECOND
        )


def recursive_doubling(
    num_bytes: float, num_nodes: int, ranks_per_node: int = 1
) -> Stages:
    """Returns an all-reduce of short messages: lg N stages of the whole tensor.

    Args:
        num_bytes: The bytes n of the tensor.
        num_nodes: The number of nodes N.
        ranks_per_node: The number of ranks, each of which sends the tensor.

    Source: Thakur et al. 2005, section 4.5.
    """
    num_stages = math.floor(math.log2(num_nodes))
    num_stages += 2 * _extra(num_nodes, ranks_per_node)
    sent = num_stages * num_bytes
    return Stages(num_stages, sent * ranks_per_node, sent)


def rabenseifner(num_bytes: float, num_nodes: int, ranks_per_node: int = 1) -> Stages:
    """Returns an all-reduce by reduce-scatter and all-gather, 2 lg N stages.

    A node sends 2 (N - 1) / N times the tensor. Its ranks halve the tensor among
    themselves first, so that together they send no more than one rank would.

    Args:
        num_bytes: The bytes n of the tensor.
        num_nodes: The number of nodes N.
        ranks_per_node: The number of ranks on each.

    Source: Thakur et al. 2005, section 4.5.
    """
    num_stages = math.floor(math.log2(num_nodes))
    in_tree = 1 << num_stages
    share = (in_tree - 1) / in_tree
    extra = _extra(num_nodes, ranks_per_node)
    return Stages(
        2 * (num_stages + extra),
        2 * (share + extra) * num_bytes,
        (share + extra) * num_bytes,
    )


def _extra(num_nodes: int, ranks_per_node: int) -> int:
    """Returns whether the tensor travels once more before all stages, and after them.

    For numbers that aren't powers of two, pairs of neighboring ranks become one. An
    even number of ranks on a node pairs up within it.

    Source: MPICH, allreduce_intra_recursive_doubling.c and
    allreduce_intra_reduce_scatter_allgather.c.
    """
    is_power = num_nodes & (num_nodes - 1) == 0
    return 0 if is_power or ranks_per_node % 2 == 0 else 1


def ring(num_bytes: float, num_ranks: int) -> Stages:
    """Returns an all-reduce in a ring of ranks: 2 (R - 1) messages of n / R bytes.

    One rank of each node sends to the next node, so a node sends as much as a rank.

    Args:
        num_bytes: The bytes n of the tensor.
        num_ranks: The number of ranks R.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", section 3.
    """
    share = (num_ranks - 1) / num_ranks
    return Stages(2 * (num_ranks - 1), 2 * share * num_bytes, share * num_bytes)


ALLREDUCES = ("auto", "recursive_doubling", "rabenseifner", "ring")


def allreduce(num_bytes: float, num_nodes: int, cluster: Cluster, kind: str) -> Stages:
    """Returns an all-reduce of one kind, or the fastest one.

    Args:
        num_bytes: The bytes of the tensor.
        num_nodes: The number of nodes.
        cluster: The cluster.
        kind: One of `ALLREDUCES`; "auto" is the one that takes the least time, as MPI
            libraries choose by the size of the message.
    """
    num_ranks = cluster.num_ranks(num_nodes)
    kinds = {
        "recursive_doubling": recursive_doubling(
            num_bytes, num_nodes, cluster.ranks_per_node
        ),
        "rabenseifner": rabenseifner(num_bytes, num_nodes, cluster.ranks_per_node),
        "ring": ring(num_bytes, num_ranks),
    }
    if kind != "auto":
        return kinds[kind]
    return min(kinds.values(), key=lambda stages: stages.seconds(cluster))


def allgather(num_bytes: float, num_ranks: int) -> Stages:
    """Returns an all-gather of each rank's messages, of which a node sends R - 1.

    Args:
        num_bytes: The bytes of one rank's messages.
        num_ranks: The number of ranks R. Short messages take lg R stages, others R - 1
            in a ring.

    Source: Thakur et al. 2005, section 4.1; MPICH for the limit.
    """
    is_short = num_ranks * num_bytes < _SHORT_ALLGATHER_BYTES
    num_messages = math.ceil(math.log2(num_ranks)) if is_short else num_ranks - 1
    return Stages(num_messages, (num_ranks - 1) * num_bytes)


def slices(num_bytes: float, num_ranks: int, ranks_per_node: int) -> Stages:
    """Returns an exchange in which each rank sums up one slice of all messages.

    An all-to-all of R - 1 slices, in which all ranks of a node send at the same time,
    then an all-gather of the mean slices.

    Args:
        num_bytes: The bytes of one rank's message, R slices.
        num_ranks: The number of ranks R.
        ranks_per_node: The number of ranks of a node.

    Source: Thakur et al. 2005, sections 4.1 and 4.4; `resnet/exchange/sliced.py`.
    """
    to_others = (num_ranks - ranks_per_node) / num_ranks * ranks_per_node
    gathered = allgather(num_bytes / num_ranks, num_ranks)
    return Stages(
        num_ranks - 1 + gathered.num_messages,
        to_others * num_bytes + gathered.sent_bytes,
    )
