import dataclasses
import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.converter_program import PROGRAM, arguments, content


@dataclasses.dataclass
class Running:
    """A conversion whose only worker is stopped, so that it never ends."""

    process: subprocess.Popen[str]
    worker: int


def worker_of(pid: int) -> int | None:
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.fixture
def running(request, raw, start, tmp_path):
    """Stops the worker of a conversion that is `starting` or `writing`, as told."""
    for index in range(3000):
        os.link(raw / "train/n01/n01_1.JPEG", raw / f"train/n01/again{index}.JPEG")
    process = start(PROGRAM, *arguments(raw, tmp_path / "records", "--num_processes=1"))
    deadline = time.monotonic() + 120
    worker = None
    # Its second thread is the one that waits for its parent's end.
    while worker is None or (request.param == "writing" and num_threads(worker) < 2):
        assert time.monotonic() < deadline
        time.sleep(0.001)
        worker = worker_of(process.pid)
    os.kill(worker, signal.SIGSTOP)
    return Running(process, worker)


@pytest.mark.parametrize(
    ("running", "number"),
    [("starting", signal.SIGINT), ("writing", signal.SIGTERM)],
    indirect=["running"],
)
def test_an_interruption_ends_the_program_with_a_sentence(running, tmp_path, number):
    running.process.send_signal(number)
    stdout, stderr = running.process.communicate(timeout=120)
    assert running.process.returncode == 130
    assert stderr.endswith(
        "error: interrupted; the record set is incomplete, rerun the same command to"
        " resume\n"
    )
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not any("partial" in name for name in content(tmp_path / "records"))
    assert not pathlib.Path(f"/proc/{running.worker}").exists()


@pytest.mark.parametrize("running", ["writing"], indirect=True)
def test_a_dead_worker_ends_the_program_with_a_sentence(running, tmp_path):
    os.kill(running.worker, signal.SIGKILL)
    _, stderr = running.process.communicate(timeout=120)
    assert running.process.returncode == 2
    assert "error: a worker process died" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert not (tmp_path / "records" / "manifest.json").exists()


@pytest.mark.parametrize("running", ["starting", "writing"], indirect=True)
def test_the_worker_of_a_killed_program_ends(running):
    running.process.kill()
    running.process.wait()
    os.kill(running.worker, signal.SIGCONT)
    deadline = time.monotonic() + 120
    while pathlib.Path(f"/proc/{running.worker}/exe").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
