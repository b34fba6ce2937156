"""The page of a run that failed, is damaged, of another kind, or isn't one."""

import json
import os
from pathlib import Path

import pytest

from eval import report
from resnet.metrics import jsonl
from resnet.report import curves, folder, story
from resnet.watchdog import history
from tests.in_process import assert_refused, run
from tests.unit.report_runs import (
    Reader,
    append_line,
    cut_log,
    make_run,
    save_checkpoint,
    small_library,  # noqa: F401 - pytest finds it.
    text_of,
    words_of,
)

_NOTHING_SENT = '"bytes_sent_per_step": 0'


def test_a_failed_run_says_how_far_it_came_and_why(tmp_path):
    make_run(tmp_path)
    cut_log(tmp_path, 7)
    text = words_of(tmp_path)
    assert "Unfinished: step 70 of 400" in text
    assert "No evaluation has been logged yet" in text
    line = {"kind": "eval_train", "step": 70, "epoch": 7, "top1": 0.5, "count": 1234}
    append_line(tmp_path, json.dumps(line) + "\n")
    assert "top-1 50.00 % on 1,234 of the training images" in words_of(tmp_path)
    history.append(tmp_path, "start", step=0)
    history.write_failure(tmp_path, "rank 1 on b has died while computing step 71")
    history.append(tmp_path, "supervisor", reason="restart 1 of 3")
    text = words_of(tmp_path)
    assert "Failed, last at step 70 of 400: rank 1 on b has died" in text
    assert text.count("failed: rank 1 on b has died while computing step 71") == 1
    assert "1 restart. The last word: restart 1 of 3." in text


def test_a_job_that_found_the_folder_locked_is_no_failure_of_the_run(tmp_path):
    make_run(tmp_path)
    history.append(tmp_path, "end", step=400, reason="the training is done")
    reason = "it is locked by another job (process 12)"
    history.write_failure(tmp_path, reason, is_locked=True)
    text = words_of(tmp_path)
    assert "Finished: 400 steps" in text
    assert f"another start was refused: {reason}" in text
    assert {moment.lane for moment in story.timeline(folder.read(tmp_path))} == {
        story.PHASE,
        story.START,
    }
    (tmp_path / history.FILE).unlink()  # As if the disk were full.
    assert reason not in words_of(tmp_path)


@pytest.mark.parametrize("num_classes", [5, 6])
def test_top5_of_few_classes_and_messages_of_one_rank_are_not_shown(
    tmp_path, num_classes
):
    make_run(tmp_path, tuple("abcdef")[:num_classes])
    log = tmp_path / jsonl.FILE
    if is_alone := num_classes == 5:
        text = log.read_text().replace('"bytes_sent_per_step": 1000', _NOTHING_SENT)
        log.write_text(text)
    titles = {chart.metric.title for chart in curves.of_runs([folder.read(tmp_path)])}
    assert ("Top-5 accuracy" in titles) == (num_classes == 6)
    assert ("Bytes of gradients per step" in titles) != is_alone


def test_checkpoints_and_versions_are_shown(tmp_path):
    make_run(tmp_path)
    installed = {"version of numpy": "2.0"}
    save_checkpoint(tmp_path, installation=installed, num_ranks=4, eval={"top1": 0.75})
    text = words_of(tmp_path)
    assert "checkpoint, 0.0 MB, top-1 75.00 %" in text
    assert "version of numpy 2.0" in text
    assert "ranks 4" in text


def test_the_ranks_of_an_asynchronous_run_are_not_those_of_its_coordinator(tmp_path):
    make_run(tmp_path, sync_mode="async")
    save_checkpoint(tmp_path, installation={}, num_ranks=1)
    text = words_of(tmp_path)
    assert "1 rank" not in text


def test_a_study_has_its_chart_and_table(tmp_path):
    row = {"compress": "layerwise", "ratio": 0.01}  # Top-k is the default.
    results = ({}, 0.5, 4000.0), (row, 0.25, 40.0), (row, 0.75, 40.0), (row, None, 40.0)
    runs = [
        {"row": of, "seed": 0, "result": {"top1": top1, "message_bytes": size}}
        for of, top1, size in results
    ]
    content = {"shared": {"recipe": "digits"}, "runs": runs}
    (tmp_path / "study.json").write_text(json.dumps(content))
    text = words_of(tmp_path)
    assert "dense 50.00 1 4,000" in text
    assert "topk, layerwise, ratio=0.01 50.00 (25.00 to 75.00), 1 diverged 3 40" in text
    assert "What is missing" not in text


def test_a_log_that_was_cut_is_shown_as_far_as_it_goes(tmp_path):
    make_run(tmp_path)
    append_line(tmp_path, 'no json\n{"kind": "train", "st')
    text = words_of(tmp_path)
    assert "Lines of metrics.jsonl that can't be read: 1" in text
    assert "The last line of metrics.jsonl is incomplete" in text
    assert "Top-1 75.00 %" in text


def test_an_empty_folder_has_a_page_that_says_so(tmp_path):
    text = words_of(tmp_path)
    for missing in (
        *("config.json is missing", "There is no checkpoint"),
        "metrics.jsonl is missing: the run has logged nothing yet",
        *("No metrics have been logged yet", "No predictions are stored"),
    ):
        assert missing in text


@pytest.mark.parametrize(
    "settings",
    ["{", "[1]", '{"model": 7, "phases": [3, {"x": {"y": null}}], "later": [{}]}'],
)
def test_settings_that_are_not_valid_are_shown_as_they_are(tmp_path, settings):
    make_run(tmp_path)
    (tmp_path / "config.json").write_text(settings)
    text = words_of(tmp_path)
    missing = text.index("What is missing")
    assert "config.json" in text[missing : missing + 60]
    assert "Top-1 75.00 %" in text


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "metrics.jsonl", "history.jsonl", "failure.json"),
        *("study.json", "diverged-step-00000003.json", "predictions/x.npz"),
        "checkpoints/step-00000010/checkpoint.json",
    ],
)
def test_no_file_of_a_run_can_end_the_report(tmp_path, name):
    make_run(tmp_path, num_lines=3)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for content in (
        *(b"", b"\0" * 50, b"[]", b"null", b"7\n", b'{"step": "x", "event": 1}\n'),
        b'{"runs": 3, "shared": 4, "kind": "eval", "step": 1, "time": "x"}\n',
    ):
        (tmp_path / name).write_bytes(content)
        Reader(text_of(tmp_path))


def test_the_program_writes_the_page_into_the_first_folder(tmp_path):
    make_run(tmp_path / "run")
    done = run(report, str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tmp_path / "run" / "report.html")
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!doctype html>")
    out = tmp_path / "new" / "page.html"
    assert run(report, str(tmp_path / "run"), f"--out={out}").returncode == 0
    assert out.exists()


def test_the_folders_are_those_of_the_flag_and_the_arguments(tmp_path, monkeypatch):
    make_run(tmp_path / "a,b", num_lines=3)
    written = []
    monkeypatch.setattr(report.page, "write", lambda paths, out: written.append(paths))
    monkeypatch.setattr(report, "require_runs", lambda paths: None)
    for words in (
        ["--model_dir=x,y"],
        ["x", "y"],
        ["y", "--model_dir=x"],
        [f"--model_dir={tmp_path}/a,b"],  # One folder, whose name has a comma.
    ):
        out = f"--out={tmp_path}/page.html"
        assert run(report, *words, out).returncode == 0
    assert written == [[Path("x"), Path("y")]] * 3 + [[tmp_path / "a,b"]]


def test_what_is_no_folder_is_refused(tmp_path):
    assert_refused(run(report), "--model_dir is required")
    assert_refused(run(report, str(tmp_path / "none")), "none doesn't exist")
    (tmp_path / "file").touch()
    done = run(report, str(tmp_path / "file"), f"--out={tmp_path}/page.html")
    assert_refused(done, "file is not a folder")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/cat.jpg").touch()
    done = run(report, str(tmp_path / "images"))
    assert_refused(done, "images has none of config.json, metrics.jsonl, history.jsonl")
    assert os.listdir(tmp_path / "images") == ["cat.jpg"]
    (tmp_path / "history.jsonl").touch()
    (tmp_path / "file").touch()
    below_file = tmp_path / "file" / "page.html"
    for out, words in (
        (below_file, f"--out={below_file} must be in a folder"),
        (tmp_path, f"--out={tmp_path} is a folder"),
    ):
        assert_refused(run(report, str(tmp_path), f"--out={out}"), words)
