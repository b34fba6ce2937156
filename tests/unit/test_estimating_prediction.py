"""What a prediction must have for any cluster, and steps worked out by hand."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.estimating import answers, exchange, node_counts, stragglers
from launch.estimating.cluster import Cluster
from launch.estimating.exchange import Exchange
from launch.estimating.prediction import Prediction, predict
from resnet.config.compression import CompressionSettings
from tests.unit.estimated_training import TOPK, resnet50

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
POWERS = st.integers(0, 12)


@given(training=TRAININGS, cluster=CLUSTERS, power=POWERS, factor=st.floats(1, 100))
def test_more_bandwidth_is_never_slower(training, cluster, power, factor):
    faster = dataclasses.replace(cluster, bandwidth=factor * cluster.bandwidth)
    before, after = (predict(training, one, 1 << power) for one in (cluster, faster))
    assert after.step_seconds <= before.step_seconds * (1 + 1e-12)


@given(training=TRAININGS, cluster=CLUSTERS, power=POWERS)
def test_full_overlap_is_never_slower(training, cluster, power):
    full = dataclasses.replace(cluster, overlap=1.0)
    before, after = (predict(training, one, 1 << power) for one in (cluster, full))
    assert after.step_seconds <= before.step_seconds * (1 + 1e-12)


@given(training=TRAININGS, cluster=CLUSTERS, number=st.integers(1, 4096))
def test_nodes_are_never_more_than_efficient(training, cluster, number):
    one = predict(training, cluster, number)
    assert 0 < one.efficiency <= 1 + 1e-12
    assert min(one.compute, one.exchange, one.stragglers, one.input) >= 0


@given(training=TRAININGS, cluster=CLUSTERS)
def test_efficiency_falls_with_each_doubling(training, cluster):
    found = [predict(training, cluster, 1 << power).efficiency for power in range(13)]
    for before, after in itertools.pairwise(found):
        assert after <= before * (1 + 1e-9)


@given(training=TRAININGS, cluster=CLUSTERS)
def test_one_node_exchanges_nothing_and_waits_for_nobody(training, cluster):
    one = predict(training, cluster, 1)
    assert (one.exchange, one.stragglers, one.sent_bytes) == (0, 0, 0)
    assert one.efficiency == pytest.approx(1)


def test_a_step_has_the_parts_that_are_worked_out_by_hand():
    # 102,228,128 bytes in 25 buckets on 2 nodes: each sends its half of the tensor, and
    # the half that it has summed, as many bytes as the tensor, at 125 MB/s.
    cluster = Cluster(20.0, latency=0, bandwidth=125e6, overlap=1.0, step_noise=0.03)
    one = predict(resnet50(80), cluster, 2)
    assert one.compute == 2.0
    sums = 51_114_064 / 8.1e9
    network = 102_228_128 / 125e6 + sums
    # 4/3 s of backward pass hide all but the last of 25 buckets.
    assert one.exchange == pytest.approx(network / 25, rel=1e-6)
    assert one.stragglers == pytest.approx(0.03 * 2.0 / math.sqrt(math.pi), rel=1e-5)
    assert one.sent_bytes == pytest.approx(102_228_128)
    without = dataclasses.replace(cluster, overlap=0.0)
    exposed = predict(resnet50(80), without, 2).exchange
    assert exposed == pytest.approx(network, rel=1e-6)


def test_what_the_backward_pass_does_not_hide_makes_a_step_longer():
    cost = Exchange(network_seconds=5.0, codec_seconds=0.5, num_buckets=10)
    # 4.5 s before the last bucket, of which 3 are hidden; the last takes 0.5 s.
    assert cost.exposed_seconds(3.0, 1.0) == pytest.approx(0.5 + 1.5 + 0.5)
    assert cost.exposed_seconds(3.0, 0.5) == pytest.approx(0.5 + 3.0 + 0.5)
    assert cost.exposed_seconds(9.0, 1.0) == pytest.approx(0.5 + 0.0 + 0.5)


def test_averages_of_weights_are_spread_over_their_rounds_and_hidden_by_nothing():
    cluster = Cluster(20.0, latency=0, bandwidth=125e6, overlap=1.0, step_noise=0)
    every = predict(resnet50(80, sync_every=2), cluster, 2).exchange
    eighth = predict(resnet50(80, sync_every=8), cluster, 2).exchange
    whole = 102_228_128 / 125e6 + 51_114_064 / 8.1e9
    assert every == pytest.approx(whole / 2, rel=1e-5)
    assert eighth == pytest.approx(whole / 8, rel=1e-5)


def test_a_shared_disk_counts_only_where_it_is_the_slowest():
    training = resnet50(1000, image_bytes=100e3)  # 0.1 GB a step.
    for disk, expected in ((1e9, 0.0), (0.1e9, 0.5)):
        cluster = Cluster(1000.0, step_noise=0, latency=0, shared_disk=disk)
        one = predict(training, cluster, 2)
        assert one.compute == 0.5
        assert one.input == pytest.approx(max(0.0, expected - one.exchange))


def test_a_decoded_message_of_each_rank_costs_an_allgather_its_advantage():
    cluster = Cluster(80.0, step_noise=0)
    ways = [
        predict(
            resnet50(
                8192, compression=dataclasses.replace(TOPK, exchange=way), num_steps=1
            ),
            cluster,
            512,
        )
        for way in ("allgather", "sliced")
    ]
    # 512 messages of 9.8 ms, and one encoding of 35 ms, against two decodings.
    assert ways[0].exchange == pytest.approx(5.05, abs=0.1)
    assert ways[1].exchange < 0.1


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        # RESULTS.md, "Compressed gradients": what runs logged as the bytes of a message
        # for 10 classes (`message_bytes_per_step`).
        (TOPK, 1_183_716),
        # The bytes of all interfaces less those of a run without gradients.
        (
            CompressionSettings(compress="layerwise", method="randomk", ratio=0.01),
            979_063,
        ),
        (CompressionSettings(compress="layerwise", method="terngrad"), 4_745_730),
        (
            CompressionSettings(
                compress="layerwise", method="qsgd", qstates=7, qsgd_bucket=1024
            ),
            11_913_990,
        ),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_messages_have_about_the_bytes_that_were_counted(compression, expected):
    found = exchange.message_bytes(resnet50(32, 10, compression=compression))
    # TCP/IP's headers are in three of the counts, each variable's in all.
    assert found == pytest.approx(expected, rel=0.05)


def prediction(num_nodes: int, step_seconds: float) -> Prediction:
    return Prediction(
        num_nodes, num_nodes, 64, 3600, step_seconds, 0.0, 0.0, 0.0, 0.0, 100.0
    )


def test_the_fewest_nodes_in_a_time_are_found():
    found = [prediction(n, s) for n, s in ((1, 100.0), (2, 60.0), (4, 40.0))]
    assert answers.within(found, 60.0 * 3600) is found[1]
    assert answers.within(found, 39.0 * 3600) is None


def test_the_knee_has_the_most_efficiency_for_its_time():
    # Efficiencies 1, 0.833, 0.625, 0.338; divided by the seconds 0.01, 0.0139, 0.0156,
    # 0.0091.
    steps = ((1, 100.0), (2, 60.0), (4, 40.0), (8, 37.0))
    found = [prediction(n, s) for n, s in steps]
    assert answers.knee(found) is found[2]


def test_compression_pays_below_the_break_even_and_not_above():
    cluster = Cluster(80.0, ranks_per_node=2)
    ways = answers.alternatives(resnet50(24_576))
    dense, other = ways[answers.NOT_COMPRESSED], ways["topk, 1 %"]
    limit = answers.break_even(dense, other, cluster, 256)
    assert limit is not None
    for factor in (0.9, 1.1):
        at = dataclasses.replace(cluster, bandwidth=factor * limit)
        seconds = [predict(one, at, 256).step_seconds for one in (dense, other)]
        assert (seconds[1] < seconds[0]) == (factor < 1)


def test_a_break_even_may_be_anywhere_or_nowhere():
    cluster = Cluster(80.0, overlap=0.0, latency=1e-5)
    ways = answers.alternatives(resnet50(8192))
    dense, local = ways[answers.NOT_COMPRESSED], ways["local SGD, H = 8"]
    assert answers.break_even(dense, local, cluster, 64) == math.inf
    assert answers.break_even(local, dense, cluster, 64) is None


def test_numbers_of_nodes_divide_the_batch():
    assert node_counts.dividing(96, 2) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert node_counts.shown([1, 2, 3, 4, 6, 8, 12, 16, 24, 48]) == [
        *(1, 2, 4, 8, 16, 24, 48)
    ]


def test_waiting_is_for_the_slowest_of_all_nodes():
    one = predict(resnet50(8192), Cluster(32.0, step_noise=0.05), 256)
    assert one.compute == 1.0
    assert one.stragglers == pytest.approx(0.05 * stragglers.expected_maximum(256))
