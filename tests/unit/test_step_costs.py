"""What the steps between two log lines cost, by a clock that the tests advance."""

import math
import types
from collections.abc import Callable

import pytest

from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount
from resnet.hardware.placement import ProcessInfo
from resnet.metrics import step_costs
from resnet.metrics.step_costs import StepCosts

ALONE = Communicator(ProcessInfo())


class FourRanks(Communicator):
    """Of whose others, 0, 2 and 3, a wait and the seconds of 16 images are known."""

    def __init__(self, rank: int = 1) -> None:
        super().__init__(ProcessInfo(rank, 4, rank, 4))

    def allgather(self, value):
        return [(0.0, 16 / 3.00004), value, (0.42, 16.0), (0.1, 0.0)]


@pytest.fixture
def step(monkeypatch) -> Callable[..., None]:
    """A function that takes a step of so many seconds for its batch and after it."""
    now = [1000.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(step_costs, "time", clock)

    def step(
        costs: StepCosts,
        for_batch: float,
        after_it: float,
        micro_batches: int = 1,
        num_bytes: int = 10,
        num_dense: int = 0,
        error: float = math.nan,
        exposed: float = 0.0,
    ) -> None:
        now[0] += 100  # What lies between two steps is not looked at.
        for _ in range(micro_batches):
            with costs.waiting():
                now[0] += for_batch
            now[0] += after_it
        sent = 3 * num_bytes
        costs.step_done(ExchangeAccount(num_bytes, sent, num_dense, error, exposed))

    return step


def new(communicator: Communicator = ALONE) -> StepCosts:
    return StepCosts(communicator, local_batch_size=8)


def share(costs: StepCosts) -> float:
    return costs.report()["input_wait_share"]


def test_the_share_of_waiting_is_that_of_the_time_of_the_steps(step):
    costs = new()
    step(costs, 50, 30)  # Neither the pipeline's start nor the making of the graph.
    step(costs, 1, 9)
    step(costs, 0, 10)
    assert share(costs) == pytest.approx(1 / 20)
    step(costs, 3, 1)
    assert share(costs) == pytest.approx(3 / 4)
    step(costs, 1, 2, micro_batches=4)  # The waits for all of them count.
    assert share(costs) == pytest.approx(4 / 12)


def test_nothing_is_claimed_without_a_timed_step(step, logged):
    costs = new()
    step(costs, 50, 0)
    assert share(costs) == 0
    costs.paused()
    step(costs, 0, 7)  # The first one behind a pause doesn't count either.
    step(costs, 1, 5)
    assert share(costs) == pytest.approx(1 / 6)
    assert len(logged) == 1


def test_a_warning_is_of_more_than_five_percent_and_a_further_one_of_twice_as_much(
    step, logged
):
    costs = new()
    step(costs, 0, 1)
    counts = []
    for percent in (0, 1, 5, 6, 11.5, 1, 7, 12, 12, 23, 25, 90):
        step(costs, percent, 100 - percent)
        assert share(costs) == pytest.approx(percent / 100)
        counts.append(len(logged))
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4]
    stated = [text.partition(" %")[0].rpartition(" ")[2] for text in logged]
    assert stated == ["6", "12", "25", "90"]


def test_ranks_are_told_apart(step, logged):
    costs = new(FourRanks())
    step(costs, 9, 9, exposed=9)  # The first step isn't timed.
    step(costs, 0.5, 2.5, exposed=0.5)
    step(costs, 1, 3, exposed=1)
    numbers = costs.report()
    assert numbers["input_wait_share"] == 0.42
    # Without the time in which it waits for its input or the exchange.
    assert numbers["rank_images_per_second"] == [3.0, 2 * 8 / 4, 1.0, 0.0]
    (warning,) = logged
    assert "42 % of the time since the last line (rank 2," in warning
    assert "--num_parallel_calls" in warning
    assert "--decoded_cache_mb" in warning
    assert (costs.num_images, costs.seconds[1]) == (16, 4.0)
    step(costs, 0.5, 2.5, exposed=2.5)  # No time is left.
    assert costs.report()["rank_images_per_second"][1] == 0.0


def test_the_exchange_is_the_mean_over_the_steps_since_the_last_line(step):
    costs = new()
    step(costs, 0, 9, error=0.5, exposed=7.0)  # Its time doesn't count.
    step(costs, 0, 4, error=0.7, exposed=1.0, num_bytes=20)
    step(costs, 0, 6, error=0.6, exposed=2.0, num_bytes=31)
    expected = {
        "input_wait_share": 0,
        "message_bytes_per_step": 20,
        "bytes_sent_per_step": 61,
        "exchange_share": 0.3,
        "compression_error": 0.6,
    }
    assert costs.report() == pytest.approx(expected)
    step(costs, 0, 2, error=0.1)
    step(costs, 0, 2)  # In a round of local SGD nothing is compressed.
    assert costs.report()["compression_error"] == 0.1
    step(costs, 0, 1, exposed=1.0)
    assert costs.report().keys() == expected.keys() - {"compression_error"}


@pytest.mark.parametrize("rank", [0, 1])
def test_dense_messages_are_told_once_by_rank_0(rank, step, logged):
    costs = new(FourRanks(rank))
    for num_dense in (0, 2, 3):
        step(costs, 0, 1, num_dense=num_dense)
    assert len(logged) == (rank == 0)
    assert all(text.endswith("(logged once): 2") for text in logged)
