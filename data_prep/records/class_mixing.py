"""The classes of a split's shards, and how well they are shuffled across them."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from data_prep.records import labels, record_index
from data_prep.records.labels import Labels
from data_prep.records.manifest import Shard, SkippedImage, Split
from resnet.base import commands
from resnet.base.errors import UserError

# A set counts as not mixed if both are exceeded: the ratio of small sets has a large
# variance, and deviations of large sets can be significant but harmless.
_MAX_RATIO = 2.0  # Statistic relative to its mean under random mixing.
_MAX_DEVIATIONS = 5.0  # Standard deviations; p = 3e-7 under random mixing.


def class_mixing(
    shard_counts: npt.NDArray[np.int64], split_counts: npt.NDArray[np.int64]
) -> float:
    """Returns chi-square per degree of freedom of a shard's class counts, to 4 digits.

    The statistic is sum_c (n_c - n p_c)^2 / (n p_c) / (C - 1), summed over the C
    classes that the split contains, with n_c the examples of class c in the shard,
    n = sum n_c, and p_c the fraction of class c in the split. It is about 1 for a
    random sample of the split, 0 for exact proportions or fewer than two classes, and
    about n for a single class. Both counts are `[num_classes]`.
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


@dataclasses.dataclass(frozen=True)
class ShardContent:
    """What a split needs to know of a record file."""

    path: str  # As in `Shard`, like `num_bytes` and `sha256`.
    num_bytes: int
    sha256: str
    offsets: Sequence[int]  # Byte offset of each record.
    labels: Labels  # Of each record.


def write_split(
    index_dir: str | os.PathLike[str],
    name: str,
    contents: Sequence[ShardContent],
    num_classes: int,
    skipped_images: tuple[SkippedImage, ...] = (),
) -> Split:
    """Writes the index file of a split, and returns the split for the manifest."""
    counts = [labels.counts(content.labels, num_classes) for content in contents]
    split_counts = np.sum(counts, axis=0)
    of_split = np.concatenate([content.labels for content in contents])
    shards = [
        Shard(
            content.path,
            len(content.offsets),
            content.num_bytes,
            content.sha256,
            class_mixing(shard_counts, split_counts) if of_split.ndim == 1 else 0.0,
        )
        for content, shard_counts in zip(contents, counts, strict=True)
    ]
    num_labels = num_classes if of_split.ndim > 1 else 0
    index = np.empty(len(of_split), record_index.record_index_type(num_labels))
    index["offset"] = np.concatenate([content.offsets for content in contents])
    record_index.set_labels(index, of_split)
    path, sha256 = record_index.write_index(index_dir, name, index)
    label_counts = tuple(split_counts.tolist())
    return Split(name, tuple(shards), label_counts, path, sha256, skipped_images)


def is_mixed(
    measures: Sequence[float], num_records: Sequence[int], num_classes_present: int
) -> bool:
    """Returns whether the `class_mixing` of shards is that of randomly filled ones.

    If the N records of the split are assigned at random, the expected statistic of a
    shard of n records is (1 - n / N) (C - 1), with C classes present, and the sum is
    approximately chi-square distributed with the sum of these expectations as its
    degrees of freedom. Shards of less than half the
    mean size are ignored: one record of a rare class is a large deviation in them.

    Source: Wilson and Hilferty 1931, "The distribution of chi-square" (deviations).
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
    ratio = statistic / expected
    spread = 2 / (9 * expected)
    deviations = (ratio ** (1 / 3) - (1 - spread)) / spread**0.5
    return ratio <= _MAX_RATIO or deviations <= _MAX_DEVIATIONS


def check_mixing(split: Split) -> None:
    """Raises UserError if the classes clearly aren't shuffled across the shards."""
    measures = [shard.class_mixing for shard in split.shards]
    num_present = sum(count > 0 for count in split.label_counts)
    if is_mixed(measures, [shard.num_records for shard in split.shards], num_present):
        return
    worst = max(split.shards, key=lambda shard: shard.class_mixing)
    raise UserError(
        f"the classes of split {split.name} are not shuffled across its"
        f" {len(split.shards):,} shards: chi-square per degree of freedom, about 1"
        f" after a random shuffle, is {sum(measures) / len(measures):,.1f} on average"
        f" and {worst.class_mixing:,.1f} in {worst.path}. Programs that read shard by"
        " shard lose accuracy on such a set: convert the images again with"
        f" {commands.command('imagenet-to-tfrecords')}, which shuffles them. With"
        " --shard_by=example, which shuffles single records, --require_mixed=False"
        " accepts the set."
    )
