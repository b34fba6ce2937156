"""The account of an exchange of gradients, and its means in the metrics."""

import dataclasses
import time

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from resnet.config.compression import CompressionSettings
from resnet.config.step_settings import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount, Traffic, measure_exchange
from resnet.exchange.codecs import message_sizes
from resnet.exchange.compressed import CompressedExchange
from resnet.exchange.gradients import GradientExchange
from resnet.hardware.placement import ProcessInfo
from resnet.metrics.exchange_cost import ExchangeCost

ALONE = Communicator(ProcessInfo())
STEP = StepSettings(0.1, 0.9, 0.9, 0.0, 0.0, tf.constant(0, tf.int64))
SHAPES = {"a": [2, 4], "b": [8]}
TOPK = CompressionSettings(compress="layerwise", method="topk", ratio=0.25)
# Of eight values each; topk at 0.25 keeps 8 - 6 + 1 = 3.
GRADIENTS = [
    np.array([[8, -1, 2, 0], [4, 1, -1, 0]], np.float32),
    np.array([0, 3, 1, 5, -6, 2, 1, 1], np.float32),
]


def exchange_of(settings: CompressionSettings) -> GradientExchange:
    if settings.compress == "none":
        return GradientExchange(ALONE.collectives, ["a", "b"])
    return CompressedExchange(ALONE, SHAPES, settings, 0)


def account_of(
    settings: CompressionSettings, exchange: GradientExchange | None = None
) -> ExchangeAccount:
    if exchange is None:
        exchange = exchange_of(settings)
    traced = tf.function(exchange, autograph=False)
    gradients = [tf.constant(one) for one in GRADIENTS]
    result = traced(gradients, tf.constant(1.0), tf.zeros([2]), STEP)
    return ExchangeAccount(*(part.numpy() for part in result.account))


def test_a_ring_sends_each_part_of_a_sum_twice():
    assert [message_sizes.sent_by_allreduce(1200, ranks) for ranks in (1, 2, 3, 4)] == [
        0,
        1200,
        1600,
        1800,
    ]
    assert [message_sizes.sent_by_allgather(100, ranks) for ranks in (1, 2, 4)] == [
        0,
        100,
        300,
    ]
    assert Traffic.of_allreduce(300, 4) == Traffic(1200, 1800)


def test_dense_gradients_have_four_bytes_a_value_and_no_error():
    account = account_of(CompressionSettings())
    assert account.message_bytes == 4 * 16
    assert account.bytes_sent == account.compression_error == 0
    assert 0 <= account.exposed_seconds < 60


def test_the_error_is_the_norm_of_what_is_left_out_over_that_of_the_gradient():
    account = account_of(TOPK)
    # Of each vector the header, the count, 3 values, and the unary gaps between their
    # indices in a byte.
    assert account.message_bytes == 2 * (8 + 4 + 3 * 4 + 1)
    # Left out are 1, 1, 1 of the first vector, and 2, 1, 1, 1 of the second one.
    assert account.compression_error == pytest.approx((10 / (87 + 77)) ** 0.5)


def test_with_error_feedback_the_gradient_is_the_corrected_one():
    settings = dataclasses.replace(TOPK, error_feedback=True)
    exchange = exchange_of(settings)
    residuals = exchange.rank_variables
    for residual in residuals.values():
        residual.assign(tf.fill([8], 10.0))
    first = account_of(settings, exchange)
    corrected = [gradient.ravel() + 10 for gradient in GRADIENTS]
    total = sum(float(np.square(one).sum()) for one in corrected)
    left = sum(float(np.square(one.numpy()).sum()) for one in residuals.values())
    assert first.compression_error == pytest.approx((left / total) ** 0.5)


def test_random_coordinates_are_counted_without_a_header():
    settings = dataclasses.replace(TOPK, method="randomk")
    account = account_of(settings)
    assert account.message_bytes == 4 * (2 + 2)
    assert 0 < account.compression_error < 1


def test_gradients_of_zeros_have_no_error(monkeypatch):
    monkeypatch.setitem(globals(), "GRADIENTS", [np.zeros(8, np.float32)] * 2)
    assert account_of(TOPK).compression_error == 0


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
    exchange = CompressedExchange(ALONE, SHAPES, TOPK, 0)
    traced = tf.function(exchange, autograph=False)
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


def account(
    error: float, seconds: float, num_bytes: int = 10, num_dense: int = 0
) -> ExchangeAccount:
    return ExchangeAccount(num_bytes, 3 * num_bytes, num_dense, error, seconds)


def test_the_metrics_are_means_over_the_steps_since_the_last_line():
    cost = ExchangeCost(is_compressed=True, rank=0)
    cost.step_done(account(0.5, 7.0), None)  # Its time doesn't count.
    cost.step_done(account(0.7, 1.0, 20), 4.0)
    cost.step_done(account(0.6, 2.0, 31), 6.0)
    assert cost.report() == pytest.approx(
        {
            "message_bytes_per_step": 20,
            "bytes_sent_per_step": 61,
            "exchange_share": 0.3,
            "compression_error": 0.6,
        }
    )
    cost.step_done(account(0.1, 1.0), 2.0)
    assert cost.report()["compression_error"] == 0.1


def test_without_compression_no_error_is_reported_and_no_share_without_time():
    cost = ExchangeCost(is_compressed=False, rank=0)
    cost.step_done(account(0.0, 1.0), None)
    assert cost.report() == {
        "message_bytes_per_step": 10,
        "bytes_sent_per_step": 30,
        "exchange_share": 0,
    }


def test_messages_that_would_be_longer_than_dense_ones_are_dense(monkeypatch):
    monkeypatch.setitem(globals(), "GRADIENTS", [1 + np.arange(8, dtype="f4")] * 2)
    # All of 8 values are kept; at three states and buckets of one, each has its norm.
    for settings in (
        dataclasses.replace(TOPK, ratio=1.0),
        dataclasses.replace(TOPK, method="qsgd", qstates=3, qsgd_bucket=1),
    ):
        account = account_of(settings)
        assert account.num_dense == 2
        assert account.message_bytes == 2 * (8 + 4 * 8)
        assert account.compression_error == 0
    assert account_of(TOPK).num_dense == 0
    assert account_of(dataclasses.replace(TOPK, method="terngrad")).num_dense == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_dense_messages_are_told_once_by_rank_0(rank, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(
        logging, "info", lambda form, *values: told.append(form % values)
    )
    cost = ExchangeCost(is_compressed=True, rank=rank)
    for num_dense in (0, 2, 3):
        cost.step_done(account(0.1, 1.0, num_dense=num_dense), None)
        cost.report()
    assert len(told) == (rank == 0)
    assert all("gradients of 2 compressed vector(s) are sent dense" in t for t in told)
