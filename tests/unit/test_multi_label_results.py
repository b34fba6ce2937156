"""Several labels an image: rules, evaluation, prediction, export and report."""

import dataclasses

import numpy as np
import pytest

from eval.evaluation_report import Evaluated, EvaluationReport
from eval.predict import Predicted, Table
from resnet.base.errors import UserError
from resnet.checkpoint import retention
from resnet.config import explain
from resnet.config.config import Config, Derived, save_config
from resnet.config.recipes import digits
from resnet.config.resolve import resolve
from resnet.evaluation import prediction_file
from resnet.evaluation.evaluator import Result
from resnet.evaluation.prediction_file import WrongImage
from resnet.evaluation.predictor import top_classes
from resnet.export import stock_network
from resnet.metrics import jsonl
from resnet.metrics.class_metrics import ByLabel
from tests.unit.stored_predictions import jpeg, predictions
from tests.unit.test_report import words_of
from tests.unit.test_stock_network import built, described, images_of

TARGETS = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]], np.uint8)
SCORES = np.array([[0.9, 0.6, 0.1], [0.2, 0.1, 0.3], [0.8, 0.7, 0.2], [0.1, 0.4, 0.3]])
BY_LABEL = ByLabel.of_scores(SCORES, TARGETS)  # By hand: AP 1, 1/2 + 1/2 * 2/3; none.
MEAN_AP = (1 + 5 / 6) / 2
RESULT = Result(np.nan, np.nan, 1.25, 1.0, 4, by_label=BY_LABEL)


def resolved(**overrides) -> Config:
    return resolve(digits.DIGITS, overrides, 1437, ("a", "b", "c"), multi_label=True)


def test_the_run_has_the_loss_and_the_metric_of_several_labels():
    config = resolved(mode="train")
    assert [phase.loss for phase in config.phases] == ["binary_cross_entropy"]
    assert config.best_metric == "mean_average_precision"
    text = explain.describe_run(digits.DIGITS, {}, Derived(config, 1))
    assert "1,437, several labels an image, 3 in all" in text
    words = "several labels an image excludes --sampling=root, since"
    with pytest.raises(UserError, match=words):
        resolved(sampling="root")


def test_results_speak_of_mean_average_precision(tmp_path, caplog):
    numbers = RESULT.as_dict()
    assert numbers["mean_average_precision"] == pytest.approx(MEAN_AP)
    assert numbers["mean_roc_auc"] == pytest.approx((1 + 3 / 4) / 2)
    assert not {"top1", "top5", "macro_f1"} & set(numbers)
    assert str(RESULT).startswith("mAP 91.67 %, mean ROC-AUC 0.8750, cross-entropy")
    saved = {"eval": numbers, "config": {"best_metric": "mean_average_precision"}}
    assert (
        retention.best_value(saved, retention.metric_of(saved))
        == numbers["mean_average_precision"]
    )
    file = tmp_path / "eval.json"
    with caplog.at_level("INFO", logger="absl"):
        EvaluationReport({}, str(file), "abc").add(
            Evaluated([7], "raw", "none"), RESULT
        )
    assert "global step 7: Mean average precision = 0.916" in caplog.text
    assert '"average_precision": null' in file.read_text()  # That of label c.


def test_labels_above_one_half_are_predicted_or_as_many_as_are_wanted(capsys):
    lists = [best.tolist() for best in top_classes(SCORES, None, multi_label=True)]
    assert lists == [[0, 1], [], [0, 1], []]
    assert [len(best) for best in top_classes(SCORES, 2, multi_label=True)] == [2] * 4
    table = Table(["1.jpg", "2.jpg"], ["cat"], ())
    table.add("1.jpg", [])
    table.add("2.jpg", [Predicted("cat", "", 0, 0.75)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["1.jpg", "no", "label"],
        ["2.jpg", "cat", "75.00", "%"],
    ]


def test_an_export_has_a_sigmoid_of_each_label_and_no_class():
    network = built("resnet8", 32)
    contents = described("resnet8", "float32", True, 32)
    contents = dataclasses.replace(contents, multi_label=True)
    images = images_of(32).astype(np.float32)
    exported = stock_network.build(network, contents)
    outputs = stock_network.frozen(exported)(images)
    assert list(outputs) == ["probabilities"]
    mean, stddev = contents.channel_mean, contents.channel_stddev
    logits = network((images / 255 - mean) / stddev, training=False).numpy()
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_the_report_has_a_table_of_labels_in_place_of_confusions(tmp_path):
    config = resolved(model_dir=str(tmp_path))
    save_config(config)
    line = jsonl.make_line("eval", 10, 1.0, RESULT.as_dict())
    (tmp_path / jsonl.FILE).write_text(jsonl.encode(line))
    order = np.argsort(-SCORES, axis=1).astype(np.int32)
    stored = dataclasses.replace(
        predictions(),
        examples=np.arange(4, dtype=np.int32),
        labels=TARGETS,
        top_classes=order,
        top_probabilities=np.take_along_axis(SCORES, order, 1).astype(np.float32),
        wrong_images=(WrongImage(3, "", jpeg()), WrongImage(1, "", jpeg())),
    )
    assert stored.is_right.tolist() == [False, True, True, False]
    prediction_file.write(tmp_path, "step", stored)
    text = words_of(tmp_path)
    for words in (
        "mAP 91.67 %, mean ROC-AUC 0.8750 on 4 validation images",
        "Evaluation of step 20: mAP 91.67 %, mean ROC-AUC 0.8750, all labels right",
        "label images average precision ROC-AUC b 2 83.33 % 0.7500 a 2 100.00 %",
        "c 0 – –",  # noqa: RUF001
        "no label",
    ):
        assert words in text
    assert "Confusion matrix" not in text
    assert "top-1" not in text.lower()
