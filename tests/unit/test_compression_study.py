"""The study of compression: rows, results, table, figure, and resuming."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import IO
from unittest import mock

import pytest

from eval.lab import compression_study, study, trainings
from eval.lab.study import Result, StudyFile
from resnet.base.errors import UserError
from resnet.config.compression import CompressionSettings
from resnet.config.config import Config, save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.metrics import jsonl
from tests.in_process import assert_refused, run, succeeded

TOPK = CompressionSettings(compress="layerwise", ratio=0.01, error_feedback=True)
QSGD = CompressionSettings(compress="entiremodel", method="qsgd", qstates=7)


@pytest.fixture
def config(tmp_path) -> Config:
    """Settings of a run with 4 steps of 16 images, saved."""
    settings = {"global_batch_size": 16, "train_steps": 4, "warmup_steps": 1}
    settings["model_dir"] = str(tmp_path / "settings")
    config = resolve(digits.DIGITS, settings, 64, ("a", "b"))
    save_config(config)
    return config


class Job:
    """In place of a training: its result is the seed divided by 10.

    While `is_stopped`, the study gets SIGTERM instead.
    """

    is_stopped = False

    def __init__(self, calls: list[list[str]], settings: Path) -> None:
        self.calls, self.settings, self.signals = calls, settings, []

    def start(self, command: list[str], output: IO[bytes]) -> "Job":
        self.output = output
        self.calls.append([word for word in command if word.startswith("--")])
        return self

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> int:
        if self.signals:
            return 75
        if self.is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        flags = dict(flag[2:].split("=", 1) for flag in self.calls[-1])
        folder, seed = Path(flags["model_dir"]), int(flags["seed"])
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        shutil.copy(self.settings, folder)
        if flags.get("method") == "dgc":
            self.output.write(b"error: dgc needs --optimizer=momentum")
            return 2
        if seed == 13:
            self.output.write(b"error: an unlucky number")
            return 1
        num_bytes = 1000 if "compress" in flags else 4000
        numbers = {"message_bytes_per_step": num_bytes, "exchange_share": 0.25}
        numbers |= {"bytes_sent_per_step": 0, "images_per_second": 8.0}
        written = [jsonl.make_line("train", 4, 1.0, numbers)]
        if seed == 9:
            (folder / "diverged-step-00000004.json").touch()
        else:
            written.append(jsonl.make_line("eval", 4, 1.0, {"top1": seed / 10}))
        (folder / jsonl.FILE).write_text("".join(map(jsonl.encode, written)))
        return int(seed == 9)


@pytest.fixture
def job(monkeypatch, config) -> Job:
    """Replaces the training program; lists its flags."""
    job = Job([], Path(config.model_dir, "config.json"))
    monkeypatch.setattr(trainings, "start", job.start)
    monkeypatch.setattr(compression_study.study_figure, "draw", lambda *_: None)
    monkeypatch.setattr(compression_study.figure, "write", lambda _, path, flag: None)
    return job


def run_study(folder: Path, *flags: str):
    folders = ("--data_dir=D", "--recipe=digits", f"--output_dir={folder}")
    return run(compression_study, *folders, *flags)


def test_rows_are_all_combinations_that_can_work():
    rows, left_out = study.product(
        ["topk:ratio=0.01", "terngrad"], ["layerwise", "entiremodel"], "both"
    )
    assert list(map(study.name, rows)) == [
        "dense",
        "topk-ratio=0.01-layerwise",
        "topk-ratio=0.01-layerwise-feedback",
        "topk-ratio=0.01-entiremodel",
        "topk-ratio=0.01-entiremodel-feedback",
        "terngrad-layerwise",
        "terngrad-entiremodel",
    ]
    assert left_out == ["terngrad-layerwise-feedback", "terngrad-entiremodel-feedback"]
    assert rows[2] == TOPK
    flags = ["--compress=layerwise", "--ratio=0.01", "--error_feedback=true"]
    assert (study.flags(TOPK), study.flags(study.DENSE)) == (flags, [])
    # A method that can't have error feedback trains without it.
    rows, left_out = study.product(["terngrad", "dgc", "topk"], ["layerwise"], "with")
    names = ["dense", "terngrad-layerwise", "dgc-layerwise", "topk-layerwise-feedback"]
    assert (list(map(study.name, rows)), left_out) == (names, [])


def test_a_row_that_the_program_refuses_is_left_out(job, tmp_path):
    flags = ("--methods=dgc,topk", "--ways=layerwise", "--feedback=without")
    done = succeeded(run_study(tmp_path / "study", *flags, "--seeds=1,2"))
    sentence = "dgc-layerwise is left out: error: dgc needs --optimizer=momentum"
    assert done.stderr.count(sentence) == 1
    runs = json.loads((tmp_path / "study" / "study.json").read_text())["runs"]
    rows = [(one["row"].get("compress"), one["seed"]) for one in runs]
    assert rows == [(None, 1), ("layerwise", 1), (None, 2), ("layerwise", 2)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topk:rate=0.1", "there is no parameter 'rate'"),
        ("topk:ratio=much", "ratio can't be 'much'"),
        ("top", "method .* must be one of"),
    ],
)
def test_a_method_that_does_not_exist_is_refused(text, sentence):
    with pytest.raises(UserError, match=sentence):
        study.product([text], ["layerwise"], "without")


def test_rows_can_be_read_from_a_file(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{}, study.changed(TOPK), study.changed(QSGD)]))
    assert study.read_rows(path) == [study.DENSE, TOPK, QSGD]
    for text, sentence in (
        ("[]", "must have a list of rows"),
        ("{", "expected a JSON file"),
        ('[{"rate": 1}]', "unknown field 'rate' of row 1 of"),
        ('[{}, {"error_feedback": true}]', "row 2 of .*--error_feedback needs"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=sentence):
            study.read_rows(path)


def train_line(step: int, rate: float, **numbers: float) -> jsonl.Line:
    costs = {
        "message_bytes_per_step": 100,
        "bytes_sent_per_step": 50,
        "exchange_share": 0.5,
        "compression_error": 0.25,
    }
    numbers = {"images_per_second": rate, **costs, **numbers}
    return jsonl.make_line("train", step, step / 4, numbers)


def write_metrics(config: Config, *lines: jsonl.Line) -> Path:
    folder = Path(config.model_dir)
    (folder / jsonl.FILE).write_text("".join(map(jsonl.encode, lines)))
    return folder


def test_the_result_is_the_mean_over_the_steps(config):
    folder = write_metrics(
        config,
        train_line(3, 8.0),
        jsonl.make_line("eval", 3, 0.75, {"top1": 0.5}),
        train_line(4, 4.0, message_bytes_per_step=500, compression_error=0.65),
        jsonl.make_line("eval", 4, 1.0, {"top1": 0.75}),
    )
    # Three steps of 16 images at 8 images per second, one at 4.
    expected = Result(0.75, 4, 6.0 + 4.0, 200.0, 50.0, 0.5, 0.35)
    found = dataclasses.astuple(study.result_of(folder))
    assert found == pytest.approx(dataclasses.astuple(expected))


def test_a_training_without_its_last_evaluation_has_no_result(config):
    folder = write_metrics(
        config, train_line(4, 8.0), jsonl.make_line("eval", 3, 0.75, {"top1": 0.5})
    )
    with pytest.raises(UserError, match="no evaluation of the last step"):
        study.result_of(folder)
    diverged = study.result_of(folder, has_diverged=True)
    assert (diverged.top1, diverged.steps, diverged.seconds) == (None, 4, 8.0)


def test_the_table_has_medians_and_ranges():
    dense = [Result(top1, 100, 60.0, 4000.0, 0.0, 0.0) for top1 in (0.9, 0.8, 0.7)]
    topk = [
        Result(0.85, 100, 120.0, 50.0, 150.0, 0.125, 0.5),
        Result(None, 50, 60.0, 50.0, 150.0, 0.125, 0.7),
    ]
    lines = compression_study.table({study.DENSE: dense, TOPK: topk}).splitlines()
    assert lines[2:] == [
        "| dense | - | - | 80.00 (70.00 to 90.00) | 3 | 4,000 | 1.0 | 0 | - | 0.0 % |"
        " 0.6 | 1.0 |",
        "| topk, ratio=0.01 | layerwise | yes | 85.00, 1 diverged | 2 | 50 | 80.0"
        " | 150 | 0.6 | 12.5 % | 1.2 | 1.5 |",
    ]
    # A training that diverges at once is in no median.
    at_once = Result(None, 0, 0.0, 0.0, 0.0, 0.0)
    *_, line = compression_study.table(
        {study.DENSE: [*dense, at_once], TOPK: [topk[0], at_once]}
    ).splitlines()
    assert line.endswith("| 50 | 80.0 | 150 | 0.5 | 12.5 % | 1.2 | 2.0 |")


def test_the_table_in_the_results_is_that_of_its_study(tmp_path):
    root = Path(__file__).resolve().parents[2]
    kept = StudyFile(root / "docs/curves/compression_study/study.json", {})
    settings = compression_study.StudySettings(output_dir=str(tmp_path))
    compression_study.write(kept, settings)
    lines = (tmp_path / "study.md").read_text().splitlines()[2:]
    page = (root / "docs/dev/results_compression.md").read_text()
    assert len(lines) == 37
    for top1 in (line.split(" | ")[3] for line in lines):
        assert f" {top1} |" in page
    assert (tmp_path / "study.png").stat().st_size > 10_000


def test_a_study_trains_each_row_with_each_seed_and_keeps_what_is_done(job, tmp_path):
    flags = ("--methods=topk:ratio=0.01", "--ways=layerwise", "--feedback=with")
    done = run_study(tmp_path / "study", *flags, "--train_flags=--eval_every=1epoch")
    assert done.returncode == 0, done.stderr
    assert "| dense | - | - | 0.00 | 1 | 4,000 | 1.0 |" in done.stdout
    assert "| topk, ratio=0.01 | layerwise | yes | 0.00 | 1 |" in done.stdout
    dense, topk = job.calls
    runs = tmp_path / "study" / "runs"
    common = ["--data_dir=D", "--recipe=digits", "--seed=0"]
    model_dir = f"--model_dir={runs}/dense/seed-0"
    assert dense == [*common, "--eval_every=1epoch", model_dir]
    assert topk[:6] == [*common, *study.flags(TOPK)]
    assert not (runs / "dense" / "seed-0" / "checkpoints").exists()

    more = (*flags, "--train_flags=--eval_every=1epoch", "--seeds=0,2,9")
    done = succeeded(run_study(tmp_path / "study", *more))
    assert "dense, seed 9: diverged after step 4" in done.stderr
    assert "| dense | - | - | 10.00 (0.00 to 20.00), 1 diverged | 3 |" in done.stdout
    assert len(job.calls) == 6
    assert (tmp_path / "study" / "study.md").read_text() == done.stdout

    assert_refused(
        run_study(tmp_path / "study", *flags), "other settings: train_flags was '--eval"
    )


def test_what_ends_a_study_is_one_sentence(job, tmp_path):
    done = run_study(tmp_path / "study", "--methods=topk", "--seeds=13")
    assert_refused(done, "ends with 'error: an unlucky number'. The same command")
    assert "failed with exit code 1" in done.stderr
    sentence = "--train_flags can't be split into words: No closing quotation"
    assert_refused(run_study(tmp_path / "study", "--train_flags=--a='x"), sentence)
    assert_refused(run_study(tmp_path / "s", "--seeds=x"), "--seeds must be whole")
    assert_refused(run(compression_study), "--data_dir is required")
    assert_refused(run(compression_study, "--data_dir=D"), "--recipe is required")


def test_an_interrupted_study_stops_its_training_and_resumes(job, tmp_path):
    flags = ("--methods=topk", "--ways=layerwise", "--feedback=without")
    job.is_stopped = True
    done = run_study(tmp_path / "study", *flags)
    assert (done.returncode, job.signals) == (130, [signal.SIGTERM])
    assert "interrupted; the same command resumes the study" in done.stderr
    job.is_stopped, job.signals = False, []
    done = succeeded(run_study(tmp_path / "study", *flags))
    assert len(job.calls) == 3  # The first one twice.


def test_checkpoints_are_kept_until_the_study_has_the_result(
    job, tmp_path, monkeypatch
):
    flags = ("--methods=topk", "--ways=layerwise", "--feedback=without")
    checkpoints = tmp_path / "study" / "runs" / "dense" / "seed-0" / "checkpoints"
    with monkeypatch.context() as patched:
        patched.setattr(StudyFile, "add", mock.Mock(side_effect=KeyboardInterrupt))
        assert run_study(tmp_path / "study", *flags).returncode == 130
    assert checkpoints.exists()
    assert run_study(tmp_path / "study", *flags).returncode == 0
    assert not checkpoints.exists()
