"""The prediction for a number of nodes: the parts of a step, and what follows."""

import dataclasses
from dataclasses import dataclass

from launch.estimating import exchange as exchanges
from launch.estimating import stragglers
from launch.estimating.cluster import Cluster
from launch.estimating.workload import Workload

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Prediction:
    """What a training takes on some nodes; times are means over its steps.

    Attributes:
        num_nodes: The number of nodes.
        num_ranks: The number of ranks on all of them.
        global_batch_size: The number of images in a step.
        num_steps: The number of steps.
        compute: The seconds of a step that a node computes.
        exchange: The seconds by which the exchange between nodes makes it longer.
        stragglers: The seconds of waiting for the slowest node.
        input: The seconds of waiting for images from a shared disk.
        sent_bytes: The bytes that a node sends.
        one_node_seconds: The seconds of the same step on one node.
    """

    num_nodes: int
    num_ranks: int
    global_batch_size: int
    num_steps: int
    compute: float
    exchange: float
    stragglers: float
    input: float
    sent_bytes: float
    one_node_seconds: float

    @property
    def step_seconds(self) -> float:
        """The seconds of a step."""
        return self.compute + self.exchange + self.stragglers + self.input

    @property
    def images_per_second(self) -> float:
        """The images per second of all nodes."""
        return self.global_batch_size / self.step_seconds

    @property
    def hours(self) -> float:
        """The hours of all steps, without evaluations and checkpoints."""
        return self.num_steps * self.step_seconds / _SECONDS_PER_HOUR

    @property
    def node_hours(self) -> float:
        """The hours of all nodes together."""
        return self.num_nodes * self.hours

    @property
    def efficiency(self) -> float:
        """The images per second and node, over those of one node by itself."""
        return self.one_node_seconds / (self.num_nodes * self.step_seconds)

    def as_dict(self) -> dict[str, float]:
        """Returns the prediction and what follows from it, for JSON."""
        return {
            **dataclasses.asdict(self),
            "step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "efficiency": self.efficiency,
            "hours": self.hours,
            "node_hours": self.node_hours,
        }


def predict(
    workload: Workload, cluster: Cluster, num_nodes: int, allreduce: str = "auto"
) -> Prediction:
    """Returns the prediction for a number of nodes.

    The nodes' steps are taken as independent and normally distributed, so that a step
    lasts as long as the largest of them; reading from a shared disk goes on at the same
    time, and takes time only as far as it takes longer than all else.

    Args:
        workload: The training.
        cluster: The cluster.
        num_nodes: The number of nodes, whose ranks divide the global batch.
        allreduce: The kind of all-reduce, one of `collectives.ALLREDUCES`.
    """
    parts = _parts(workload, cluster, num_nodes, allreduce)
    alone = _parts(workload, cluster, 1, allreduce)
    return Prediction(
        num_nodes=num_nodes,
        num_ranks=cluster.num_ranks(num_nodes),
        global_batch_size=workload.global_batch_size,
        num_steps=workload.num_steps,
        compute=parts[0],
        exchange=parts[1],
        stragglers=parts[2],
        input=parts[3],
        sent_bytes=parts[4],
        one_node_seconds=sum(alone[:4]),
    )


def _parts(
    workload: Workload, cluster: Cluster, num_nodes: int, allreduce: str
) -> tuple[float, float, float, float, float]:
    """Returns the four parts of a step in seconds, and the bytes that a node sends."""
    images = workload.relative_pixels * workload.global_batch_size / num_nodes
    compute = cluster.compute_seconds(images)
    backward = exchanges.BACKWARD_SHARE * compute
    gradients = exchanges.of_gradients(workload, cluster, num_nodes, allreduce)
    weights = exchanges.of_weights(workload, cluster, num_nodes, allreduce)
    num_local = workload.num_steps - workload.num_exchanges
    exchange = (
        workload.num_exchanges * gradients.exposed_seconds(backward, cluster.overlap)
        + workload.num_averages * weights.network_seconds
        + num_local * exchanges.flags_seconds(cluster, num_nodes)
    ) / workload.num_steps
    sent = (
        workload.num_exchanges * gradients.sent_bytes
        + workload.num_averages * weights.sent_bytes
    ) / workload.num_steps
    waiting = cluster.step_noise * compute * stragglers.expected_maximum(num_nodes)
    reading = workload.global_batch_size * workload.image_bytes / cluster.shared_disk
    late = max(0.0, reading - compute - exchange - waiting)
    return compute, exchange, waiting, late, sent
