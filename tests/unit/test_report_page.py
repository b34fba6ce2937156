"""The page of a run: what it says, what it escapes, and how much it takes."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from eval import report
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, step_dirs
from resnet.evaluation import prediction_file
from resnet.metrics import jsonl
from resnet.report import folder, page, refresh
from resnet.report.charts import javascript
from resnet.watchdog import failure_file, history
from tests.in_process import assert_refused, run
from tests.unit.stored_predictions import predictions
from tests.unit.written_run import (
    Reader,
    make_run,
    small_library,  # noqa: F401 - The fixture.
    text_of,
    words_of,
)

EVIL = "<script>alert(1)</script>"


def fields_without_type(value) -> list[str]:
    """Returns the channels of all charts that name a field but no type."""
    if isinstance(value, list):
        return [text for one in value for text in fields_without_type(one)]
    if not isinstance(value, dict):
        return []
    is_test = "equal" in value  # A field of a filter has no type.
    found = [str(value)] if {"field"} == {"field", "type"} & set(value) else []
    found = [] if is_test or found == ["{'field': 'end'}"] else found  # x2 has x's.
    return found + [text for one in value.values() for text in fields_without_type(one)]


def test_three_lines_say_what_the_run_is(tmp_path):
    make_run(tmp_path)
    history.append(tmp_path, "start", step=0, num_ranks=2, hosts={"h": 2}, cpu="EPYC")
    history.append(tmp_path, "end", step=400, reason="the training is done")
    text = words_of(tmp_path)
    assert "resnet18 at 32 px on 1,437 training images of 3 classes" in text
    assert "Top-1 75.00 %, top-5 100.00 % on 360 validation images at step 400" in text
    # 400 steps of 64 images at 64 images per second.
    assert "Finished: 400 steps. 7 min of training, 64 images/s, 2 rank(s)" in text
    assert "h (EPYC)" in text


def test_the_accuracy_of_several_views_is_told_as_that(tmp_path):
    make_run(tmp_path)
    assert "views" not in words_of(tmp_path).split("images/s")[0]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eval_views": "flip"}))
    text = words_of(tmp_path)
    assert "on 360 validation images, views flip, at step 400" in text


def test_each_metric_has_a_chart_and_its_table(tmp_path):
    make_run(tmp_path)
    text = text_of(tmp_path)
    charts = json.loads(
        re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text)[1]
    )
    titles = re.findall(r"<h3>([^<]*)</h3></?figcaption|<h3>([^<]*)</h3>", text)
    titles = [one or other for one, other in titles]
    for title in (
        *("Cross-entropy", "Weight penalty", "Top-1 accuracy, %", "Top-5 accuracy, %"),
        *("Learning rate", "Images per second", "Time spent waiting, %"),
        *("Bytes of gradients per step",),
        "Images per second of each rank",
    ):
        assert title in titles
    elements = Reader(text).tags
    drawn = [attrs for _, attrs in elements if attrs.get("class") == "chart"]
    assert [one["id"] for one in drawn] == list(charts)
    assert all(one["role"] == "img" and one["aria-label"] for one in drawn)
    # Vega takes a field without a type for a number, and shows "undefined" for others.
    assert "field" not in " ".join(fields_without_type(charts))
    points = charts["chart-0"]["columns"]
    assert {one["style"] for one in points} == {"raw", "smooth", "points"}
    assert points[0]["value"][:2] == [2.5, 1.25]


def test_the_settings_that_differ_from_the_recipe_are_listed(tmp_path):
    make_run(tmp_path, weight_decay=0.25)
    text = words_of(tmp_path)
    start = text.index("Differences from the recipe digits setting recipe run")
    assert "train: weight_decay" in text[start : start + 600]
    assert "num_parallel_calls" not in text[start : text.index("All settings of")]


def test_runs_are_compared(tmp_path):
    for name, rate in (("one", 0.25), ("two", 0.5)):
        make_run(tmp_path / name, peak_learning_rate=rate)
    text = words_of(tmp_path / "one", tmp_path / "two")
    assert "The runs compared run model recipe top-1, last" in text
    assert "Settings that differ between the runs setting one two" in text
    assert "one: training" in text
    assert "two: training" in text


def test_predictions_are_shown_by_class(tmp_path):
    make_run(tmp_path)
    prediction_file.write(tmp_path, "step", predictions())
    text = words_of(tmp_path)
    assert "Evaluation of step 20: top-1 66.67 % on 6 validation images." in text
    assert "Accuracy of each class, the least first class images top-1" in text
    assert "a 2 50.00 % b (1)" in text
    assert "c 2 50.00 % a (1)" in text
    assert "b 2 100.00 % –" in text  # noqa: RUF001
    # By hand: |.9-1| + |.6-0| + |.8-1| + |.7-1| + |1-1| + |.5-0|, each of a bin.
    assert "(ECE) 28.33 %" in text
    images = [attrs for tag, attrs in Reader(text_of(tmp_path)).tags if tag == "img"]
    assert [one["alt"] for one in images] == [
        "image 1: a, taken for b",
        "image 5: c, taken for a",
    ]
    assert all(one["src"].startswith("data:image/jpeg;base64,") for one in images)


def test_of_the_newest_step_the_last_evaluation_is_shown(tmp_path):
    make_run(tmp_path)
    for number, name in enumerate(("step-20-ema", "step-20", "mean-predictions-20")):
        one = dataclasses.replace(predictions(), evaluated=name)
        prediction_file.write(tmp_path, name, one)
        file = tmp_path / prediction_file.FOLDER / f"{name}.npz"
        os.utime(file, (1000 + number % 2, 1000 + number % 2))
    assert "Evaluation of step-20: top-1" in words_of(tmp_path)


def test_everything_is_escaped(tmp_path):
    names = (EVIL, "b", "c")
    make_run(tmp_path / "run", names)
    prediction_file.write(tmp_path / "run", "step", predictions(names))
    history.append(tmp_path / "run", "start", hosts={EVIL: 1}, cpu=EVIL, num_ranks=1)
    history.append(tmp_path / "run", "supervisor", reason=EVIL)
    history.append(tmp_path / "run", EVIL, what=EVIL)
    failure_file.write(tmp_path / "run", EVIL)
    study = {
        "shared": {EVIL: EVIL},
        "runs": [
            {"row": {"method": EVIL}, "result": {"top1": 0.5, "message_bytes": 3}}
        ],
    }
    (tmp_path / "run" / "study.json").write_text(json.dumps(study))
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    settings["phases"][0]["name"] = EVIL
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))
    with (tmp_path / "run" / jsonl.FILE).open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 9999, EVIL: 1}) + "\n")
    text = text_of(tmp_path / "run")
    assert EVIL not in text
    assert text.count("<script") == 3
    assert Reader(text).text.count(EVIL) > 10


def test_the_page_asks_no_network(tmp_path):
    make_run(tmp_path)
    prediction_file.write(tmp_path, "step", predictions())
    text = text_of(tmp_path)
    for _, attrs in Reader(text).tags:
        for name in ("src", "href"):
            address = attrs.get(name) or "#"
            assert address.startswith(("#", "data:image/jpeg;base64,"))
    policies = [
        attrs["content"] for tag, attrs in Reader(text).tags if "http-equiv" in attrs
    ]
    assert "default-src 'none'" in policies[0]
    assert not re.search(r"https?:|@import|url\(", text)


def test_the_charts_library_is_in_the_page_without_a_way_out_of_its_element(
    tmp_path, monkeypatch, index_cache
):
    monkeypatch.undo()
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "cache"))
    first = javascript.script()
    assert first is not None
    assert "vegaEmbed" in first
    assert "</script" not in first
    assert len(first) < 1_200_000
    monkeypatch.setattr(
        javascript, "_bundle", lambda: pytest.fail("it is in the cache")
    )
    assert javascript.script() == first


def test_a_page_without_the_charts_library_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(javascript, "script", lambda: None)
    make_run(tmp_path)
    text = text_of(tmp_path)
    assert "<script" not in text
    assert "The charts need the Python package vl-convert-python" in text


def test_ninety_epochs_of_imagenet_take_less_than_three_megabytes(tmp_path):
    names = [f"n{number:08d}" for number in range(1000)]
    make_run(tmp_path, names, num_lines=11_260)
    random = np.random.default_rng(0)
    many = dataclasses.replace(
        predictions(names),
        examples=np.arange(50_000, dtype=np.int32),
        labels=np.repeat(np.arange(1000, dtype=np.int32), 50),
        top_classes=random.integers(0, 1000, (50_000, 5), dtype=np.int32),
        top_probabilities=random.random((50_000, 5), np.float32),
    )
    images = [
        dataclasses.replace(many.wrong_images[0], example=number, jpeg=b"x" * 6000)
        for number in range(48)
    ]
    many = dataclasses.replace(many, wrong_images=tuple(images))
    prediction_file.write(tmp_path, "step", many)
    library = 1_000_000  # Not in this page, whose library is a stand-in.
    assert len(text_of(tmp_path).encode()) + library < 3_000_000


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path):
    make_run(tmp_path)
    lines = (tmp_path / jsonl.FILE).read_text().splitlines(keepends=True)
    (tmp_path / jsonl.FILE).write_text("".join(lines[:7]))
    text = words_of(tmp_path)
    assert "Unfinished: step 70 of 400" in text
    assert "No evaluation has been logged yet" in text


def test_a_failed_run_says_why(tmp_path):
    make_run(tmp_path)
    lines = (tmp_path / jsonl.FILE).read_text().splitlines(keepends=True)
    (tmp_path / jsonl.FILE).write_text("".join(lines[:7]))
    history.append(tmp_path, "start", step=0)
    failure_file.write(tmp_path, "rank 1 on b has died while computing step 71")
    history.append(tmp_path, "supervisor", reason="restart 1 of 3")
    text = words_of(tmp_path)
    assert "Failed, last at step 70 of 400: rank 1 on b has died" in text
    assert text.count("failed: rank 1 on b has died while computing step 71") == 1
    assert "1 restart(s). The last word: restart 1 of 3." in text


def test_a_run_at_its_last_step_has_finished_only_if_it_has_ended(tmp_path):
    make_run(tmp_path)
    history.append(tmp_path, "start", step=0)
    assert "Unfinished: step 400 of 400" in words_of(tmp_path)
    failure_file.write(tmp_path, "rank 1 on b has died while evaluating")
    assert "Failed, last at step 400 of 400: rank 1 on b" in words_of(tmp_path)
    failure_file.remove(tmp_path)
    history.append(tmp_path, "end", step=400, reason="the training is done")
    assert "Finished: 400 steps" in words_of(tmp_path)
    failure_file.write(tmp_path, "it is locked by another job", is_locked=True)
    assert "Finished: 400 steps" in words_of(tmp_path)


def test_checkpoints_and_versions_are_shown(tmp_path):
    make_run(tmp_path)
    saved = step_dirs.of_step(tmp_path, 400)
    saved.mkdir(parents=True)
    installed = {"version of numpy": "2.0"}
    facts = {"installation": installed, "num_ranks": 4, "eval": {"top1": 0.75}}
    integrity.write_contents(saved, facts)
    text = words_of(tmp_path)
    assert "checkpoint, 0.0 MB, top-1 75.00 %" in text
    assert "version of numpy 2.0" in text
    assert "ranks 4" in text


def test_the_ranks_of_an_asynchronous_run_are_not_those_of_its_coordinator(tmp_path):
    make_run(tmp_path, sync_mode="async")
    saved = step_dirs.of_step(tmp_path, 400)
    saved.mkdir(parents=True)
    integrity.write_contents(saved, {"installation": {}, "num_ranks": 1})
    text = words_of(tmp_path)
    assert "rank(s)" not in text
    assert "ranks 1" not in text


def test_a_study_has_its_chart_and_table(tmp_path):
    row = {"compress": "layerwise", "ratio": 0.01}  # Top-k is the default.
    runs = [
        {"row": {}, "seed": 0, "result": {"top1": 0.5, "message_bytes": 4000.0}},
        {"row": row, "seed": 0, "result": {"top1": 0.25, "message_bytes": 40.0}},
        {"row": row, "seed": 1, "result": {"top1": 0.75, "message_bytes": 40.0}},
        {"row": row, "seed": 2, "result": {"top1": None, "message_bytes": 40.0}},
    ]
    content = {"shared": {"recipe": "digits"}, "runs": runs}
    (tmp_path / "study.json").write_text(json.dumps(content))
    text = words_of(tmp_path)
    assert "dense 50.00 1 4,000" in text
    assert "topk, layerwise, ratio=0.01 50.00 (25.00 to 75.00), 1 diverged 3 40" in text
    assert "What is missing" not in text


def test_the_program_writes_the_page_into_the_first_folder(tmp_path):
    make_run(tmp_path / "run")
    done = run(report, str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tmp_path / "run" / "report.html")
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!doctype html>")
    out = tmp_path / "new" / "page.html"
    assert run(report, str(tmp_path / "run"), f"--out={out}").returncode == 0
    assert out.exists()


def test_what_is_no_folder_is_refused(tmp_path):
    assert_refused(run(report), "expected the folder of at least one run")
    assert_refused(run(report, str(tmp_path / "none")), "expected the folder of a run")
    (tmp_path / "file").touch()
    out = f"--out={tmp_path / 'file' / 'page.html'}"
    for flag in (out, "--out=."):
        done = run(report, str(tmp_path), flag)
        assert_refused(done, "the report can't be written")


def test_folders_of_the_same_name_are_told_apart():
    paths = [Path("/a/x/model"), Path("/a/y/model")]
    assert folder.names_of(paths) == ["x/model", "y/model"]
    assert folder.names_of(paths[:1]) == ["model"]
    assert folder.names_of([paths[0], paths[0]])[1].endswith("x/model (2)")


def test_a_page_that_cannot_be_written_leaves_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "write", lambda paths, out: 1 / 0)
    refresh.write(tmp_path)
    assert "ZeroDivisionError" in (tmp_path / "report.log").read_text()


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="expected the folder of a run"):
        folder.read_all([tmp_path / "none"])
