"""The description of a cluster: how fast its nodes, its network and its disks are."""

import math
from dataclasses import dataclass

# Bytes that a core adds to other bytes of float32 per second: the median of 9 sums of
# 25,557,032 values by NumPy, on one core of an AMD EPYC (Zen 5).
SUM_BYTES_PER_SECOND = 8.1e9


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal nodes. All attributes are as a node has them in training.

    Attributes:
        images_per_second: The rate of one node by itself with all its ranks, without
            the seconds of `fixed_seconds`.
        fixed_seconds: The seconds of a node's step that don't depend on the number of
            its images.
        ranks_per_node: The number of ranks on each node.
        latency: The seconds that each message between nodes takes, however short.
        bandwidth: The bytes per second that a node sends, while it receives as many.
        overlap: The fraction of the backward pass during which the exchange of
            gradients makes progress: 1 with cores left for communication, 0 where all
            cores compute.
        step_noise: The standard deviation of a node's step, as a fraction of it.
        shared_disk: The bytes per second that all nodes together read from a shared
            disk; infinity if each has the data on a disk of its own.
    """

    images_per_second: float
    fixed_seconds: float = 0.0
    ranks_per_node: int = 1
    latency: float = 2e-6
    bandwidth: float = 12.5e9
    overlap: float = 1.0
    step_noise: float = 0.02
    shared_disk: float = math.inf

    def num_ranks(self, num_nodes: int) -> int:
        """Returns the number of ranks on so many nodes."""
        return num_nodes * self.ranks_per_node

    def compute_seconds(self, num_images: float) -> float:
        """Returns the seconds that a node by itself computes in a step.

        Args:
            num_images: The number of images of the node in the step.
        """
        return self.fixed_seconds + num_images / self.images_per_second
