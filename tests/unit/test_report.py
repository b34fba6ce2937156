"""The page of a run: what it says, and what it escapes."""

import dataclasses
import json
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from resnet.config import phases
from resnet.config.config import load_config, save_config
from resnet.evaluation import prediction_file
from resnet.metrics import jsonl
from resnet.metrics.table import METRICS
from resnet.report import charts, curves, folder, page, story
from resnet.watchdog import history
from tests.unit.report_runs import (
    Reader,
    append_line,
    make_run,
    small_library,  # noqa: F401 - pytest finds it.
    text_of,
    words_of,
)
from tests.unit.stored_predictions import predictions

EVIL = "<script>alert(1)</script>"
JPEG = "data:image/jpeg;base64,"


def test_three_lines_say_what_the_run_is(tmp_path):
    make_run(tmp_path)
    history.append(tmp_path, "start", step=0, num_ranks=2, hosts={"h": 2}, cpu="EPYC")
    history.append(tmp_path, "end", step=400, reason="the training is done")
    text = words_of(tmp_path)
    assert "resnet18 at 32 px on 1,437 training images of 3 classes" in text
    # Of three classes, top-5 is always right.
    expected = "Top-1 75.00 % (95 % interval: 70.3 to 79.2 %) on 360 validation images"
    assert f"{expected} at step 400" in text
    assert "top-5" not in text.lower()
    # 400 steps of 64 images at 64 images per second.
    assert "Finished: 400 steps. 7 min of training, 64 images/s, 2 ranks" in text
    assert "h (EPYC)" in text
    assert "views" not in text.split("images/s")[0]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eval_views": "flip"}))
    assert "on 360 validation images, views flip, at step 400" in words_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "top1", "expected"),
    [
        ({}, 0.9213, "Handwritten digits: ResNet-18, top-1 92.13 %"),
        ({"model": "resnet34d"}, None, "Handwritten digits: ResNet-34-D"),
        (
            {"model": "alexnet", "data_dir": "/data/my flowers/Records"},
            0.5,
            "Handwritten digits: alexnet, top-1 50.00 %",
        ),
    ],
)
def test_the_title_names_data_network_and_accuracy(tmp_path, changes, top1, expected):
    make_run(tmp_path, tuple("0123456789"), num_lines=3, top1=top1, **changes)
    assert story.title(folder.read_all([tmp_path])).replace("\xa0", " ") == expected


@pytest.mark.parametrize(
    ("data_dir", "expected"),
    [
        ("/records/my flowers", "my flowers: ResNet-18"),
        ("/my clone/Records", "Images of 3 classes: ResNet-18"),
        ("/", "Images of 3 classes: ResNet-18"),
        ("", "Images of 3 classes: ResNet-18"),
        (
            "/data/\u05d7\u05ea\u05d5\u05dc",
            "\u2068\u05d7\u05ea\u05d5\u05dc\u2069: ResNet-18",
        ),
    ],
)
def test_data_that_no_recipe_knows_have_the_name_of_their_folder(
    tmp_path, data_dir, expected
):
    make_run(tmp_path, num_lines=3, top1=None, data_dir=data_dir)
    assert story.title(folder.read_all([tmp_path])) == expected


def test_the_title_of_several_runs_is_what_they_share(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    for path, model, top1 in zip(
        paths, ("resnet18", "resnet18", "resnet50d"), (0.75, 0.5, 0.25), strict=False
    ):
        make_run(path, data_dir=f"/{path.name}/flowers", model=model, top1=top1)
    (tmp_path / "d").mkdir()
    runs = folder.read_all(paths)
    titles = [story.title(some).replace("\xa0", " ") for some in (runs[:2], runs[:3])]
    expected = "flowers: ResNet-18, 2 runs, top-1 50.00 % to 75.00 %"
    assert titles == [expected, "flowers: 3 runs, top-1 25.00 % to 75.00 %"]
    assert story.title(runs) == "4 runs"
    assert story.title(runs[3:]) == "Report of d"


def test_predictions_come_before_diagnostics(tmp_path):
    make_run(tmp_path)
    prediction_file.write(tmp_path, "step", predictions())
    reader = Reader(text_of(tmp_path))
    sections = [attrs for tag, attrs in reader.tags if tag == "section"]
    ids = [attrs["id"] for attrs in sections if "id" in attrs]
    expected = ["curves", "predictions-0", "timeline", "diagnostics"]
    assert ids == [*expected, "settings", "machine"]
    labels = [str(attrs["aria-label"]) for _, attrs in reader.tags if "role" in attrs]
    charts = [label.split(" over ")[0] for label in labels if " chart of " in label]
    assert charts[:2] == [
        "Line chart of Top-1 accuracy, %",
        "Line chart of Cross-entropy",
    ]
    assert reader.text.index("Wrong predictions") < reader.text.index("Most confused")


def test_of_many_wrong_images_the_later_ones_are_folded(tmp_path):
    make_run(tmp_path)
    stored = predictions()
    many = dataclasses.replace(stored, wrong_images=20 * stored.wrong_images[:1])
    prediction_file.write(tmp_path, "step", many)
    reader = Reader(text_of(tmp_path))
    assert sum(tag == "img" for tag, _ in reader.tags) == 20
    assert "4 more" in reader.text


def test_command_commit_and_packages_of_the_last_start_are_shown(tmp_path):
    make_run(tmp_path)
    for version in ("1.5", "1.6"):
        facts = {"command": "resnet-train '--a b'", "git": "12ab-dirty"}
        history.append(tmp_path, "start", packages={"absl": version, "z": "2"}, **facts)
    text = words_of(tmp_path)
    assert "command resnet-train '--a b' Git commit 12ab-dirty" in text
    assert "2 Python packages" in text
    assert "package version absl 1.6 z 2" in text


def test_each_metric_has_a_chart_and_its_table(tmp_path):
    make_run(tmp_path, "abcdef")
    reader = Reader(text_of(tmp_path))
    drawn = [attrs for _, attrs in reader.tags if attrs.get("class") == "chart"]
    labels = [str(attrs["aria-label"]) for attrs in drawn]
    assert {attrs["role"] for attrs in drawn} == {"img"}
    logged = {name for line in jsonl.read(tmp_path / jsonl.FILE) for name in line}
    titles = [
        f"{metric.title}, %" if metric.unit == "%" else metric.title
        for metric in METRICS
        if metric.title and any(series.name in logged for series in metric.series)
    ]
    begins = [f"Line chart of {title} over epochs. " for title in titles]
    begins.insert(4, "Timeline of ")  # Between the results and the diagnostics.
    for label, begin in zip(labels, begins, strict=True):
        assert label.startswith(begin)
    assert len(reader.charts) == len(labels) == 10
    columns = reader.charts[1]["columns"]
    assert {curve["style"] for curve in columns} == {"raw", "smooth", "points"}
    assert columns[0]["value"][:2] == [2.5, 1.25]
    assert "10 0.45 2.5" in reader.text.replace("\n", " ").replace("  ", " ")


def test_a_kind_of_curve_looks_the_same_in_all_charts(tmp_path):
    make_run(tmp_path)
    numbers = {"top1": 0.5, "cross_entropy": 0.75, "count": 9}
    for kind in ("eval_ema", "eval_train"):
        append_line(tmp_path, jsonl.encode(jsonl.make_line(kind, 400, 9.0, numbers)))
    reader = Reader(text_of(tmp_path))
    accuracy, losses = (
        {
            curve["label"]: (curve["color"], curve["dash"])
            for curve in chart["columns"]
            if curve["style"] == "points"
        }
        for chart in reader.charts[:2]
    )
    assert accuracy == losses
    assert len(set(accuracy.values())) == 3
    swatches = [str(attrs["style"]) for tag, attrs in reader.tags if tag == "path"]
    assert swatches[:3] == swatches[4:7]
    script = page._text_of("page.js")
    (dashes,) = re.findall(r"const DASHES = \[\[1, 0\], (.*)\];", script)
    for swatch, dash in zip(
        swatches[:3], re.findall(r"\[([\d, ]+)\]", dashes), strict=True
    ):
        assert swatch.endswith(f"stroke-dasharray: {dash.replace(',', '')}")


def learning_rates(path: Path) -> list[float]:
    (chart,) = (
        chart
        for chart in curves.of_runs(folder.read_all([path]))
        if chart.metric.title == "Learning rate"
    )
    (curve,) = chart.curves
    assert list(curve.steps[-3:]) == [10, 20, 30]
    return curve.values.tolist()


def test_the_learning_rate_before_the_first_line_is_that_of_the_schedule(tmp_path):
    """In steps of which the log has every tenth, a short run has no warmup."""
    make_run(tmp_path, num_lines=3, peak_learning_rate=0.125)
    config = load_config(str(tmp_path))
    expected = [phases.learning_rate(config.phases, step) for step in range(9)]
    assert expected[0] < expected[1]
    assert learning_rates(tmp_path) == pytest.approx([*expected, *[0.125] * 3])
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["phases"][0]["schedule"] = None
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert learning_rates(tmp_path) == [0.125] * 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cat", None),
        ("garbage_truck", "long"),
        ("fire salamander, Salamandra salamandra", "long"),
        ("x" * 31, "long long-word"),
    ],
)
def test_only_words_wider_than_a_column_break_on_a_small_screen(
    tmp_path, name, expected
):
    make_run(tmp_path, ("a", "b", name))
    prediction_file.write(tmp_path, "p", predictions(("a", "b", name)))
    text = text_of(tmp_path)
    (classes,) = set(re.findall(rf'<th scope="row"( class="[^"]*")?>{name}</th>', text))
    assert classes == (f' class="{expected}"' if expected else "")


def test_a_field_of_a_chart_has_a_type():
    """Vega takes a field without one for a number, and shows "undefined" for others."""
    script = page._text_of("page.js")
    untyped = re.findall(r'\bfield: "(\w+)"(?!, type: )', script)
    filters, x2s = ["style", "style"], ["high", "end"]  # x2 has the type of x.
    assert untyped == [*filters, *x2s]


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
    assert "in all of them, steps 400, model resnet18, recipe digits" in text
    assert (
        "run top-1, last 95 % interval top-1, best cross-entropy training time"
        " images/s one 75.00 % 70.3 to 79.2 %" in text
    )
    assert "Settings that differ between the runs setting one two" in text
    assert "one: training" in text
    assert "two: training" in text


def test_predictions_are_shown_by_class(tmp_path):
    make_run(tmp_path)
    prediction_file.write(tmp_path, "step", predictions())
    text = words_of(tmp_path)
    # By hand: |.9-1| + |.6-0| + |.8-1| + |.7-1| + |1-1| + |.5-0|, each of a bin.
    for words in (
        "Evaluation of step 20: top-1 66.67 % (95 % interval: 30.0 to 90.3 %) on 6",
        "Accuracy of each class, the least recall first class images recall precision",
        "a 2 50.00 % 50.00 % b (1)",
        "c 2 50.00 % 100.00 % a (1)",
        "b 2 100.00 % 66.67 % –",  # noqa: RUF001
        "(ECE) 28.33 %",
    ):
        assert words in text
    images = [attrs for tag, attrs in Reader(text_of(tmp_path)).tags if tag == "img"]
    alts = ["image 1: a, taken for b", "image 5: c, taken for a"]
    assert [attrs["alt"] for attrs in images] == alts
    assert all(str(attrs["src"]).startswith(JPEG) for attrs in images)


def test_predictions_of_two_unequal_classes_have_means_and_thresholds(tmp_path):
    make_run(tmp_path, class_names=("ok", "defect"))
    of_two = dataclasses.replace(
        predictions(("ok", "defect")),
        labels=np.array([0, 0, 0, 0, 1, 1]),
        top_classes=np.array([[0, 1]] * 3 + [[1, 0]] * 2 + [[0, 1]]),
        top_probabilities=np.array([[0.75, 0.25]] * 4 + [[0.875, 0.125]] * 2),
        wrong_images=(),
    )
    prediction_file.write(tmp_path, "step", of_two)
    text = words_of(tmp_path)
    # P(defect) is 1/4, 1/4, 1/4 and 3/4 of "ok", 7/8 and 1/8 of "defect": 4 of 8 pairs
    # are in order. F1 is 2 * 3 / (4 + 4) and 2 * 1 / (2 + 2).
    for words in (
        "on 6 validation images; balanced accuracy 62.50 %, macro F1 62.50 %",
        "; ROC-AUC 0.5000.",
        "Images taken for defect from a probability on probability recall",
        "0.10 100.00 % 33.33 % 100.00 %",
        "0.80 50.00 % 100.00 % 0.00 %",
        "0.95 0.00 % – 0.00 %",  # noqa: RUF001
    ):
        assert words in text


@pytest.mark.parametrize(("mean", "is_told"), [(0.6, True), (0.745, False)])
def test_the_mean_of_classes_is_told_where_it_differs(tmp_path, mean, is_told):
    make_run(tmp_path)
    numbers = {"top1": 0.75, "count": 9, "balanced_accuracy": mean, "macro_f1": 0.5}
    append_line(tmp_path, jsonl.encode(jsonl.make_line("eval", 500, 9.0, numbers)))
    told = f"balanced accuracy {100 * mean:.2f} %, macro F1 50.00 %"
    assert (told in words_of(tmp_path)) == is_told


def test_of_the_newest_step_the_last_evaluation_is_shown(tmp_path):
    make_run(tmp_path)
    for number, name in enumerate(("step-20-ema", "step-20", "mean-predictions-20")):
        stored = dataclasses.replace(predictions(), evaluated=name)
        prediction_file.write(tmp_path, name, stored)
        file = tmp_path / prediction_file.FOLDER / f"{name}.npz"
        os.utime(file, (1000 + number % 2, 1000 + number % 2))
    assert "Evaluation of step-20: top-1" in words_of(tmp_path)


@pytest.mark.parametrize(
    ("digest", "is_told"), [("d", False), ("e", True), ("", False)]
)
def test_predictions_of_other_images_than_the_runs_are_told(tmp_path, digest, is_told):
    make_run(tmp_path)
    config = load_config(str(tmp_path))
    digests = {"validation_records_sha256": digest * 64}
    save_config(dataclasses.replace(config, **digests))
    prediction_file.write(tmp_path, "step", predictions())
    text = words_of(tmp_path)
    assert "top-1 66.67 % (95 % interval: 30.0 to 90.3 %) on 6" in text
    assert ("They are not the validation images of the run." in text) == is_told


def test_everything_is_escaped(tmp_path):
    names = (EVIL, "b", "c")
    make_run(tmp_path / "run", names)
    prediction_file.write(tmp_path / "run", "step", predictions(names))
    history.append(tmp_path / "run", "start", hosts={EVIL: 1}, cpu=EVIL, num_ranks=1)
    history.append(tmp_path / "run", "supervisor", reason=EVIL)
    history.append(tmp_path / "run", EVIL, what=EVIL)
    history.write_failure(tmp_path / "run", EVIL)
    result = {"top1": 0.5, "message_bytes": 3}
    study = {
        "shared": {EVIL: EVIL},
        "runs": [{"row": {"method": EVIL}, "result": result}],
    }
    (tmp_path / "run" / "study.json").write_text(json.dumps(study))
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    settings["phases"][0]["name"] = EVIL
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))
    line = {"kind": "train", "step": 9999, EVIL: 1}
    append_line(tmp_path / "run", f"{json.dumps(line)}\n")
    text = text_of(tmp_path / "run")
    assert EVIL not in text
    assert text.count("<script") == 2 + text.count('class="chart"')
    assert Reader(text).text.count(EVIL) > 10


@pytest.mark.parametrize("text", ["</script>", "<!--", "&", "\u2028"])
def test_json_cannot_end_its_script(text):
    written = page._script_json({text: [text, math.nan, math.inf, 1.5, None]})
    assert not {"<", "&", "\u2028"} & set(written)
    assert written.endswith(",null,null,1.5,null]}")


def test_the_page_asks_no_network(tmp_path):
    make_run(tmp_path)
    prediction_file.write(tmp_path, "step", predictions())
    text = text_of(tmp_path)
    tags = Reader(text).tags
    addresses = [attrs.get(name) for _, attrs in tags for name in ("src", "href")]
    assert all(address.startswith(("#", JPEG)) for address in filter(None, addresses))
    policies = [attrs["content"] for _, attrs in tags if "http-equiv" in attrs]
    assert "default-src 'none'" in str(policies[0])
    assert not re.search(r"https?:|@import|url\(", text)


def test_the_charts_library_is_in_the_page_without_a_way_out_of_its_element(
    tmp_path, monkeypatch, index_cache
):
    monkeypatch.undo()
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "cache"))
    # The real one takes seconds to be put together; a job of tests/jobs does it.
    bundle = SimpleNamespace(javascript_bundle=lambda: "vegaEmbed = '</script>'")
    monkeypatch.setitem(sys.modules, "vl_convert", bundle)
    first = charts.script_text()
    assert first == "vegaEmbed = '<\\/script>'"
    monkeypatch.setattr(charts, "_bundle", lambda: pytest.fail("it is in the cache"))
    assert charts.script_text() == first


def test_a_page_without_the_charts_library_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "script_text", lambda: None)
    make_run(tmp_path)
    text = text_of(tmp_path)
    assert "<script" not in text
    assert "The charts need the Python package vl-convert-python" in text


def test_ninety_epochs_of_imagenet_take_less_than_three_megabytes(tmp_path):
    names = [f"n{number:08d}" for number in range(1000)]
    make_run(tmp_path, names, num_lines=2_000)  # More lines are thinned out.
    random = np.random.default_rng(0)
    (image, _) = predictions(names).wrong_images
    image = dataclasses.replace(image, jpeg=b"x" * 6000)
    many = dataclasses.replace(
        predictions(names),
        examples=np.arange(50_000, dtype=np.int32),
        labels=np.repeat(np.arange(1000, dtype=np.int32), 50),
        top_classes=random.integers(0, 1000, (50_000, 5), dtype=np.int32),
        top_probabilities=random.random((50_000, 5), np.float32),
        wrong_images=48 * (image,),
    )
    prediction_file.write(tmp_path, "step", many)
    library = 1_000_000  # Not in this page, whose library is a stand-in.
    assert len(text_of(tmp_path).encode()) + library < 3_000_000
