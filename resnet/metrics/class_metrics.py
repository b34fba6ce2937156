"""How well single classes are recognized: recall, precision, F1, and ROC curves of two.

Of several labels an image: the average precision and the ROC-AUC of each. All are those
of scikit-learn's metrics with the classes that have images as `labels`.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Fractions = npt.NDArray[np.float64]

_IMBALANCE = 1.5  # Of the most to the fewest images, from which people are told more.
THRESHOLDS = (0.01, 0.05, *(tenth / 10 for tenth in range(1, 10)), 0.95, 0.99)


class ByClass(NamedTuple):
    """The numbers of images of an evaluation by class, `[num_classes]` each."""

    right: Counts  # Images of the class that are predicted as such.
    actual: Counts  # Images of the class.
    predicted: Counts  # Images whose most probable class it is.

    @classmethod
    def of_matrix(cls, counts: Counts) -> "ByClass":
        """Returns the numbers of a confusion matrix, by class and predicted class."""
        return cls(np.diagonal(counts), counts.sum(axis=1), counts.sum(axis=0))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what files tell of each class, by its name there."""
        return {
            "images": self.actual,
            "recall": self.recall,
            "precision": self.precision,
            "f1": self.f1,
        }

    @property
    def recall(self) -> Fractions:
        """The fraction of the class' images that are right; NaN without any."""
        return _fractions(self.right, self.actual)

    @property
    def precision(self) -> Fractions:
        """The fraction of predictions that are right; NaN for a class without any."""
        return _fractions(self.right, self.predicted)

    @property
    def f1(self) -> Fractions:
        """The harmonic mean of both; 0 if none is right, NaN without images."""
        f1 = _fractions(2 * self.right, self.actual + self.predicted)
        return np.where(self.actual > 0, f1, np.nan)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have images."""
        return float(np.mean(self.recall[self.actual > 0]))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have images."""
        return float(np.mean(self.f1[self.actual > 0]))

    @property
    def is_imbalanced(self) -> bool:
        """Whether the classes that have images differ much in their number."""
        actual = self.actual[self.actual > 0]
        return bool(actual.max() > _IMBALANCE * actual.min())


class ByLabel(NamedTuple):
    """How well each of several labels an image is recognized, `[num_labels]` each."""

    positive: Counts  # Images that have it.
    average_precision: Fractions  # NaN without such images.
    roc_auc: Fractions  # NaN without such images, or without others.

    @classmethod
    def of_scores(
        cls, scores: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]
    ) -> "ByLabel":
        """Returns the metrics of scores and labels of images, `[n, num_labels]`."""
        num_positive = labels.sum(axis=0, dtype=np.int64)
        precision, auc = np.full((2, len(num_positive)), np.nan)
        for label, count in enumerate(num_positive.tolist()):
            is_positive = labels[:, label] > 0
            if count:
                precision[label] = average_precision(scores[:, label], is_positive)
            if 0 < count < len(labels):
                auc[label] = roc_auc(scores[:, label], is_positive)
        return cls(num_positive, precision, auc)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what files tell of each label, by its name there."""
        return {
            "images": self.positive,
            "average_precision": self.average_precision,
            "roc_auc": self.roc_auc,
        }

    @property
    def mean_average_precision(self) -> float:
        """The mean over the labels that images have (macro); 0 without any."""
        return _mean(self.average_precision)

    @property
    def mean_roc_auc(self) -> float:
        """The mean over the labels that some images have, not all; 0 without any."""
        return _mean(self.roc_auc)


def _mean(values: Fractions) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _fractions(counts: Counts, totals: Counts) -> Fractions:
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)


class Threshold(NamedTuple):
    """What follows from calling images positive from a probability on."""

    threshold: float
    recall: float  # Of the positive images, also the true positive rate.
    precision: float  # NaN if no image is called positive.
    false_positive_rate: float


class TwoClasses(NamedTuple):
    """The decision between two classes; the rarer one in the images is positive."""

    positive: int  # Its label, which is 1 if both have as many images.
    roc_auc: float
    thresholds: tuple[Threshold, ...]


def two_classes(
    labels: npt.NDArray[np.integer],
    top_classes: npt.NDArray[np.integer],
    top_probabilities: npt.NDArray[np.floating],
) -> TwoClasses | None:
    """Returns the decision between classes 0 and 1; None if only one has images.

    The arguments are those of `Predictions`: `[n]`, `[n, 2]` and `[n, 2]`.
    """
    sizes = np.bincount(labels, minlength=2)
    if not sizes.all():
        return None
    positive = int(sizes[1] <= sizes[0])
    is_first = top_classes[:, 0] == positive
    first, second = np.asarray(top_probabilities, np.float64).T
    probability = np.where(is_first, first, second)
    is_positive = labels == positive
    with np.errstate(divide="ignore"):  # Probabilities near 1 are equal in float32.
        scores = np.log(probability) - np.log(np.where(is_first, second, first))
    return TwoClasses(
        positive,
        roc_auc(scores, is_positive),
        tuple(_at(threshold, probability, is_positive) for threshold in THRESHOLDS),
    )


def roc_auc(
    scores: npt.NDArray[np.floating], is_positive: npt.NDArray[np.bool_]
) -> float:
    """Returns the area under the ROC curve, of scores `[n]` of both kinds of images.

    It is the probability that a positive image has a higher score than a negative one,
    where equal scores count as one half.

    Source: Hanley and McNeil 1982, "The Meaning and Use of the Area under a Receiver
    Operating Characteristic (ROC) Curve".
    """
    _, places, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[places]
    num_positive = int(np.count_nonzero(is_positive))
    num_negative = len(scores) - num_positive
    lowest = num_positive * (num_positive + 1) / 2
    return float((ranks[is_positive].sum() - lowest) / (num_positive * num_negative))


def average_precision(
    scores: npt.NDArray[np.floating], is_positive: npt.NDArray[np.bool_]
) -> float:
    """Returns the average precision of scores `[n]` of images, one at least positive.

    It is the sum over thresholds, which are the scores, of the precision times the
    growth of the recall from the next higher one; equal scores have one threshold.

    Source: Zhu 2004, "Recall, precision and average precision", without interpolation.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    num_right = np.cumsum(is_positive[order])[ends]
    precision = num_right / (ends + 1)
    return float(np.sum(precision * np.diff(num_right, prepend=0)) / num_right[-1])


def _at(threshold: float, probability: Fractions, is_positive: np.ndarray) -> Threshold:
    is_called = probability >= threshold
    num_right = int(np.count_nonzero(is_called & is_positive))
    num_called = int(np.count_nonzero(is_called))
    num_positive = int(np.count_nonzero(is_positive))
    return Threshold(
        threshold,
        num_right / num_positive,
        num_right / num_called if num_called else float("nan"),
        (num_called - num_right) / (len(is_positive) - num_positive),
    )
