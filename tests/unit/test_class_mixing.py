import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records import class_mixing, manifest
from resnet.base.errors import UserError


def measures_of(shard_counts):
    counts = np.array(shard_counts, np.int64)
    return [class_mixing.class_mixing(row, counts.sum(axis=0)) for row in counts]


def are_mixed(shard_counts):
    counts = np.array(shard_counts, np.int64)
    num_present = int(np.count_nonzero(counts.sum(axis=0)))
    num_records = counts.sum(axis=1).tolist()
    return class_mixing.is_mixed(measures_of(counts), num_records, num_present)


def deal(class_counts, sizes, seed):
    """Returns the class counts of shards that are filled at random."""
    labels = np.repeat(np.arange(len(class_counts)), class_counts)
    np.random.default_rng(seed).shuffle(labels)
    shards = np.split(labels, np.cumsum(sizes)[:-1])
    return [np.bincount(shard, minlength=len(class_counts)) for shard in shards]


def test_the_measure_is_that_worked_out_by_hand():
    # Expected 2 and 1 of a shard of 3: (3-2)^2/2 + (0-1)^2/1 = 1.5; of 6, 4 and 2:
    # (3-4)^2/4 + (3-2)^2/2 = 0.75; one degree of freedom.
    assert measures_of([[3, 0], [3, 3]]) == [1.5, 0.75]
    # Three classes: two degrees of freedom, 4 digits. (2-1)^2 + (0-1)^2 + (1-1)^2 = 2.
    assert measures_of([[2, 0, 1], [0, 2, 1]]) == [1.0, 1.0]
    assert measures_of([[1, 2, 4], [4, 2, 1]]) == [round(3.6 / 2 / 2, 4)] * 2
    # Exact shares, one class alone, and a class that the split lacks.
    assert measures_of([[2, 4], [1, 2]]) == [0.0, 0.0]
    assert measures_of([[8, 0, 0], [0, 8, 0], [0, 0, 8]]) == [8.0, 8.0, 8.0]
    assert measures_of([[3, 0, 0], [3, 0, 3]]) == measures_of([[3, 0], [3, 3]])
    assert measures_of([[3, 0], [2, 0]]) == [0.0, 0.0]
    assert measures_of([[0, 0], [2, 3]]) == [0.0, 0.0]


@pytest.mark.parametrize(
    "shard_counts",
    [
        np.eye(3) * 8,
        np.diag([10, 1000, 10, 10, 300]),
        np.repeat(np.eye(10), 3, axis=0) * 4,  # Three shards a class.
        np.kron(np.eye(8), np.ones((1, 2))) * 10,  # Two classes a shard.
        [[1252, 0], [0, 1252], [0, 371]],
    ],
)
def test_sorted_classes_are_refused(shard_counts):
    assert not are_mixed(shard_counts)


def test_little_can_be_said_of_very_few_records():
    assert are_mixed([[1, 0], [0, 1]])
    assert are_mixed([[100, 100]])
    assert are_mixed([[100], [100]])


def test_what_is_significant_but_small_is_accepted():
    # 1.5 times what is expected of 9,999 degrees of freedom, 35 deviations.
    assert class_mixing.is_mixed([1.5] * 101, [1000] * 101, 101)
    assert not class_mixing.is_mixed([2.5] * 101, [1000] * 101, 101)


class_counts = st.lists(st.integers(0, 60), min_size=1, max_size=12)


# A false alarm is as rare as five standard deviations, about once in a million sets of
# even shards and once in 100,000 of any shards. These are always the same sets.
@settings(derandomize=True, max_examples=60)
@given(class_counts, st.integers(1, 12), st.data(), st.integers(0, 2**32))
def test_shards_filled_at_random_are_accepted(class_counts, num_shards, data, seed):
    """Of even sizes, with a smaller last one, and of any sizes."""
    total = sum(class_counts)
    size, num_larger = divmod(total, num_shards)
    even = [size + (index < num_larger) for index in range(num_shards)]
    assert are_mixed(deal(class_counts, even, seed))
    size = -(-total // num_shards)
    starts = [min(index * size, total) for index in range(num_shards + 1)]
    assert are_mixed(deal(class_counts, np.diff(starts), seed))
    ends = st.lists(st.integers(0, total), max_size=8)
    bounds = [0, *sorted(data.draw(ends)), total]
    assert are_mixed(deal(class_counts, np.diff(bounds), seed))


def split_of_classes(shard_counts):
    """Returns a split whose shards have so many examples of each class."""
    counts = np.array(shard_counts)
    shards = tuple(
        manifest.Shard(
            f"train/{index}",
            int(row.sum()),
            100,
            "a" * 64,
            class_mixing.class_mixing(row, counts.sum(axis=0)),
        )
        for index, row in enumerate(counts)
    )
    label_counts = tuple(counts.sum(axis=0).tolist())
    return manifest.Split("train", shards, label_counts, "o.npy", "c" * 64)


def test_a_split_is_refused_if_its_shards_are_not_mixed():
    class_mixing.check_mixing(split_of_classes([[3, 2, 3, 0], [2, 3, 3, 0]]))
    split = split_of_classes([[8, 0, 0], [0, 8, 0], [0, 0, 8]])
    with pytest.raises(UserError, match=r"train are .* is 8\.0 on average and 8\.0 in"):
        class_mixing.check_mixing(split)
