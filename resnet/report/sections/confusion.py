"""Which classes a network takes for which others."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Pair:
    """Images of a class that were taken for another class.

    Attributes:
        label: The class of the images.
        predicted: The class that they were taken for.
        count: The number of these images.
        share: The fraction of the images of the class that they are.
    """

    label: int
    predicted: int
    count: int
    share: float


def matrix(
    labels: npt.NDArray[np.integer],
    predicted: npt.NDArray[np.integer],
    num_classes: int,
) -> npt.NDArray[np.int64]:
    """Returns the number of images by class and predicted class, `[classes, classes]`.

    Args:
        labels: The class of each image, `[n]`, from 0.
        predicted: The class that the network predicts for it, `[n]`.
        num_classes: The number of classes.
    """
    cells = labels.astype(np.int64) * num_classes + predicted
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def accuracies(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Returns the fraction of each class that is right; NaN for one without images.

    Args:
        counts: The confusion matrix, `[classes, classes]`.
    """
    totals = counts.sum(axis=1)
    right = np.diagonal(counts)
    return np.where(totals > 0, right / np.maximum(totals, 1), np.nan)


def most_confused(counts: npt.NDArray[np.int64], limit: int) -> list[Pair]:
    """Returns the most frequent confusions of two classes, the most frequent first.

    Args:
        counts: The confusion matrix, `[classes, classes]`.
        limit: The largest number of pairs.
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:limit]
    totals = counts.sum(axis=1)
    pairs = [divmod(int(cell), len(counts)) for cell in order]
    return [
        Pair(label, other, count, count / int(totals[label]))
        for label, other in pairs
        if (count := int(wrong[label, other]))
    ]
