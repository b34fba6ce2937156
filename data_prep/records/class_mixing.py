"""How well the classes of a split are mixed over its shards, as numbers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Both must be passed for classes to count as not mixed. The excess alone would refuse
# small sets, whose statistic is far off now and then; the significance alone would
# refuse large ones for a deviation that is certain and harms nobody.
_MOST_EXCESS = 2.0  # Of the statistic over what random mixing gives on average.
_MOST_DEVIATIONS = 5.0  # Of a normal distribution, once in 3 million.


def class_mixing(
    shard_counts: npt.NDArray[np.int64], split_counts: npt.NDArray[np.int64]
) -> float:
    """Returns how far the classes of a shard are from those of its split.

    It is the chi-square statistic per degree of freedom,
    sum_c (n_c - n p_c)^2 / (n p_c) / (C - 1), over the C classes that the split has,
    with p_c their shares of the split, n_c their examples in the shard and n = sum n_c.
    About 1 where the shard is drawn at random, 0 where each class has its exact share,
    about n where there is one class only.

    Args:
        shard_counts: Examples of each class in the shard, `[num_classes]`.
        split_counts: Examples of each class in all shards, `[num_classes]`.

    Returns:
        The measure, rounded to 4 digits; 0 where the split has fewer than two classes.
    """
    present = split_counts > 0
    num_present = np.count_nonzero(present)
    if num_present < 2:
        return 0.0
    counts = shard_counts[present]
    expected = counts.sum() * (split_counts[present] / split_counts.sum())
    if not expected.any():
        return 0.0
    statistic = np.sum((counts - expected) ** 2 / expected)
    return round(float(statistic / (num_present - 1)), 4)


def is_mixed(
    measures: Sequence[float], num_records: Sequence[int], num_classes_present: int
) -> bool:
    """Returns whether the shards of a split could have been filled at random.

    The statistics of the shards are added up. Were records dealt out at random, that
    of a shard would be (1 - n / N) (C - 1) on average, and the sum near a chi-square
    distribution with the sum of these as its degrees of freedom. Classes are not mixed
    where the sum is both large (twice its mean) and significant (five standard
    deviations in the Wilson-Hilferty approximation).

    Shards of less than half the mean size are left out. There a single record of a rare
    class is a large deviation, and not one in millions. Of 150,000 small sets filled at
    random, with a few skewed classes, one was refused where the sizes of the shards
    were anything from 1 to 99, and none of as many where they were even.

    Args:
        measures: `class_mixing` of each shard.
        num_records: Of each shard, n.
        num_classes_present: Classes that the split has examples of, C.

    Source: Wilson and Hilferty 1931, "The distribution of chi-square".
    """
    if num_classes_present < 2:
        return True
    total = sum(num_records)
    statistic = 0.0
    expected = 0.0
    for measure, count in zip(measures, num_records, strict=True):
        if 2 * count * len(num_records) >= total:
            statistic += measure * (num_classes_present - 1)
            expected += (1 - count / total) * (num_classes_present - 1)
    if expected <= 0:  # One shard holds everything.
        return True
    excess = statistic / expected
    spread = 2 / (9 * expected)
    deviations = (excess ** (1 / 3) - (1 - spread)) / spread**0.5
    return excess <= _MOST_EXCESS or deviations <= _MOST_DEVIATIONS
