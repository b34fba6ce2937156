"""The benchmark on ranks, on records, and that of the exchange of gradients."""

import re

import pytest

from eval import benchmark
from eval.benchmarking.settings import Settings
from eval.lab import exchange_cost
from eval.lab.exchange_cost import ExchangeSettings
from resnet.config.command_line import JobSettings
from resnet.config.compression import CompressionSettings
from resnet.watchdog import scratch_dir
from tests import smallest
from tests.parallel.conftest import PROCESS


def test_ranks_measure_together_on_records(communicator, records, capsys, monkeypatch):
    settings = Settings(
        model=smallest.NETWORK,
        image_size=32,
        batch_size=3,
        steps=2,
        data_dir=str(records),
    )
    monkeypatch.setattr(scratch_dir, "make", lambda: None)  # It lasts to the end.
    result = benchmark.measure(settings, JobSettings(), True, PROCESS, communicator)
    output = capsys.readouterr().out
    assert re.search(r"^waiting for images +[\d.]+% of the time$", output, re.M)
    assert result["ranks"] == 2
    assert 0 < result["min"] <= result["images_per_second"] <= result["max"]
    assert 0 <= result["input_wait_share"] < 1
    rates = communicator.allgather(result["images_per_second"])
    assert rates[0] == rates[1]
    assert communicator.rank != 0 or "gradient exchange" in result["profile_ms"]


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("exchange", "factor"), [("allgather", 2), ("sliced", 4 / 3)])
def test_the_bytes_of_an_exchange_are_those_of_its_formula(
    communicator, capsys, exchange, factor
):
    settings = ExchangeSettings(model="resnet8", steps=2, warmup_steps=1)
    method = CompressionSettings(
        compress="layerwise", method="terngrad", exchange=exchange
    )
    exchange_cost.measure(settings, method, communicator)
    output = capsys.readouterr().out
    if communicator.rank == 0:
        assert f"{exchange}, ranks 3" in output
        found = re.search(r"messages +([\d,]+) bytes.*\n.*sends +([\d,]+) ", output)
        message, sent = (int(one.replace(",", "")) for one in found.groups())
        # 139,640 values of resnet8 with 1,000 classes, 5 a byte.
        assert message == pytest.approx(139_640 / 5, rel=0.02)
        assert sent == pytest.approx(factor * message, rel=0.02)
