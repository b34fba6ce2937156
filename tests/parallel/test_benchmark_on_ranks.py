"""The benchmark on ranks, on records."""

import re
from types import SimpleNamespace

from eval import benchmark
from eval.benchmarking.settings import Settings
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
    # Its flags can't be defined here, where those of the training are.
    monkeypatch.setattr(benchmark, "FLAGS", SimpleNamespace(profile=True))
    result = benchmark.measure(settings, PROCESS, communicator).as_dict()
    output = capsys.readouterr().out
    assert re.search(r"^waiting for images +[\d.]+% of the time$", output, re.M)
    assert result["ranks"] == 2
    assert 0 < result["min"] <= result["images_per_second"] <= result["max"]
    assert 0 <= result["waited_share"] < 1
    rates = communicator.allgather(result["images_per_second"])
    assert rates[0] == rates[1]
    assert communicator.rank != 0 or "gradient exchange" in result["profile_ms"]
