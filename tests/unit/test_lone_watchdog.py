"""A process without other ranks that stalls or fails says why, and records it."""

import threading
from types import SimpleNamespace

import pytest

from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import program
from resnet.watchdog import alone, history


def test_a_read_that_hangs_ends_the_process(tmp_path, monkeypatch, capsys):
    def end(code: int) -> None:
        codes.append(code)
        ranks.deregister()
        ended.set()

    codes, ended = [], threading.Event()
    monkeypatch.setattr(alone, "_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(alone.os, "_exit", end)
    scratch_dir = SimpleNamespace(path=lambda: tmp_path / "scratch")
    monkeypatch.setattr(alone, "scratch_dir", scratch_dir)
    (tmp_path / "scratch").mkdir()
    ranks = Communicator(ProcessInfo())
    ranks.start_watchdog(ProcessInfo(), 0.05, str(tmp_path))
    ranks.report_status("reading the batch of step 3")
    assert ended.wait(60)
    assert codes == [1]
    assert not (tmp_path / "scratch").exists()
    failure = history.read_failure(tmp_path)
    assert failure["step"] == 3
    assert "has been reading the batch of step 3 for" in failure["reason"]
    assert failure["reason"] in capsys.readouterr().err


def test_an_unexpected_failure_is_recorded(tmp_path, monkeypatch, capsys):
    def main(argv, process, communicator):
        communicator.start_watchdog(process, 120, str(tmp_path))
        communicator.report_status("reading the batch of step 7")
        raise KeyError("no such image")

    monkeypatch.setattr(program, "start_log", lambda verbosity: None)
    monkeypatch.setattr(program.preemption, "ignore_stop_signals", lambda: None)
    with pytest.raises(SystemExit) as end:
        program.run(main, [])
    assert end.value.code == 1
    assert "Traceback" in capsys.readouterr().err
    failure = history.read_failure(tmp_path)
    assert failure["step"] == 7
    assert failure["reason"].startswith("KeyError: 'no such image' (rank 0 on ")
    ((event,), _) = history.read(tmp_path)
    assert (event["event"], event["reason"]) == ("failure", failure["reason"])
