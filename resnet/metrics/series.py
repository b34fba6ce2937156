"""Series of numbers for charts: smoothed, thinned out, and the limits of their axis."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

OUTLIER_DISTANCE = 1.5  # As a multiple of the range of the 5th to 95th percentile.

Floats = npt.NDArray[np.float64]


def smoothed(values: Floats, window: int) -> Floats:
    """Returns centered moving means, `[n]`; at the ends of the values there are in it.

    Values that aren't finite are left out of the means. A mean of none is NaN.

    Args:
        values: `[n]`.
        window: The number of values in a mean, an odd number.
    """
    is_finite = np.isfinite(values)
    half = window // 2

    def sums(of: Floats) -> Floats:
        ends = np.concatenate([[0.0], np.cumsum(of)])
        last = np.minimum(np.arange(len(of)) + half + 1, len(of))
        first = np.maximum(np.arange(len(of)) - half, 0)
        return np.asarray(ends[last] - ends[first])

    counts = sums(is_finite.astype(np.float64))
    totals = sums(np.where(is_finite, values, 0.0))
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def thinned(values: Floats, limit: int) -> npt.NDArray[np.int64]:
    """Returns the indices of at most `limit` values that keep the shape of a line.

    They are the least and the greatest value of each of `limit` / 2 equal stretches,
    so that no spike is lost. Values that aren't finite are kept only if few.

    Args:
        values: `[n]`.
        limit: The number of indices, at least 2.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), limit // 2 + 1).astype(np.int64)
    kept: set[int] = set()
    for first, end in itertools.pairwise(edges):
        part = values[first:end]
        if np.isfinite(part).any():
            kept |= {first + int(np.nanargmin(part)), first + int(np.nanargmax(part))}
    return np.array(sorted(kept), np.int64)


def evenly(count: int, limit: int) -> list[int]:
    """Returns at most `limit` of `count` indices, evenly, the first and the last too.

    Args:
        count: The number of indices.
        limit: The number of indices to return, at least 2.
    """
    if count <= limit:
        return list(range(count))
    return sorted({round(index) for index in np.linspace(0, count - 1, limit)})


def robust_limits(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and upper limit of an axis, without regard to outliers.

    They are the least finite value and the greatest one that isn't an outlier, with a
    margin of 4 %. An outlier exceeds the 95th percentile by more than
    `OUTLIER_DISTANCE` times the range from the 5th to the 95th percentile.

    Args:
        values: The values to draw; NaN and infinities are ignored.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    p5, p95 = np.percentile(finite, [5, 95])
    low = finite.min()
    high = finite[finite <= p95 + OUTLIER_DISTANCE * (p95 - p5)].max()
    margin = 0.04 * (high - low) or 0.5
    return float(low - margin), float(high + margin)
