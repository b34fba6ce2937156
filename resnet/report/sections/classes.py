"""The stored predictions of a run: by class, confusions, wrong images, calibration."""

import base64
from collections.abc import Sequence

import numpy as np

from resnet.evaluation.prediction_file import Predictions
from resnet.report import markup
from resnet.report.charts import vega_lite
from resnet.report.charts.figures import Figures
from resnet.report.markup import Html, tag
from resnet.report.sections import calibration, confusion
from resnet.report.words import MISSING, percent

_MAX_MATRIX = 30  # Classes of a confusion matrix that is shown whole.
_MAX_OF_MANY = 20  # Classes of one that is not.
_MAX_PAIRS = 20
_MAX_CLASSES = 1000  # Rows of the table of classes.
_OPEN_CLASSES = 30  # More are folded.
_MAX_SHADE = 0.45  # Darkest cell color on which text is readable.
_SHOWN_GUESSES = 3  # Below a wrong image.


def section(predictions: Predictions, figures: Figures) -> Html:
    """Returns the sections of the predictions of one evaluation."""
    names = class_names(predictions)
    counts = confusion.matrix(
        predictions.labels, predictions.top_classes[:, 0], len(names)
    )
    accuracy = float(np.mean(predictions.is_right)) if len(predictions.labels) else None
    pairs = confusion.most_confused(counts, _MAX_PAIRS)
    views = "" if predictions.views == "center" else f", views {predictions.views}"
    return markup.join(
        [
            tag(
                "p",
                f"Evaluation of {predictions.evaluated}{views}: top-1"
                f" {percent(accuracy)} on {len(predictions.labels):,} validation"
                " images.",
            ),
            tag("h3", "Accuracy of each class"),
            _by_class(counts, names, pairs),
            tag("h3", "Most confused pairs"),
            _pairs(pairs, names),
            tag("h3", "Confusion matrix"),
            _matrix(counts, names, pairs),
            _calibration(predictions, figures),
            tag("h3", "Wrong predictions"),
            _wrong_images(predictions, names),
        ]
    )


def class_names(predictions: Predictions) -> list[str]:
    """Returns what the page calls each class: its name, with a description if any."""
    names = predictions.class_names
    described = predictions.class_descriptions
    if not described:
        return list(names)
    return [
        f"{text.split(',')[0]} ({name})"
        for name, text in zip(names, described, strict=True)
    ]


def _by_class(
    counts: np.ndarray, names: Sequence[str], pairs: Sequence[confusion.Pair]
) -> Html:
    accuracies = confusion.accuracies(counts)
    totals = counts.sum(axis=1)
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    most = wrong.argmax(axis=1)
    order = np.argsort(np.where(totals > 0, accuracies, 2.0), kind="stable")
    rows = [
        (
            names[label],
            f"{totals[label]:,}",
            _bar(accuracies[label]) if totals[label] else MISSING,
            (
                f"{names[most[label]]} ({wrong[label, most[label]]:,})"
                if wrong[label, most[label]]
                else MISSING
            ),
        )
        for label in order[:_MAX_CLASSES]
    ]
    header = ("class", "images", "top-1", "most often taken for (images)")
    caption = "Accuracy of each class, the least first"
    if len(rows) <= _OPEN_CLASSES:
        return markup.table(caption, header, rows)
    few = markup.table(
        f"The {_OPEN_CLASSES} classes of the least accuracy",
        header,
        rows[:_OPEN_CLASSES],
    )
    whole = markup.table(caption, header, rows)
    title = f"All {len(names):,} classes"
    if len(rows) < len(names):
        title = f"{len(rows):,} of {len(names):,} classes, those of the least accuracy"
    return markup.join([few, markup.folded(title, whole)])


def _bar(fraction: float) -> Html:
    """Returns a percentage with a bar of its length."""
    bar = tag("span", class_="bar", style=f"--length: {100 * fraction:.1f}%")
    return markup.join([bar, percent(float(fraction))])


def _pairs(pairs: Sequence[confusion.Pair], names: Sequence[str]) -> Html:
    if not pairs:
        return tag("p", "No prediction is wrong.")
    return markup.table(
        "Images of a class that were taken for another one",
        ("class", "taken for", "images", "of the class"),
        [
            (
                names[one.label],
                names[one.predicted],
                f"{one.count:,}",
                percent(one.share),
            )
            for one in pairs
        ],
    )


def _matrix(
    counts: np.ndarray, names: Sequence[str], pairs: Sequence[confusion.Pair]
) -> Html:
    """Returns the confusion matrix; of many classes those that are confused most."""
    caption = "Images by class (rows) and predicted class (columns)"
    shown = list(range(len(names)))
    if len(names) > _MAX_MATRIX:
        confused = dict.fromkeys(
            label for one in pairs for label in (one.label, one.predicted)
        )
        shown = sorted(list(confused)[:_MAX_OF_MANY])
        caption += f"; {len(shown)} of {len(names):,} classes, those confused most"
    if not shown:
        return tag("p", "No prediction is wrong.")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    errors = shares.copy()
    np.fill_diagonal(errors, 0)
    largest = max(float(errors.max()), 1e-9)
    rows = [
        (
            names[row],
            *(_cell(counts, shares, largest, row, column) for column in shown),
        )
        for row in shown
    ]
    header = ("class", *(tag("span", names[column]) for column in shown))
    return markup.table(caption, header, rows, class_="matrix")


def _cell(
    counts: np.ndarray, shares: np.ndarray, largest: float, row: int, column: int
) -> Html:
    share = float(shares[row, column])
    is_right = row == column
    shade = share if is_right else share / largest
    color = vega_lite.color(0 if is_right else 1)
    style = f"--shade: {100 * _MAX_SHADE * shade:.0f}%; --cell: {color}"
    return tag("span", f"{counts[row, column]:,}", style=style)


def _calibration(predictions: Predictions, figures: Figures) -> Html:
    confidence = predictions.top_probabilities[:, 0]
    found = calibration.reliability(confidence, predictions.is_right)
    num_bins = len(found.counts)
    rows = [
        {
            "low": 100 * number / num_bins,
            "high": 100 * (number + 1) / num_bins,
            "confidence": 100 * float(found.confidence[number]),
            "accuracy": 100 * float(found.accuracy[number]),
            "count": int(found.counts[number]),
        }
        for number in range(num_bins)
        if found.counts[number]
    ]
    table = markup.table(
        "Accuracy by confidence",
        ("confidence", "images", "mean confidence", "accuracy"),
        [
            (
                f"{one['low']:.1f} to {one['high']:.1f} %",
                f"{one['count']:,}",
                f"{one['confidence']:.2f} %",
                f"{one['accuracy']:.2f} %",
            )
            for one in rows
        ],
    )
    figure = figures.add(
        "Calibration",
        f"Expected calibration error (ECE) {percent(found.error)}, in"
        f" {num_bins} bins. On the dashed line, the confidence is the accuracy; below"
        " it, the network is too certain.",
        vega_lite.bars(rows),
        "Reliability diagram: accuracy of the predictions by their confidence, with an"
        f" expected calibration error of {percent(found.error)}.",
        table,
    )
    return tag("div", figure, class_="narrow")


def _wrong_images(predictions: Predictions, names: Sequence[str]) -> Html:
    if not predictions.wrong_images:
        is_perfect = bool(np.all(predictions.is_right))
        text = "No prediction is wrong." if is_perfect else "No images are stored."
        return tag("p", text)
    place = {int(example): row for row, example in enumerate(predictions.examples)}
    items = []
    for image in predictions.wrong_images:
        row = place.get(image.example)
        if row is None:
            continue
        label = names[predictions.labels[row]]
        guesses = list(
            zip(
                predictions.top_classes[row],
                predictions.top_probabilities[row],
                strict=True,
            )
        )[:_SHOWN_GUESSES]
        data = base64.b64encode(image.jpeg).decode("ascii")
        alternative = (
            f"image {image.example:,}: {label}, taken for {names[guesses[0][0]]}"
        )
        picture = tag("img", alt=alternative, src=f"data:image/jpeg;base64,{data}")
        lines = [
            tag("li", f"{names[guess]} {percent(float(probability))}")
            for guess, probability in guesses
        ]
        caption = tag(
            "figcaption",
            tag("b", label),
            tag("ol", *lines),
            tag("small", image.name or f"example {image.example:,}"),
        )
        items.append(tag("figure", picture, caption))
    about = (
        "The wrong predictions of which the network is most certain. The class is in"
        " bold, with the most probable classes below."
    )
    return markup.join([tag("p", about), tag("div", *items, class_="images")])
