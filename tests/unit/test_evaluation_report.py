import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from absl import logging

from eval.evaluation_report import Evaluated, EvaluationReport, check_json_file
from resnet.base.errors import UserError
from resnet.evaluation.evaluator import Result
from resnet.metrics.class_metrics import ByClass, Threshold, TwoClasses

RESULT = Result(top1=0.5, top5=0.75, loss=1.25, cross_entropy=1.0, count=8)


def test_the_log_lines_are_the_published_runs(caplog, capsys):
    logging.set_verbosity(logging.INFO)
    caplog.set_level("INFO")
    EvaluationReport({}, "").add(Evaluated([60], "raw", "none"), RESULT)
    assert (
        "Saving dict for global step 60: Top-1 accuracy = 0.5, Top-5 accuracy = 0.75,"
        " global_step = 60, loss = 1.25"
    ) in caplog.text
    assert "Eval results" not in caplog.text  # The same once more.
    capsys.readouterr()
    of_training = EvaluationReport({"split": "train"}, "")
    of_training.add(Evaluated([60], "ema", "none"), RESULT)
    name = "step 60, EMA weights, training images"
    assert capsys.readouterr().out.startswith(f"{name}: top-1 50.00 %")
    assert f"Saving dict for global {name}: Top-1 accuracy = 0.5," in caplog.text


def test_whatever_an_evaluation_does_is_in_its_text_and_in_the_name_of_its_file():
    weights, combine = ("raw", "ema"), ("none", "weights", "predictions")
    ways = [
        Evaluated([20, 60], *way)
        for way in itertools.product(
            weights, combine, ("center", "flip"), (0, 5, 10), ("", "0a1b2c3d")
        )
    ]
    assert len({way.file_name for way in ways}) == len(ways) == 72
    assert len(set(map(str, ways))) == 36  # The text of a result has the views.
    options = "EMA weights, PreciseBN of 10 batches, other records (0a1b2c3d)"
    assert str(ways[-1]) == f"mean predictions of steps 20, 60, {options}"
    assert Evaluated([60], "raw", "none").file_name == "step-00000060"


def test_the_file_has_all_results_so_far_and_the_last_at_its_top(tmp_path):
    path = tmp_path / "eval.json"
    report = EvaluationReport({"views": "flip"}, str(path))
    numbers = RESULT.as_dict()
    report.add(Evaluated([20], "raw", "none"), RESULT)
    first = {"global_step": 20, "weights": "raw", **numbers}
    assert json.loads(path.read_text()) == {
        "views": "flip",
        "results": [first],
        **first,
    }
    report.add(Evaluated([20, 60], "ema", "weights"), RESULT)
    second = {"global_step": 60, "weights": "ema", "steps": [20, 60], **numbers}
    assert json.loads(path.read_text()) == {
        "views": "flip",
        "results": [first, second],
        **second,
    }
    assert [one.name for one in tmp_path.iterdir()] == ["eval.json"]


def test_the_file_has_the_numbers_of_each_class(tmp_path, capsys):
    path = tmp_path / "eval.json"
    report = EvaluationReport({}, str(path), ("ok", "defect"))
    by_class = ByClass(*np.array([[3, 0], [4, 0], [3, 1]]))
    two = TwoClasses(1, 0.75, (Threshold(0.5, 1.0, math.nan, 0.25),))
    result = dataclasses.replace(RESULT, by_class=by_class)
    report.add(Evaluated([20], "raw", "none"), result, two)
    contents = json.loads(path.read_text())
    assert contents["classes"] == {
        "ok": {"images": 4, "recall": 0.75, "precision": 1.0, "f1": 6 / 7},
        "defect": {"images": 0, "recall": None, "precision": 0.0, "f1": None},
    }
    assert (contents["balanced_accuracy"], contents["macro_f1"]) == (0.75, 6 / 7)
    assert (contents["positive_class"], contents["roc_auc"]) == ("defect", 0.75)
    (row,) = contents["thresholds"]
    assert row["threshold"] == row["false_positive_rate"] * 2 == 0.5
    assert (row["recall"], row["precision"]) == (1.0, None)
    assert "ROC-AUC 0.7500" in capsys.readouterr().out


def test_numbers_that_are_not_finite_are_null_in_the_file(tmp_path):
    report = EvaluationReport({}, str(tmp_path / "eval.json"))
    result = dataclasses.replace(RESULT, loss=math.nan, cross_entropy=math.inf)
    report.add(Evaluated([20], "raw", "none"), result)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (tmp_path / "eval.json").read_text()
    found = json.loads(text, parse_constant=refuse)
    assert (found["loss"], found["cross_entropy"]) == (None, None)


def test_the_folder_of_the_file_is_made_and_one_that_cannot_be_is_refused(tmp_path):
    path = tmp_path / "new/folder/eval.json"
    check_json_file(str(path))
    EvaluationReport({}, str(path)).add(Evaluated([20], "raw", "none"), RESULT)
    assert path.exists()
    inside = str(path / "eval.json")  # A file has none.
    with pytest.raises(UserError, match=r"writing the file of --json_file, .* failed"):
        EvaluationReport({}, inside).add(Evaluated([20], "raw", "none"), RESULT)
    with pytest.raises(UserError, match=f"--json_file={inside} must be in a folder"):
        check_json_file(inside)
    with pytest.raises(UserError, match=r"--json_file=.* is a folder"):
        check_json_file(str(tmp_path))
