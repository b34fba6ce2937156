"""How far a network's confidence is from its accuracy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_BINS = 15  # As in the source.


@dataclass(frozen=True)
class Reliability:
    """The accuracy of predictions in bins of equal width of their confidence.

    Attributes:
        counts: The number of predictions in each bin, int64 `[bins]`.
        confidence: Their mean confidence, `[bins]`; 0 in an empty bin.
        accuracy: The fraction of them that is right, `[bins]`; 0 in an empty bin.
        error: The expected calibration error (ECE), from 0 to 1: the mean over all
            predictions of the distance between confidence and accuracy of their bin.
    """

    counts: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]
    error: float


def reliability(
    confidence: npt.NDArray[np.floating],
    is_right: npt.NDArray[np.bool_],
    num_bins: int = NUM_BINS,
) -> Reliability:
    """Returns the reliability of predictions.

    Bin m of M, from 1, has the confidences in ((m - 1) / M, m / M].

    Args:
        confidence: The probability of each predicted class, `[n]`; those that aren't
            finite are left out.
        is_right: Whether each prediction is right, `[n]`.
        num_bins: The number of bins.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    arXiv:1706.04599, section 2, equations 2 and 3.
    """
    is_finite = np.isfinite(confidence)
    probability = np.asarray(confidence[is_finite], np.float64)
    right = np.asarray(is_right[is_finite], np.float64)
    bins = np.clip(np.ceil(probability * num_bins).astype(np.int64) - 1, 0, None)
    bins = np.minimum(bins, num_bins - 1)  # Rounding may give a little more than 1.
    counts = np.bincount(bins, minlength=num_bins)
    filled = np.maximum(counts, 1)
    mean = np.bincount(bins, probability, num_bins) / filled
    accuracy = np.bincount(bins, right, num_bins) / filled
    total = max(len(probability), 1)
    error = float(np.sum(counts / total * np.abs(accuracy - mean)))
    return Reliability(counts, mean, accuracy, error)
