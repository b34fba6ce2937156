"""The stored predictions of a run: by class, confusions, wrong images, calibration."""

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from resnet.evaluation.prediction_file import Predictions
from resnet.metrics.accuracy import interval_text
from resnet.metrics.class_metrics import ByClass, ByLabel, Counts, two_classes
from resnet.report import charts
from resnet.report.charts import Figure, Table
from resnet.report.words import MISSING, isolated, percent

NUM_BINS = 15  # Of the confidence, as in the source.
_MAX_MATRIX = 30  # Classes of a confusion matrix that is shown whole.
_MAX_OF_MANY = 20  # Classes of one that is not.
_MAX_PAIRS = 20
_MAX_CLASSES = 1000  # Rows of the table of classes.
_OPEN_CLASSES = 30  # More are folded.
_MAX_SHADE = 0.45  # Darkest cell color on which text is readable.
_OPEN_IMAGES = 16  # More are folded.
_SHOWN_GUESSES = 3  # Below a wrong image.


def section(predictions: Predictions, run_records: str) -> dict[str, Any]:
    """Returns what the page's section "predictions" shows.

    `run_records` is the digest of the validation images of the run; empty if unknown.
    """
    names = class_names(predictions)
    if predictions.labels.ndim > 1:
        return _section_of_labels(predictions, names) | {
            "is_of_run": run_records in ("", predictions.records_sha256)
        }
    counts = confusion_matrix(
        predictions.labels, predictions.top_classes[:, 0], len(names)
    )
    by_class, pairs = ByClass.of_matrix(counts), most_confused(counts, _MAX_PAIRS)
    is_right = predictions.is_right
    top1 = float(np.mean(is_right)) if len(is_right) else math.nan
    return {
        "predictions": predictions,
        "labels": None,
        "is_of_run": run_records in ("", predictions.records_sha256),
        "accuracy": top1,
        "interval": len(is_right) and interval_text(top1, len(is_right)),
        "means": bool(len(is_right)) and by_class.is_imbalanced and by_class,
        **_two_classes(predictions, names),
        **_by_class(counts, names),
        "pairs": Table(
            "Images of a class that were taken for another one",
            ("class", "taken for", "images", "of the class"),
            [
                (names[label], names[predicted], count, percent(share))
                for label, predicted, count, share in pairs
            ],
        ),
        "matrix": _matrix_table(counts, names, pairs),
        "calibration": _calibration_figure(predictions),
        "images": list(_wrong_images(predictions, names)),
        "num_open": _OPEN_IMAGES,
    }


def _section_of_labels(
    predictions: Predictions, names: Sequence[str]
) -> dict[str, Any]:
    """Returns what `section` does of several labels an image."""
    by_label = ByLabel.of_scores(predictions.scores, predictions.labels)
    precision = np.nan_to_num(by_label.average_precision, nan=2.0)
    rows = []
    for label in np.argsort(precision, kind="stable")[:_MAX_CLASSES].tolist():
        auc = by_label.roc_auc[label]
        has_images, has_auc = by_label.positive[label] > 0, not math.isnan(auc)
        bar = _bar(float(precision[label])) if has_images else MISSING
        count = int(by_label.positive[label])
        rows.append((names[label], count, bar, f"{auc:.4f}" if has_auc else MISSING))
    header = ("label", "images", "average precision", "ROC-AUC")
    caption = "Average precision of each label, the least first"
    return {
        "predictions": predictions,
        "accuracy": float(np.mean(predictions.is_right)),
        "interval": len(predictions.labels) > 0,
        "means": False,
        "roc_auc": None,
        "by_label": by_label,
        "labels": Table(caption, header, rows),
        "images": list(_wrong_images(predictions, names)),
        "num_open": _OPEN_IMAGES,
    }


def class_names(predictions: Predictions) -> list[str]:
    """Returns what the page calls each class: its name, with a description if any."""
    names = list(map(isolated, predictions.class_names))
    if not predictions.class_descriptions:
        return names
    pairs = zip(names, predictions.class_descriptions, strict=True)
    return [f"{isolated(text.split(',')[0])} ({name})" for name, text in pairs]


def confusion_matrix(
    labels: npt.NDArray[np.integer],
    predicted: npt.NDArray[np.integer],
    num_classes: int,
) -> Counts:
    """Returns the images by class and by predicted class, `[classes, classes]`."""
    cells = labels.astype(np.int64) * num_classes + predicted
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def most_confused(counts: Counts, limit: int) -> list[tuple[int, int, int, float]]:
    """Returns class, predicted class, count and share of the most frequent errors."""
    wrong = counts - np.diag(np.diagonal(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:limit]
    totals = counts.sum(axis=1)
    return [
        (label, other, count, count / int(totals[label]))
        for label, other in (divmod(int(cell), len(counts)) for cell in order)
        if (count := int(wrong[label, other]))
    ]


def _by_class(counts: Counts, names: Sequence[str]) -> dict[str, Table | str | None]:
    """Returns the table of classes; if long, the first rows and the folded whole."""
    by_class = ByClass.of_matrix(counts)
    recall, precision, totals = by_class.recall, by_class.precision, by_class.actual
    wrong = counts - np.diag(np.diagonal(counts))
    most = wrong.argmax(axis=1)
    rows: list[Sequence[object]] = []
    order = np.argsort(np.where(totals > 0, recall, 2.0), kind="stable")
    for label in order[:_MAX_CLASSES]:
        num_wrong = wrong[label, most[label]]
        taken = f"{names[most[label]]} ({num_wrong:,})" if num_wrong else MISSING
        bar = _bar(float(recall[label])) if totals[label] else MISSING
        right = percent(float(precision[label]))
        rows.append((names[label], int(totals[label]), bar, right, taken))
    header = ("class", "images", "recall", "precision", "taken for (images)")
    whole = Table("Accuracy of each class, the least recall first", header, rows)
    if len(rows) <= _OPEN_CLASSES:
        return {"classes": whole, "all_classes": None, "all_classes_title": ""}
    title = f"All {len(names):,} classes"
    if len(rows) < len(names):
        title = f"{len(rows):,} of {len(names):,} classes, those of the least recall"
    caption = f"The {_OPEN_CLASSES} classes of the least recall"
    return {
        "classes": Table(caption, header, rows[:_OPEN_CLASSES]),
        "all_classes": whole,
        "all_classes_title": title,
    }


def _two_classes(predictions: Predictions, names: Sequence[str]) -> dict[str, Any]:
    """Returns ROC-AUC and table of thresholds of two classes; else None for both."""
    classes, probabilities = predictions.top_classes, predictions.top_probabilities
    two = None
    if len(names) == 2 == classes.shape[1]:
        two = two_classes(predictions.labels, classes, probabilities)
    if two is None:
        return {"roc_auc": None, "thresholds": None}
    caption = f"Images taken for {names[two.positive]} from a probability on"
    header = ("probability", "recall", "precision", "false positive rate")
    rows = [(f"{row.threshold:.2f}", *map(percent, row[1:])) for row in two.thresholds]
    return {"roc_auc": two.roc_auc, "thresholds": Table(caption, header, rows)}


def _bar(fraction: float) -> Markup:
    bar = Markup('<span class="bar" style="--length: {:.1f}%"></span>{}')
    return bar.format(100 * fraction, percent(fraction))


def _matrix_table(
    counts: Counts, names: Sequence[str], pairs: Sequence[Sequence[Any]]
) -> Table | None:
    """Returns the confusion matrix; of many classes those that are confused most."""
    caption = "Images by class (rows) and predicted class (columns)"
    shown = list(range(len(names)))
    if len(names) > _MAX_MATRIX:
        confused = dict.fromkeys(label for pair in pairs for label in pair[:2])
        shown = sorted(list(confused)[:_MAX_OF_MANY])
        caption += f"; {len(shown)} of {len(names):,} classes, those confused most"
    if not shown:
        return None
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    errors = shares - np.diag(np.diagonal(shares))
    largest = max(float(errors.max()), 1e-9)
    cell = Markup('<span style="--shade: {:.0f}%; --cell: {}">{:,}</span>')

    def shaded(row: int, column: int) -> Markup:
        is_right = row == column
        shade = shares[row, column] / (1 if is_right else largest)
        color = charts.color(0 if is_right else 1)
        return cell.format(100 * _MAX_SHADE * shade, color, counts[row, column])

    header = [Markup("<span>{}</span>").format(names[column]) for column in shown]
    rows = [(names[row], *(shaded(row, column) for column in shown)) for row in shown]
    return Table(caption, ("class", *header), rows, "matrix")


class Reliability(NamedTuple):
    """The accuracy of predictions in bins of equal width of their confidence."""

    counts: Counts  # Predictions in each bin, `[bins]`.
    confidence: npt.NDArray[np.float64]  # Their mean, `[bins]`; 0 in an empty one.
    accuracy: npt.NDArray[np.float64]  # The fraction that is right, `[bins]`.
    error: float  # The mean distance of these two over predictions (ECE), 0 to 1.


def reliability(
    confidence: npt.NDArray[np.floating],
    is_right: npt.NDArray[np.bool_],
    num_bins: int = NUM_BINS,
) -> Reliability:
    """Returns the reliability of predictions.

    Bin m of M, from 1, has the confidences in ((m - 1) / M, m / M]. Those that aren't
    finite are left out.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    arXiv:1706.04599, section 2, equations 2 and 3.
    """
    is_finite = np.isfinite(confidence)
    probability = np.asarray(confidence[is_finite], np.float64)
    right = np.asarray(is_right[is_finite], np.float64)
    # Rounding may give a little more than 1.
    last = num_bins - 1
    bins = np.clip(np.ceil(probability * num_bins).astype(np.int64) - 1, 0, last)
    counts = np.bincount(bins, minlength=num_bins)
    filled = np.maximum(counts, 1)
    mean = np.bincount(bins, probability, num_bins) / filled
    accuracy = np.bincount(bins, right, num_bins) / filled
    total = max(len(probability), 1)
    error = float(np.sum(counts / total * np.abs(accuracy - mean)))
    return Reliability(counts, mean, accuracy, error)


def _calibration_figure(predictions: Predictions) -> Figure:
    bins = reliability(predictions.top_probabilities[:, 0], predictions.is_right)
    num_bins = len(bins.counts)
    rows = [
        {
            "low": 100 * number / num_bins,
            "high": 100 * (number + 1) / num_bins,
            "confidence": 100 * float(bins.confidence[number]),
            "accuracy": 100 * float(bins.accuracy[number]),
            "count": int(bins.counts[number]),
        }
        for number in np.flatnonzero(bins.counts).tolist()
    ]
    cells = [
        (
            f"{row['low']:.1f} to {row['high']:.1f} %",
            row["count"],
            f"{row['confidence']:.2f} %",
            f"{row['accuracy']:.2f} %",
        )
        for row in rows
    ]
    header = ("confidence", "images", "mean confidence", "accuracy")
    error = percent(bins.error)
    return Figure(
        "Calibration",
        f"Expected calibration error (ECE) {error}, in {num_bins} bins. Below the"
        " dashed line, the network is too certain.",
        {"kind": "reliability", "rows": rows},
        f"Reliability diagram: accuracy by confidence, with an ECE of {error}.",
        Table("Accuracy by confidence", header, cells),
    )


def _label_text(label: npt.NDArray[np.integer], names: Sequence[str]) -> str:
    if label.ndim == 0:
        return names[int(label)]
    return ", ".join(names[k] for k in np.flatnonzero(label).tolist()) or "no label"


def _wrong_images(
    predictions: Predictions, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    row_of = {int(example): row for row, example in enumerate(predictions.examples)}
    for image in predictions.wrong_images:
        row = row_of.get(image.example)
        if row is None:
            continue
        guesses = [names[guess] for guess in predictions.top_classes[row]]
        probabilities = map(float, predictions.top_probabilities[row])
        yield {
            "image": image,
            "data": base64.b64encode(image.jpeg).decode("ascii"),
            "label": _label_text(predictions.labels[row], names),
            "guesses": list(zip(guesses, probabilities, strict=True))[:_SHOWN_GUESSES],
        }
