"""Which exchange of messages a run chooses."""

import dataclasses

import pytest

from resnet.config.compression import CompressionSettings
from resnet.distributed import interconnect
from resnet.distributed.communicator import Communicator
from resnet.distributed.interconnect import Interconnect
from resnet.exchange import choice as exchange_choice
from resnet.hardware.placement import ProcessInfo

TOPK = CompressionSettings(compress="layerwise", method="topk", ratio=0.01)
GIGABIT = Interconnect(latency=50e-6, bandwidth=125e6)


def of_ranks(num_ranks: int) -> Communicator:
    return Communicator(ProcessInfo(rank=0, num_ranks=num_ranks))


def test_the_time_is_that_of_all_messages_one_after_the_other():
    assert GIGABIT.seconds(3, 125e3) == pytest.approx(3 * 50e-6 + 1e-3)
    assert exchange_choice.seconds_of_allgather(125_000, 4, GIGABIT) == pytest.approx(
        3 * (50e-6 + 1e-3)
    )
    assert exchange_choice.seconds_of_slices(125_000, 4, GIGABIT) == pytest.approx(
        6 * 50e-6 + 2 * 3 / 4 * 1e-3
    )


@pytest.mark.parametrize(
    ("settings", "num_ranks", "latency", "chosen"),
    [
        (TOPK, 2, 1e-6, "allgather"),  # The bytes are the same.
        (TOPK, 8, 1e-6, "sliced"),
        (TOPK, 8, 5e-3, "allgather"),  # Twice as many messages.
        (TOPK, 512, 50e-6, "sliced"),
        (dataclasses.replace(TOPK, method="bf16"), 3, 50e-6, "sliced"),
        (dataclasses.replace(TOPK, method="thresholdv"), 512, 50e-6, "sliced"),
        # 52 KB a bucket with topk's 1 %, 1.8 MB in dgc's first epoch.
        (TOPK, 3, 1e-3, "allgather"),
        (dataclasses.replace(TOPK, method="dgc"), 3, 1e-3, "sliced"),
        (dataclasses.replace(TOPK, method="randomk"), 8, 1e-6, "auto"),
        (dataclasses.replace(TOPK, method="powersgd"), 8, 1e-6, "auto"),
        (CompressionSettings(), 8, 1e-6, "auto"),
        (dataclasses.replace(TOPK, exchange="allgather"), 512, 50e-6, "allgather"),
    ],
)
def test_the_faster_exchange_is_chosen(
    monkeypatch, settings, num_ranks, latency, chosen
):
    measured = Interconnect(latency, bandwidth=125e6)
    monkeypatch.setattr(interconnect, "measure", lambda _: measured)
    assert exchange_choice.choose(settings, of_ranks(num_ranks)) == chosen
