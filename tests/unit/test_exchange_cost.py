"""The means of an exchange's account in the metrics."""

import pytest
from absl import logging

from resnet.exchange.account import ExchangeAccount
from resnet.metrics.exchange_cost import ExchangeCost


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
