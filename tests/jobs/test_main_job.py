"""The main job as a user runs it: a training on ranks, and an evaluation beside it."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resnet.evaluation import prediction_file
from resnet.export.formats import ExportedNetwork
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from tests import main_run
from tests.jobs.conftest import MPIRUN, REPOSITORY, TIMEOUT_SECONDS

pytestmark = pytest.mark.multiprocess

# Libraries that this Horovod is not built with: it would crash.
_OF_HOROVOD = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")


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
            cwd=folder,
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


@pytest.fixture(scope="module")
def watch(tmp_path_factory, records) -> Iterator[Callable[..., Watch]]:
    """Returns `watch(model_dir, *flags)`: an evaluation, started in another folder."""
    started = []

    def watch(model_dir: Path, *flags: str) -> Watch:
        folders = (f"--data_dir={records}", f"--model_dir={model_dir}")
        started.append(Watch(tmp_path_factory.mktemp("watch"), *folders, *flags))
        return started[-1]

    yield watch
    for one in started:
        one.close()


@dataclasses.dataclass(frozen=True)
class Jobs:
    """A run of 6 steps, and the evaluation of its checkpoints as they appeared."""

    folder: Path  # In which the training was started, with its `model`.
    training: subprocess.CompletedProcess[str]
    watching: Watch
    json_file: Path  # Of the evaluation.
    export_dir: Path  # Of the training.


@pytest.fixture(scope="module")
def jobs(run_ranks, records, watch, tmp_path_factory) -> Jobs:
    """Returns how a training and an evaluation, both on 2 ranks, have ended."""
    folder = tmp_path_factory.mktemp("main")
    json_file = tmp_path_factory.mktemp("found") / "eval.json"
    export_dir = tmp_path_factory.mktemp("exports") / "new"
    flags = ("--use_tpu=False", "--kmp_blocktime=1", "--num_intra_threads=1")
    watching = watch(
        folder / "model", f"--json_file={json_file}", "--store_predictions", *flags
    )
    watching.wait_for_line("waiting for a checkpoint")  # Of a run that isn't there.
    assert not (folder / "model").exists()
    training = run_ranks(
        2,
        "resnet/resnet_main.py",
        *main_run.FLAGS,
        "--report_every=2steps",
        f"--data_dir={records}",
        f"--model_dir={folder / 'model'}",
        f"--export_dir={export_dir}",
        cwd=folder,
        environment=dict.fromkeys(_OF_HOROVOD, "gloo"),
    )
    assert training.returncode == 0, training.stderr
    assert watching.end() == 0, watching.printed("err")
    return Jobs(folder, training, watching, json_file, export_dir)


def test_the_training_says_what_it_does_once(jobs):
    printed = jobs.training.stderr
    assert "2 ranks: " in printed
    assert (
        len(re.findall(f"without effect here: .*{', '.join(_OF_HOROVOD)}", printed))
        == 1
    )
    assert "have no effect in this TensorFlow" not in printed
    assert not re.search(r"^[IWE]\d{4} ", printed, re.M)  # Absl's prefix.
    assert printed.count("Training for 6 steps (1.50 epochs in total)") == 1
    lines = re.findall(
        r"^step \d+/6 .* cross-entropy .* lr .* penalty .* left$", printed, re.M
    )
    assert len(lines) == 3


def test_the_training_writes_into_its_model_dir_only(jobs):
    assert [entry.name for entry in jobs.folder.iterdir()] == ["model"]
    assert {entry.name for entry in (jobs.folder / "model").iterdir()} == {
        "checkpoints",
        "config.json",
        "history.jsonl",
        "metrics.jsonl",
        "predictions",  # Those of the evaluation beside it.
        "report.html",
        "tensorboard",
    }
    page = (jobs.folder / "model" / "report.html").read_text()
    for words in ("Finished: 6 steps.", "2 ranks", "ended: the training is done"):
        assert words in page
    assert "vegaEmbed" in page  # The charts' library.
    assert 500_000 < len(page) < 1_500_000


def test_each_checkpoint_of_a_run_is_evaluated_as_it_appears(jobs):
    found = json.loads(jobs.json_file.read_text())["results"]
    assert [one["global_step"] for one in found] == [3, 6]
    expected = main_run.evaluation_lines(jobs.folder / "model")
    for one, line in zip(found, expected, strict=True):
        main_run.assert_same(one, line)
        name = f"step-{one['global_step']:08d}.npz"
        stored = prediction_file.read(jobs.folder / "model" / "predictions" / name)
        assert stored.examples.tolist() == list(range(11))
        assert stored.is_right.mean() == pytest.approx(one["top1"], abs=1e-6)
        assert len(stored.wrong_images) == 11 - stored.is_right.sum()


def test_the_evaluation_says_what_it_has_found_once(jobs):
    log, printed = jobs.watching.printed("err"), jobs.watching.printed("out")
    assert re.search(r"^Evaluation \[\d+/\d+\]$", log, re.M)
    for step in (3, 6):
        assert log.count(f"Saving dict for global step {step}: Top-1 accuracy = ") == 1
    assert printed.count("on 11 images") == 2


def test_the_training_exports_its_last_step_once(jobs):
    (version,) = jobs.export_dir.iterdir()
    assert version.name.isdigit()
    assert (version / "saved_model.pb").is_file()
    assert ExportedNetwork(version).contents.step == 6
    assert jobs.training.stderr.count(f"Exported step 6 to {version}") == 1


def test_the_training_program_evaluates_if_it_is_asked_to(jobs, run_ranks, records):
    job = run_ranks(
        2,
        "resnet/resnet_main.py",
        *main_run.FLAGS,
        "--mode=eval",
        f"--data_dir={records}",
        f"--model_dir={jobs.folder / 'model'}",
    )
    assert job.returncode == 0, job.stderr
    expected = main_run.evaluation_lines(jobs.folder / "model")
    line = r"^step (\d+): top-1 (\S+) % .* on 11 images$"
    found = re.findall(line, job.stdout, re.M)
    shown = [(str(one["step"]), f"{100 * one['top1']:.2f}") for one in expected]
    assert found == shown
    assert "Training for" not in job.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_evaluation_cleanly(watch, tmp_path, number):
    watching = watch(tmp_path / "model")
    watching.wait_for_line("waiting for a checkpoint")
    watching.process.send_signal(number)
    assert watching.end() == REQUEUE_EXIT_CODE
    assert watching.printed("err").count("stopped watching for checkpoints. Rerun") == 1
    assert "Traceback" not in watching.printed("err")
