"""The estimates against published figures, and against rates measured here.

docs/estimating.md has the same table, and says where each number is from. Nothing in
the model is fitted to any of them.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.estimating.cluster import Cluster
from launch.estimating.prediction import predict
from launch.estimating.workload import Workload
from tests.unit.estimated_training import TOPK, resnet50

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimating.md"

OMNI_PATH = Cluster(79.1, ranks_per_node=2)
# Intel Caffe on 64 nodes, whose network is taken to cost what the model says.
CAFFE = dataclasses.replace(
    OMNI_PATH,
    images_per_second=98.5 / predict(resnet50(4096), OMNI_PATH, 64).efficiency,
)
# The weights are exchanged "at the end of each batch".
ZENITH = Cluster(98.5, overlap=0.0)
# 29 hours of 90 epochs on one server of 8 GPUs.
BIG_BASIN = Cluster(90 * 1_281_167 / (29 * 3600), ranks_per_node=8, bandwidth=50e9 / 8)


def efficiency(batch: int, cluster: Cluster, num_nodes: int) -> float:
    return 100 * predict(resnet50(batch), cluster, num_nodes).efficiency


def minutes(batch: int, num_steps: int, num_nodes: int) -> float:
    return 60 * predict(resnet50(batch, num_steps=num_steps), CAFFE, num_nodes).hours


# Predicted, published; the largest ratio of the two, either way.
PUBLISHED = {
    "efficiency of 256 nodes": (efficiency(24_576, OMNI_PATH, 256), 81, 1.2),
    "448 nodes": (minutes(14_336, 8040, 448), 60, 1.4),
    "Zenith, 128 nodes": (efficiency(8192, ZENITH, 128), 90, 1.1),
    "Zenith, 256 nodes": (efficiency(8192, ZENITH, 256), 83, 1.1),
    "Zenith, 314 nodes": (efficiency(26 * 314, ZENITH, 314), 76, 1.1),
    "32 servers of 8 GPUs": (efficiency(8192, BIG_BASIN, 32), 90, 1.1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_estimate_is_as_near_to_what_was_published_as_the_page_says(name):
    predicted, published, largest = PUBLISHED[name]
    assert 1 / largest < predicted / published < largest
    row = next(line for line in PAGE.read_text().splitlines() if name in line)
    assert f" {predicted:.0f} " in row, row
    assert f"| {predicted / published:.2f} |" in row, row


@dataclass(frozen=True)
class Measured:
    """Images per second of two ranks on two hosts, RESULTS.md, "Compressed gradients".

    Attributes:
        training: The training.
        link: The network between the hosts.
        none: The rates without an exchange of gradients, run by run.
        rates: The rates with it.
    """

    training: Workload
    link: str
    none: Sequence[float]
    rates: Sequence[float]

    def ratios(self) -> list[float]:
        """Returns predicted / measured for each group of runs."""
        return [
            predict(self.training, hosts(self.link, none / 2), 2).images_per_second
            / rate
            for none, rate in zip(self.none, self.rates, strict=True)
        ]


# Bytes per second of all-reduces of 32 MiB (8 MiB at 100 Mbit/s) that took 292, 795 and
# 47 ms, in the middle of their ranges, without any training: mpi4py on these hosts.
LINKS = {
    "1 Gbit/s": (32 << 20) / 0.2925,
    "100 Mbit/s": (8 << 20) / 0.795,
    "unlimited": (32 << 20) / 0.047,
}
FIRST, SECOND = (14.255, 16.876, 17.934), (16.908, 17.28, 17.916)
OF_ALL = (statistics.median(FIRST + SECOND),) * 3  # Groups without such a run.
THOUSAND = (16.894, 14.257, 13.707)


def hosts(link: str, rate: float) -> Cluster:
    """Returns two hosts whose one core computes, so that nothing overlaps.

    The rates without an exchange are those of both hosts, and have the waits in them.
    """
    return Cluster(
        rate, latency=50e-6, bandwidth=LINKS[link], overlap=0.0, step_noise=0.0
    )


def ten_classes(**given) -> Workload:
    return resnet50(32, 10, **given)


MEASURED = {
    "dense, 1 Gbit/s": Measured(
        ten_classes(), "1 Gbit/s", FIRST, (12.05, 12.598, 12.461)
    ),
    "topk, 1 Gbit/s": Measured(
        ten_classes(compression=TOPK), "1 Gbit/s", FIRST, (16.131, 15.496, 16.692)
    ),
    "local SGD, H = 2, 1 Gbit/s": Measured(
        ten_classes(sync_every=2), "1 Gbit/s", SECOND, (12.944, 14.02, 13.968)
    ),
    "local SGD, H = 8, 1 Gbit/s": Measured(
        ten_classes(sync_every=8), "1 Gbit/s", SECOND, (16.12, 15.867, 15.697)
    ),
    "dense, 100 Mbit/s": Measured(
        ten_classes(), "100 Mbit/s", OF_ALL, (2.998, 2.953, 3.023)
    ),
    "topk, 100 Mbit/s": Measured(
        ten_classes(compression=TOPK), "100 Mbit/s", OF_ALL, (15.119, 15.656, 15.118)
    ),
    "dense, 1,000 classes, 100 Mbit/s": Measured(
        resnet50(32), "100 Mbit/s", THOUSAND, (2.808, 2.815, 2.756)
    ),
    "topk, 1,000 classes, 100 Mbit/s": Measured(
        resnet50(32, compression=TOPK), "100 Mbit/s", THOUSAND, (15.987, 16.081, 9.845)
    ),
    "dense, unlimited": Measured(
        ten_classes(), "unlimited", OF_ALL, (15.223, 16.524, 15.691)
    ),
    "topk, unlimited": Measured(
        ten_classes(compression=TOPK), "unlimited", OF_ALL, (15.838, 15.721, 15.864)
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_estimate_is_within_15_percent_of_the_measured_median(name):
    ratios = MEASURED[name].ratios()
    assert 1 / 1.15 < statistics.median(ratios) < 1.15
    row = next(line for line in PAGE.read_text().splitlines() if f"| {name} |" in line)
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    assert spread in row, row
