"""Evaluation beside a training: each checkpoint as it appears."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests import smallest
from tests.jobs.conftest import MPIRUN, REPOSITORY, TIMEOUT_SECONDS

pytestmark = pytest.mark.multiprocess

TRAIN_FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    "--train_batch_size=6",
    "--warmup_steps=0",
    "--keep_checkpoints=100",
    "--num_intra_threads=1",
)


class Watch:
    """A watching evaluation on 2 ranks, and what it has printed."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._files = {
            name: (folder / f"watch.{name}").open("w") for name in ("out", "err")
        }
        self.process = subprocess.Popen(
            [
                *(str(MPIRUN), "-np", "2", sys.executable),
                *(str(REPOSITORY / "eval/resnet_eval.py"), "--watch", *flags),
            ],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=self._files["out"],
            stderr=self._files["err"],
            start_new_session=True,
        )

    def printed(self, name: str) -> str:
        return Path(self._files[name].name).read_text()

    def wait_for_line(self, line: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while line not in self.printed("out"):
            assert self.process.poll() is None, self.printed("err")
            assert time.monotonic() < deadline, self.printed("err")
            time.sleep(0.1)

    def end(self) -> int:
        return self.process.wait(TIMEOUT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for file in self._files.values():
            file.close()


@pytest.fixture
def watch(tmp_path, records) -> Iterator[Callable[..., Watch]]:
    started = []

    def watch(*flags: str) -> Watch:
        folders = (f"--data_dir={records}", f"--model_dir={tmp_path / 'model'}")
        started.append(Watch(tmp_path, *folders, *flags))
        return started[-1]

    yield watch
    for one in started:
        one.close()


def test_each_checkpoint_of_a_run_is_evaluated_as_it_appears(
    run_ranks, records, tmp_path, watch
):
    model_dir, json_file = tmp_path / "model", tmp_path / "eval.json"
    watching = watch(f"--json_file={json_file}", "--num_intra_threads=1")
    watching.wait_for_line("waiting for a checkpoint")  # Of a run that isn't there.
    assert not model_dir.exists()
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *TRAIN_FLAGS,
        "--train_steps=9",
        "--eval_every=3",
        "--checkpoint_every=3",
        f"--data_dir={records}",
        f"--model_dir={model_dir}",
    )
    assert job.returncode == 0, job.stderr
    assert watching.end() == 0, watching.printed("err")
    found = json.loads(json_file.read_text())["results"]
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    expected = [line for line in lines if line["kind"] == "eval"]
    assert [one["global_step"] for one in found] == [3, 6, 9]
    for one, line in zip(found, expected, strict=True):
        assert one["count"] == 11
        assert one["top1"] == pytest.approx(line["top1"], abs=1e-6)
        assert one["loss"] == pytest.approx(line["loss"], rel=1e-5)


@pytest.fixture
def stopped_run(run_ranks, records, tmp_path) -> Path:
    """A run that ends when it is good enough, at once: of 1000 steps it has 2."""
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *TRAIN_FLAGS,
        "--train_steps=1000",
        "--eval_every=2",
        "--stop_at_top1=0.01",
        f"--data_dir={records}",
        f"--model_dir={tmp_path / 'model'}",
    )
    assert job.returncode == 0, job.stderr
    return tmp_path / "model"


def test_a_run_that_was_good_enough_has_ended(stopped_run, watch, tmp_path):
    # A later one that is damaged is passed over, with a note.
    checkpoints = stopped_run / "checkpoints"
    steps = sorted(one.name for one in checkpoints.iterdir())
    first = int(steps[0].removeprefix("step-"))
    damaged = checkpoints / "step-00000999"
    damaged.mkdir()
    watching = watch(f"--json_file={tmp_path / 'eval.json'}")
    assert watching.end() == 0, watching.printed("err")
    assert "Skipping the checkpoint of step 999: the checkpoint" in watching.printed(
        "err"
    )
    found = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert [one["global_step"] for one in found] == [first]
    assert "waiting" not in watching.printed("out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(watch, number):
    watching = watch()
    watching.wait_for_line("waiting for a checkpoint")
    watching.process.send_signal(number)
    assert watching.end() == REQUEUE_EXIT_CODE
    assert watching.printed("err").count("stopped watching for checkpoints. Rerun") == 1
    assert "Traceback" not in watching.printed("err")


def test_it_does_not_wait_without_end(watch):
    watching = watch("--watch_minutes=0.02")
    assert watching.end() == 1
    assert watching.printed("err").count("error: no new checkpoint has appeared") == 1
