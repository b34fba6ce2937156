# A conversion that is killed at random points, started again by the same command with
# another number of processes, must end with the same bytes as one that was not.

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import time
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from resnet.base import errors
from tests.converter_program import PROGRAM, arguments, content, started_conversions

NUM_SHARDS = 18 + 3
SHARDS = ("--train_shards=18", "--validation_shards=3")


class Reference(NamedTuple):
    """A conversion that nobody killed."""

    raw: pathlib.Path
    content: dict[str, bytes]


def words(raw: pathlib.Path, records: pathlib.Path, num_processes: int) -> list[str]:
    more = (f"--num_processes={num_processes}", *SHARDS)
    return [str(PROGRAM), *arguments(raw, records, *more)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    """Images that take a while to convert, hence PNG, and what becomes of them."""
    raw = tmp_path_factory.mktemp("killed") / "raw"
    raw.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (192, 192, 3), np.uint8)
    Image.fromarray(pixels).save(raw / "image.png")
    for split, num_images in {"train": 216, "val": 24}.items():
        for index in range(num_images):
            path = raw / split / f"n{index % 3}" / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(raw / "image.png", path)
    records = raw.parent / "records"
    with started_conversions() as start:
        running = start(*words(raw, records, num_processes=1))
        _, stderr = running.communicate(timeout=200)
        assert running.returncode == 0, stderr
    return Reference(raw, content(records))


def worker_of(pid: int) -> int | None:
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # It may just end.
            if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def kill(running: subprocess.Popen[str], who: str) -> bool:
    """Kills a part of a conversion and returns whether that part was there."""
    if who == "group":
        os.killpg(running.pid, signal.SIGKILL)
        return True
    if who == "parent":
        running.kill()
        return True
    worker = worker_of(running.pid)
    with contextlib.suppress(ProcessLookupError):  # It may just end.
        if worker is not None:
            os.kill(worker, signal.SIGKILL)
            return True
    return False


def finished_shards(records: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns inode and time of the shards that have a report, by their names."""
    found = {}
    for report in (records / ".conversion").glob("[tv]*.json"):
        path = records / report.stem.split("-")[0] / report.stem
        found[report.stem] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def test_a_conversion_killed_five_times_ends_as_one_that_was_not(
    reference, start, tmp_path
):
    chance = random.Random(7)
    victims = ["group", "group", "group", "parent", "worker"]
    chance.shuffle(victims)
    num_kept = num_finished = 0
    records = tmp_path / "records0"
    while victims or records.exists() or not num_finished:
        before = finished_shards(records)
        running = start(*words(reference.raw, records, chance.choice((1, 2, 3))))
        if victims:
            # Counted in shards, so that a slow machine is killed at the same points.
            enough = chance.randint(len(before), NUM_SHARDS)
            while len(finished_shards(records)) < enough and running.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            if running.poll() is None and kill(running, victims[-1]):
                victims.pop()
        _, stderr = running.communicate(timeout=200)
        assert "Traceback" not in stderr
        for path in records.glob("[tv]*/[tv]*"):
            name = path.relative_to(records)
            assert path.read_bytes() == reference.content[str(name)]  # Never a half.
        now = finished_shards(records)
        if (records / "manifest.json").exists():
            now = {
                path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
                for path in records.glob("[tv]*/[tv]*")
            }
        assert before.items() <= now.items()  # Kept, not written again.
        num_kept += len(before)
        if running.returncode == 0:
            assert content(records) == reference.content
            num_finished += 1
            records = tmp_path / f"records{num_finished}"
        else:
            assert running.returncode in (-signal.SIGKILL, errors.EXIT_CODE), stderr
    assert num_kept > 0


def test_an_interrupted_conversion_resumes_and_repairs_damaged_files(
    reference, start, tmp_path
):
    records = tmp_path / "records"
    running = start(*words(reference.raw, records, num_processes=2))
    while len(finished_shards(records)) < 4:
        time.sleep(0.01)
        assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    _, stderr = running.communicate(timeout=120)
    assert running.returncode == 130
    assert stderr.endswith("incomplete, rerun the same command to resume\n")
    assert not list(records.rglob(".*.partial"))
    plan = json.loads((records / ".conversion" / "plan.json").read_text())
    assert plan["train_images"] == 216

    before = finished_shards(records)
    flipped, cut, *kept = sorted(before)
    data = bytearray((records / "train" / flipped).read_bytes())
    data[len(data) // 2] ^= 0x10
    (records / "train" / flipped).write_bytes(data)
    os.truncate(records / "train" / cut, 1000)
    running = start(*words(reference.raw, records, num_processes=2))
    _, stderr = running.communicate(timeout=200)
    assert running.returncode == 0, stderr
    assert (
        f"resuming: {len(kept)} of {NUM_SHARDS} shards are already finished" in stderr
    )
    assert content(records) == reference.content
    for name in kept:
        split = name.split("-")[0]
        assert (records / split / name).stat().st_ino == before[name][0]


class Stopped(NamedTuple):
    """A conversion whose only worker is stopped, so that it never ends."""

    process: subprocess.Popen[str]
    worker: int


@pytest.fixture
def stopped(request, raw, start, tmp_path) -> Stopped:
    """Stops the worker of a conversion that is `starting` or `writing`, as told."""
    for index in range(3000):
        os.link(raw / "train/n01/n01_1.JPEG", raw / f"train/n01/again{index}.JPEG")
    process = start(*words(raw, tmp_path / "records", num_processes=1))
    deadline = time.monotonic() + 120
    worker = None
    # Its second thread is the one that waits for its parent's end.
    least = 2 if request.param == "writing" else 1
    while worker is None or len(os.listdir(f"/proc/{worker}/task")) < least:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        worker = worker_of(process.pid)
    os.kill(worker, signal.SIGSTOP)
    return Stopped(process, worker)


@pytest.mark.parametrize("stopped", ["starting"], indirect=True)
def test_an_interruption_ends_the_program_with_a_sentence(stopped, tmp_path):
    stopped.process.send_signal(signal.SIGINT)
    stdout, stderr = stopped.process.communicate(timeout=120)
    assert (stopped.process.returncode, stdout) == (130, "")
    assert stderr.endswith("incomplete, rerun the same command to resume\n")
    assert "Traceback" not in stderr
    assert not any("partial" in name for name in content(tmp_path / "records"))
    assert not pathlib.Path(f"/proc/{stopped.worker}").exists()


@pytest.mark.parametrize("stopped", ["writing"], indirect=True)
def test_a_dead_worker_ends_the_program_with_a_sentence(stopped, tmp_path):
    os.kill(stopped.worker, signal.SIGKILL)
    _, stderr = stopped.process.communicate(timeout=120)
    assert stopped.process.returncode == 2
    assert "error: a worker process died" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert not (tmp_path / "records" / "manifest.json").exists()


@pytest.mark.parametrize("stopped", ["starting", "writing"], indirect=True)
def test_the_worker_of_a_killed_program_ends(stopped):
    stopped.process.kill()
    stopped.process.wait()
    os.kill(stopped.worker, signal.SIGCONT)
    deadline = time.monotonic() + 120
    while pathlib.Path(f"/proc/{stopped.worker}/exe").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
