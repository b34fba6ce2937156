"""The exchange of gradients: account, slices, choice of a transport, --explain."""

import dataclasses
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from resnet import native, resnet_main
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.phases import StepSettings
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.exchange import choice, plan, transports
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange
from resnet.exchange.choice import Interconnect
from resnet.exchange.codecs import CODECS
from resnet.exchange.codecs.dgc import Velocities
from resnet.exchange.gradients import CompressedExchange
from resnet.exchange.transports import slices_of
from resnet.hardware.placement import ProcessInfo
from tests.in_process import run

ALONE = Communicator(ProcessInfo())
STEP = StepSettings(0.1, 0.9, 0.9, 0.0, 0.0, tf.constant(0, tf.int64))
SHAPES = {"a": [2, 4], "b": [8]}
TOPK = CompressionSettings(compress="layerwise", method="topk", ratio=0.25)
# Of eight values each; topk at 0.25 keeps 8 - 6 + 1 = 3.
GRADIENTS = [
    np.array([[8, -1, 2, 0], [4, 1, -1, 0]], np.float32),
    np.array([0, 3, 1, 5, -6, 2, 1, 1], np.float32),
]
MILLION = 1_000_000


def exchange_of(settings: CompressionSettings) -> CompressedExchange:
    return CompressedExchange(ALONE, SHAPES, settings, 0)


def account_of(exchange: CompressedExchange, gradients=GRADIENTS) -> ExchangeAccount:
    traced = tf.function(exchange, autograph=False)
    own = [tf.constant(gradient) for gradient in gradients]
    result = traced(own, tf.constant(1.0), tf.zeros([2]), STEP)
    return ExchangeAccount(*(part.numpy() for part in result.account))


def test_each_method_has_a_codec_of_its_transport():
    assert CODECS.keys() == METHODS.keys()
    for name, codec in CODECS.items():
        assert (codec.average is not None) == METHODS[name].is_summed
        assert (codec.encode is None) == METHODS[name].is_summed
        has_velocities = codec.memory is Velocities
        assert has_velocities == METHODS[name].has_momentum


@pytest.mark.parametrize("exchange", ["allgather", "sliced"])
def test_without_compiled_ops_messages_are_refused(monkeypatch, exchange):
    randomk = dataclasses.replace(TOPK, method="randomk")
    monkeypatch.setattr(native, "ops", lambda: None)
    with pytest.raises(AgreedError, match=r"--method=topk needs the compiled ops"):
        exchange_of(dataclasses.replace(TOPK, exchange=exchange))
    exchange_of(randomk)  # It has no messages.


def test_a_ring_sends_each_part_of_a_sum_twice():
    sent = [plan.sent_by_allreduce(1200, ranks) for ranks in (1, 2, 3, 4)]
    assert sent == [0, 1200, 1600, 1800]
    assert Traffic.of_allreduce(300, 4) == Traffic(1200, 1800)


def test_the_error_is_the_norm_of_what_is_left_out_over_that_of_the_gradient():
    account = account_of(exchange_of(TOPK))
    # Of each vector the header, the count, 3 values, and the unary gaps between their
    # indices in a byte.
    assert account.message_bytes == 2 * (8 + 4 + 3 * 4 + 1)
    assert account.num_dense == 0
    # Left out are 1, 1, 1 of the first vector, and 2, 1, 1, 1 of the second one.
    assert account.compression_error == pytest.approx((10 / (87 + 77)) ** 0.5)
    zeros = [np.zeros(8, np.float32)] * 2
    assert account_of(exchange_of(TOPK), zeros).compression_error == 0


def test_with_error_feedback_the_gradient_is_the_corrected_one():
    exchange = exchange_of(dataclasses.replace(TOPK, error_feedback=True))
    residuals = exchange.rank_variables.values()
    for residual in residuals:
        residual.assign(tf.fill([8], 10.0))
    account = account_of(exchange)
    total = sum(float(np.square(one + 10).sum()) for one in GRADIENTS)
    left = sum(float(np.square(residual.numpy()).sum()) for residual in residuals)
    assert account.compression_error == pytest.approx((left / total) ** 0.5)


@pytest.mark.parametrize(
    "changes",
    [{"ratio": 1.0}, {"method": "qsgd", "qstates": 3, "qsgd_bucket": 1}],
    ids=["op", "formula"],  # What finds that out.
)
def test_messages_that_would_be_longer_than_dense_ones_are_dense(changes):
    gradients = [1 + np.arange(8, dtype="f4")] * 2
    account = account_of(exchange_of(dataclasses.replace(TOPK, **changes)), gradients)
    assert account.num_dense == 2
    assert account.message_bytes == 2 * (8 + 4 * 8)
    assert account.compression_error == 0


def test_the_exposed_time_is_that_between_the_last_gradient_and_the_last_mean():
    def after(seconds: float, value: tf.Tensor) -> tf.Tensor:
        def sleep(one: np.ndarray) -> np.ndarray:
            time.sleep(seconds)
            return one

        return tf.numpy_function(sleep, [value], tf.float32, stateful=False)

    def exchange(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        gradient = after(0.5, value)
        mean = after(0.1, gradient)
        account = measure_exchange(Traffic(0, 0), [value, gradient], [mean])
        return account.exposed_seconds, mean

    begin = time.monotonic()
    exposed, _ = tf.function(exchange, autograph=False)(tf.constant(1.0))
    # The graph reads a clock that is adjusted, unlike the one that sleep() goes by.
    assert 0.09 <= exposed <= time.monotonic() - begin - 0.45


def test_nothing_waits_for_the_account():
    """The graph has no path from a timestamp to what an exchange computes."""
    traced = tf.function(exchange_of(TOPK), autograph=False)
    arguments = ([tf.constant(one) for one in GRADIENTS], tf.constant(1.0))
    graph = traced.get_concrete_function(*arguments, tf.zeros([2]), STEP).graph
    stamps = [op for op in graph.get_operations() if op.type == "Timestamp"]
    assert len(stamps) == 2
    reached, waiting = set(), list(stamps)
    while waiting:
        op = waiting.pop()
        if op not in reached:
            reached.add(op)
            waiting += [user for out in op.outputs for user in out.consumers()]
            waiting += op._control_outputs
    kinds = {op.type for op in reached}
    assert kinds <= {"Timestamp", "Sub", "Maximum", "Const", "Identity", "NoOp"}


@pytest.mark.parametrize(
    ("method", "most_ranks"),
    [
        ({"method": "fp16"}, 42),  # 51 MB a rank.
        # dgc keeps 0.01^(1/5) = 39.8 % in its first epoch: 10,174,557 values of 4 bytes
        # with gaps of some 11 bits would be longer than 45 MB.
        ({"method": "topk", "ratio": 0.01 ** (1 / 5)}, 48),
        ({"method": "topk", "ratio": 0.01}, 1675),
        ({"method": "thresholdv"}, 21),  # All values may reach the threshold.
    ],
)
def test_more_bytes_than_an_all_gather_can_count_are_refused(method, most_ranks):
    def make(exchange: str, num_ranks: int) -> CompressedExchange:
        """Returns the exchange of ResNet-50's 25,557,032 values as one vector."""
        ranks = Communicator(ProcessInfo(num_ranks=num_ranks))
        facts = {"compress": "entiremodel", "exchange": exchange, **method}
        shapes, settings = {"model": [25_557_032]}, CompressionSettings(**facts)
        return CompressedExchange(ranks, shapes, settings, 0)

    make("sliced", most_ranks + 1)
    make("allgather", most_ranks)
    with pytest.raises(AgreedError, match="Set --exchange=sliced or --compress"):
        make("allgather", most_ranks + 1)


def test_messages_of_some_megabytes_of_gradients_travel_together():
    million = 1 << 20
    buckets = transports.buckets([1, 2 * million, 5, million, 7, 8])
    assert buckets == [[5, 4, 3], [2, 1], [0]]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([1, 5, 8, 24]),
)
def test_the_pieces_are_all_vectors_in_their_order(sizes, num_slices, alignment):
    slices = slices_of(sizes, num_slices, alignment)
    assert len(slices) == num_slices
    pieces = [piece for of_slice in slices for piece in of_slice]
    assert [piece.vector for piece in pieces] == sorted(p.vector for p in pieces)
    for vector, size in enumerate(sizes):
        own = [piece.size for piece in pieces if piece.vector == vector]
        assert sum(own) == size
        assert min(own) > 0
        assert all(one % alignment == 0 for one in own[:-1])
    for of_slice in slices:
        size = sum(piece.size for piece in of_slice)
        assert abs(size - sum(sizes) / num_slices) <= alignment + 1


def test_the_alignment_keeps_bytes_and_norms_whole():
    def alignment(method: str, bucket: int = 0) -> int:
        settings = CompressionSettings(method=method, qsgd_bucket=bucket)
        return CODECS[method].alignment(settings, 5000)

    assert alignment("topk") == alignment("bf16") == 1
    assert alignment("terngrad") == 5
    assert [alignment("qsgd", bucket) for bucket in (0, 1024, 100)] == [8, 1024, 200]
    assert alignment("qsgd", 5000) == 8  # One norm for the vector.


def test_the_time_is_that_of_all_messages_one_after_the_other():
    gigabit = Interconnect(latency=50e-6, bandwidth=125e6)
    expected = 3 * (50e-6 + 1e-3), 6 * 50e-6 + 2 * 3 / 4 * 1e-3
    assert tuple(gigabit.seconds(125_000, 4).values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "num_ranks", "latency", "chosen"),
    [
        ({}, 2, 1e-6, "allgather"),  # The bytes are the same.
        ({}, 8, 1e-6, "sliced"),
        ({}, 8, 5e-3, "allgather"),  # Twice as many messages.
        ({"method": "thresholdv"}, 512, 50e-6, "sliced"),
        # 52 KB a bucket with topk's 1 %, 1.8 MB in dgc's first epoch.
        ({}, 3, 1e-3, "allgather"),
        ({"method": "dgc"}, 3, 1e-3, "sliced"),
        ({"method": "randomk"}, 8, 1e-6, "auto"),
        ({"compress": "none"}, 8, 1e-6, "auto"),
        ({"exchange": "allgather"}, 512, 50e-6, "allgather"),
    ],
)
def test_the_faster_exchange_is_chosen(
    monkeypatch, changes, num_ranks, latency, chosen
):
    monkeypatch.setattr(choice, "measure", lambda _: Interconnect(latency, 125e6))
    settings = dataclasses.replace(TOPK, ratio=0.01, **changes)
    communicator = Communicator(ProcessInfo(rank=0, num_ranks=num_ranks))
    assert choice.choose(settings, communicator) == chosen


@pytest.mark.parametrize(
    ("num_ranks", "most"), [(3, 26e6), (1024, 26e6), (4096, 102e6)]
)
def test_the_measurement_of_the_network_stays_short(num_ranks, most):
    sent = []

    def alltoall(parts: np.ndarray) -> None:
        assert len(parts) == num_ranks
        sent.append(parts.nbytes - parts[0].nbytes)

    ranks = {"num_ranks": num_ranks, "alltoall": alltoall}
    choice.measure(SimpleNamespace(allgather=lambda value: [value], **ranks))
    assert 24e6 < sum(sent) < most


@pytest.mark.parametrize(
    ("num_ranks", "settings", "texts"),
    [
        (1, {}, ["topk as one vector: 4.0 MB", "One rank sends nothing."]),
        # A dense all-reduce sends 2 x 3/4 of 4 MB; a message travels 3 times.
        (4, {"method": "terngrad"}, ["200.0 kB, a factor of 20", "600.0 kB", "300.0"]),
        (2, {}, ["2.1 MB instead of 4.0 MB without compression (all-reduce)."]),
        (2, {"method": "randomk"}, ["(all-reduce): each of 2 sends 2.0 MB instead"]),
        (3, {"method": "adaptivethreshold"}, ["sends 2 times", "sends 1.33 times"]),
        # A matrix of 999,000 values by terngrad, 50 kB for each 250,000, and 4 kB
        # whole: 63 x 199.8 + 2 x 63 / 64 x 4.0 and 2 x 63 / 64 x 203.8.
        (
            64,
            {"compress": "layerwise", "method": "terngrad", "dense_below": 1001},
            ["become 203.8 kB", "sends 12.6 MB, which is more", "sends 401.3 kB"],
        ),
    ],
)
def test_what_the_ranks_send_is_told(num_ranks, settings, texts):
    settings = CompressionSettings(**{"compress": "entiremodel", **settings})
    shapes = [[MILLION // 1000, 999], [1000]]
    text = plan.describe(settings, shapes, num_ranks)
    for words in texts:
        assert words in text


def test_the_program_tells_the_exchange_of_its_network(records):
    flags = ("--recipe=digits", "-c", "layerwise", "--method=randomk", "-K", "0.25")
    done = run(resnet_main, "--explain", "--model=resnet8", "--num_ranks=2", *flags)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    # ResNet-8 has 74,160 values in its convolutions, 480 in batch normalization and 650
    # in the classifier.
    assert "with 10 classes, randomk variable by variable: 301.2 kB" in words
    assert "each of 2 sends 75.3 kB instead of 301.2 kB" in words
    of_data = (f"--data_dir={records}", "--train_batch_size=8", "--model=resnet8")
    assert "with 3 classes," in run(resnet_main, "--explain", *of_data, *flags).stdout
