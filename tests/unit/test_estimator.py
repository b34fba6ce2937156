"""The estimator: formulas worked out by hand, laws, published and measured figures."""

import dataclasses
import itertools
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import estimator
from launch.estimator import Cluster, Prediction, Stages, Workload, predict
from resnet.config import networks
from resnet.config.compression import CompressionSettings
from resnet.exchange import plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimating.md"
NODES = st.integers(2, 4096)
BYTES = st.integers(1, 1 << 30)
TOPK = CompressionSettings(
    compress="layerwise", method="topk", ratio=0.01, error_feedback=True
)


def resnet50(batch, num_classes=1000, num_steps=1000, sync_every=1, **others):
    """Returns a training of ResNet-50 with so many images a step."""
    is_local = sync_every > 1
    return Workload(
        global_batch_size=batch,
        num_steps=num_steps,
        num_values=networks.num_parameters("resnet50", num_classes),
        num_exchanges=0 if is_local else num_steps,
        num_averages=num_steps // sync_every if is_local else 0,
        **others,
    )


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # lg 8 = 3 stages, in which both ranks of a node send the tensor. Of 6 nodes 4
        # are left after the pairs: lg 4 = 2 stages, and one before and after; 2 ranks
        # of a node are a pair.
        (estimator.recursive_doubling(1000, 8), Stages(3, 3000, 3000)),
        (estimator.recursive_doubling(1000, 8, 2), Stages(3, 6000, 3000)),
        (estimator.recursive_doubling(1000, 6), Stages(4, 4000, 4000)),
        (estimator.recursive_doubling(1000, 6, 2), Stages(2, 4000, 2000)),
        (estimator.recursive_doubling(1000, 1), Stages(0, 0, 0)),
        # 2 lg 8 stages; 500 + 250 + 125 bytes, and again in the all-gather.
        (estimator.rabenseifner(1000, 8), Stages(6, 1750, 875)),
        (estimator.rabenseifner(1000, 8, 2), Stages(6, 1750, 875)),
        # As on 4 nodes, 1500 bytes, and the tensor there and back.
        (estimator.rabenseifner(1000, 6), Stages(6, 3500, 1750)),
        (estimator.rabenseifner(1000, 6, 2), Stages(4, 1500, 750)),
        (estimator.ring(1000, 5), Stages(8, 1600, 800)),
        (estimator.allgather(1e6, 5), Stages(4, 4e6)),
        # 8 messages of 10 bytes are short: 3 stages.
        (estimator.allgather(10, 8), Stages(3, 70)),
        # 4 ranks: 3 slices of a quarter to the others, then 3 around the ring.
        (estimator.slices(4e6, 4, 1), Stages(6, 6e6)),
        # 2 ranks on each of 2 nodes: both send 2 of 4 slices to the other node.
        (estimator.slices(4e6, 4, 2), Stages(6, 4e6 + 3e6)),
    ],
)
def test_collectives_have_the_stages_that_are_worked_out_by_hand(stages, expected):
    assert stages == expected


@given(num_bytes=BYTES, num_ranks=NODES)
def test_the_bytes_are_those_that_a_run_reports(num_bytes, num_ranks):
    sent = estimator.ring(num_bytes, num_ranks).sent_bytes
    assert sent * num_ranks == pytest.approx(2 * (num_ranks - 1) * num_bytes)
    counted = plan.sent_by_allreduce(num_bytes, num_ranks)
    assert sent == pytest.approx(counted, abs=0.5)
    sent = estimator.slices(num_bytes, num_ranks, 1).sent_bytes
    assert sent == pytest.approx(plan.sent_by_allreduce(num_bytes, num_ranks), abs=0.5)


def test_known_means_of_the_largest():
    known = {1: 0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi)}
    known |= {10: 1.53875, 100: 2.50759}  # Harter 1961, Biometrika 48, table 1.
    for number, mean in known.items():
        assert estimator.expected_maximum(number) == pytest.approx(mean, abs=1e-5)


CLUSTERS = st.builds(
    Cluster,
    images_per_second=st.floats(1, 1e4),
    fixed_seconds=st.floats(0, 1),
    ranks_per_node=st.sampled_from([1, 2, 4]),
    latency=st.floats(0, 1e-3),
    bandwidth=st.floats(1e6, 1e11),
    overlap=st.floats(0, 1),
    step_noise=st.floats(0, 0.2),
    shared_disk=st.sampled_from([math.inf, 1e8, 1e10]),
)
COMPRESSIONS = st.sampled_from(
    [
        CompressionSettings(),
        CompressionSettings(compress="layerwise", method="randomk", ratio=0.1),
        CompressionSettings(compress="layerwise", method="terngrad", exchange="sliced"),
        dataclasses.replace(TOPK, exchange="allgather"),
    ]
)
TRAININGS = st.builds(
    resnet50,
    batch=st.sampled_from([16_384, 24_576]),
    sync_every=st.sampled_from([1, 1, 4]),
    compression=COMPRESSIONS,
    image_bytes=st.just(110e3),
)


@given(
    training=TRAININGS,
    cluster=CLUSTERS,
    power=st.integers(0, 12),
    factor=st.floats(1, 100),
)
def test_a_better_network_is_never_slower(training, cluster, power, factor):
    before = predict(training, cluster, 1 << power).step_seconds
    faster = dataclasses.replace(cluster, bandwidth=factor * cluster.bandwidth)
    overlapped = dataclasses.replace(cluster, overlap=1.0)
    for better in (faster, overlapped):
        after = predict(training, better, 1 << power).step_seconds
        assert after <= before * (1 + 1e-12)


@given(training=TRAININGS, cluster=CLUSTERS)
def test_efficiency_is_at_most_one_and_falls_with_each_doubling(training, cluster):
    alone, *others = (predict(training, cluster, 1 << power) for power in range(13))
    assert (alone.exchange, alone.stragglers, alone.sent_bytes) == (0, 0, 0)
    assert alone.efficiency == pytest.approx(1)
    for before, after in itertools.pairwise([alone, *others]):
        assert 0 < after.efficiency <= before.efficiency * (1 + 1e-9)
        assert min(after.compute, after.exchange, after.stragglers, after.input) >= 0


def test_a_step_has_the_parts_that_are_worked_out_by_hand():
    # 102,228,128 bytes in 25 buckets on 2 nodes: each sends its half of the tensor, and
    # the half that it has summed, as many bytes as the tensor, at 125 MB/s.
    cluster = Cluster(20.0, latency=0, bandwidth=125e6, overlap=1.0, step_noise=0.03)
    found = predict(resnet50(80), cluster, 2)
    assert found.compute == 2.0
    sums = 51_114_064 / 8.1e9
    network = 102_228_128 / 125e6 + sums
    # 4/3 s of backward pass hide all but the last of 25 buckets.
    assert found.exchange == pytest.approx(network / 25, rel=1e-6)
    assert found.stragglers == pytest.approx(0.03 * 2.0 / math.sqrt(math.pi), rel=1e-5)
    assert found.sent_bytes == pytest.approx(102_228_128)
    without = dataclasses.replace(cluster, overlap=0.0)
    exposed = predict(resnet50(80), without, 2).exchange
    assert exposed == pytest.approx(network, rel=1e-6)


def test_averages_of_weights_are_spread_over_their_rounds_and_hidden_by_nothing():
    cluster = Cluster(20.0, latency=0, bandwidth=125e6, overlap=1.0, step_noise=0)
    whole = 102_228_128 / 125e6 + 51_114_064 / 8.1e9
    for length in (2, 8):
        found = predict(resnet50(80, sync_every=length), cluster, 2).exchange
        assert found == pytest.approx(whole / length, rel=1e-5)


def test_a_shared_disk_counts_only_where_it_is_the_slowest():
    training = resnet50(1000, image_bytes=100e3)  # 0.1 GB a step.
    for disk, expected in ((1e9, 0.0), (0.1e9, 0.5)):
        cluster = Cluster(1000.0, step_noise=0, latency=0, shared_disk=disk)
        found = predict(training, cluster, 2)
        assert found.compute == 0.5
        assert found.input == pytest.approx(max(0.0, expected - found.exchange))


def test_codecs_cost_what_was_measured():
    cluster = Cluster(80.0, step_noise=0)
    gathered, sliced = (
        estimator.exchange_of_gradients(
            resnet50(8192, compression=dataclasses.replace(TOPK, exchange=way)),
            cluster,
            512,
        ).codec_seconds
        for way in ("allgather", "sliced")
    )
    # One encoding of 35 ms and 512 decodings of 9.8 ms; in slices, a 512th is encoded
    # once more, and all decoded twice.
    assert gathered == pytest.approx(0.035 + 512 * 0.0098)
    assert sliced == pytest.approx(0.035 * 513 / 512 + 2 * 0.0098)


def prediction(num_nodes: int, step_seconds: float) -> Prediction:
    return Prediction(
        num_nodes, num_nodes, 64, 3600, step_seconds, 0.0, 0.0, 0.0, 0.0, 100.0
    )


def test_the_fewest_nodes_in_a_time_and_the_knee_are_found():
    # Efficiencies 1, 0.833, 0.625, 0.338; divided by the seconds 0.01, 0.0139, 0.0156,
    # 0.0091.
    steps = ((1, 100.0), (2, 60.0), (4, 40.0), (8, 37.0))
    found = [prediction(nodes, seconds) for nodes, seconds in steps]
    assert estimator.knee(found) is found[2]
    assert estimator.within(found, 60.0 * 3600) is found[1]
    assert estimator.within(found, 36.0 * 3600) is None


def test_compression_pays_below_the_break_even_and_not_above():
    cluster = Cluster(80.0, ranks_per_node=2)
    ways = estimator.alternatives(resnet50(24_576))
    dense, other = ways[estimator.NOT_COMPRESSED], ways["topk, 1 %"]
    limit = estimator.break_even(dense, other, cluster, 256)
    assert limit is not None
    for factor in (0.9, 1.1):
        at = dataclasses.replace(cluster, bandwidth=factor * limit)
        without, coded = (predict(way, at, 256).step_seconds for way in (dense, other))
        assert (coded < without) == (factor < 1)


def test_a_break_even_may_be_anywhere_or_nowhere():
    cluster = Cluster(80.0, overlap=0.0, latency=1e-5)
    ways = estimator.alternatives(resnet50(8192))
    dense, local = ways[estimator.NOT_COMPRESSED], ways["local SGD, H = 8"]
    assert estimator.break_even(dense, local, cluster, 64) == math.inf
    assert estimator.break_even(local, dense, cluster, 64) is None


def test_numbers_of_nodes_divide_the_batch():
    numbers = estimator.dividing(96, 2)
    assert numbers == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert estimator.about_powers_of_two(numbers) == [1, 2, 4, 8, 16, 24, 48]


# The estimates against published figures, and against rates measured here.
# docs/estimating.md has the same table, and says where each number is from. Nothing in
# the model is fitted to any of them.
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


# Predicted, published; the largest ratio of the two, either way.
PUBLISHED = {
    "efficiency of 256 nodes": (efficiency(24_576, OMNI_PATH, 256), 81, 1.2),
    "448 nodes": (
        60 * predict(resnet50(14_336, num_steps=8040), CAFFE, 448).hours,
        60,
        1.4,
    ),
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
DENSE, CODED = resnet50(32, 10), resnet50(32, 10, compression=TOPK)
LOCAL_2, LOCAL_8 = (resnet50(32, 10, sync_every=length) for length in (2, 8))
LOCAL_2_RATES, LOCAL_8_RATES = (12.944, 14.02, 13.968), (16.12, 15.867, 15.697)
DENSE_1000, CODED_1000 = resnet50(32), resnet50(32, compression=TOPK)
# Images per second of two ranks on two hosts, RESULTS.md, "Compressed gradients": a
# training, the network between the hosts, the rates without an exchange of gradients,
# run by run, and with it.
MEASURED = {
    "dense, 1 Gbit/s": (DENSE, "1 Gbit/s", FIRST, (12.05, 12.598, 12.461)),
    "topk, 1 Gbit/s": (CODED, "1 Gbit/s", FIRST, (16.131, 15.496, 16.692)),
    "local SGD, H = 2, 1 Gbit/s": (LOCAL_2, "1 Gbit/s", SECOND, LOCAL_2_RATES),
    "local SGD, H = 8, 1 Gbit/s": (LOCAL_8, "1 Gbit/s", SECOND, LOCAL_8_RATES),
    "dense, 100 Mbit/s": (DENSE, "100 Mbit/s", OF_ALL, (2.998, 2.953, 3.023)),
    "topk, 100 Mbit/s": (CODED, "100 Mbit/s", OF_ALL, (15.119, 15.656, 15.118)),
    "dense, 1,000 classes, 100 Mbit/s": (
        *(DENSE_1000, "100 Mbit/s", THOUSAND),
        (2.808, 2.815, 2.756),
    ),
    "topk, 1,000 classes, 100 Mbit/s": (
        *(CODED_1000, "100 Mbit/s", THOUSAND),
        (15.987, 16.081, 9.845),
    ),
    "dense, unlimited": (DENSE, "unlimited", OF_ALL, (15.223, 16.524, 15.691)),
    "topk, unlimited": (CODED, "unlimited", OF_ALL, (15.838, 15.721, 15.864)),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_estimate_is_within_15_percent_of_the_measured_median(name):
    training, link, without, measured = MEASURED[name]
    ratios = []
    for none, rate in zip(without, measured, strict=True):
        # One core computes, so nothing overlaps. The rates without an exchange are
        # those of both hosts, and have the waits in them.
        hosts = Cluster(
            none / 2, latency=50e-6, bandwidth=LINKS[link], overlap=0.0, step_noise=0.0
        )
        ratios.append(predict(training, hosts, 2).images_per_second / rate)
    assert 1 / 1.15 < statistics.median(ratios) < 1.15
    row = next(line for line in PAGE.read_text().splitlines() if f"| {name} |" in line)
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    assert spread in row, row
