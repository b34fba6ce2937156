"""Where the examples of a split lie, and which of them a rank reads."""

import dataclasses
import pathlib

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records import manifest, record_index
from resnet.data import input_pipeline, record_files
from resnet.data.record_files import ExampleShard, RecordFiles, shard_of_rank
from tests.unit.read_batches import open_train


def test_an_index_may_lie_in_another_folder_than_the_records(numbered_set):
    loaded = manifest.load(str(numbered_set), "train")
    elsewhere = dataclasses.replace(loaded, records_dir=pathlib.Path("/records"))
    records = record_files.open_split(elsewhere, "train")
    assert records.paths[2] == "/records/train/train-00002-of-00003"
    assert records.file_of_example.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert records.index["offset"][[0, 5, 9]].tolist() == [0, 0, 0]


def test_labels_become_those_of_the_classes_of_a_run_by_their_names(numbered_set):
    record_set = manifest.load(str(numbered_set), "train")
    of_set = record_files.open_split(record_set, "train").labels
    for names in ("abcd", "dxbac"):
        labels = record_files.open_split(record_set, "train", tuple(names)).labels
        assert labels.dtype == np.int32
        assert [names[label] for label in labels] == ["abcd"[i] for i in of_set]


def test_some_of_the_files_hold_a_part_that_keeps_its_numbers(numbered_set):
    whole = open_train(numbered_set)
    part = whole.only_files([2, 0])
    kept = [0, 1, 2, 3, 4, 9, 10, 11, 12]
    assert part.num_examples == 9
    assert part.number_of_example.tolist() == kept
    assert part.file_of_example.tolist() == [0] * 5 + [2] * 4
    assert part.index.tolist() == whole.index[kept].tolist()
    assert part.paths == whole.paths
    assert whole.only_files([]).num_examples == 0


def records_of(shard_sizes: list[int]) -> RecordFiles:
    """A split whose files aren't there: nothing is read."""
    num_examples = sum(shard_sizes)
    numbers = np.arange(num_examples, dtype=np.int64)
    index = np.zeros(num_examples, record_index.record_index_type())
    index["offset"] = 10 * numbers
    return RecordFiles(
        paths=tuple(f"shard-{index}" for index in range(len(shard_sizes))),
        file_of_example=np.repeat(np.arange(len(shard_sizes)), shard_sizes),
        index=index,
        number_of_example=numbers,
        first_label=1,
        class_names=("a",),
        labels=index["class_index"],
    )


@st.composite
def placements(draw) -> tuple[list[int], list[tuple[int, ...]]]:
    """Sizes of the shards, and which of them each rank sees: those of its node.

    Each shard is on one node, and the ranks of a node needn't be neighbours.
    """
    shard_sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    num_ranks = draw(st.integers(1, 10))
    node_of_rank = draw(
        st.lists(st.integers(0, 3), min_size=num_ranks, max_size=num_ranks)
    )
    nodes = sorted(set(node_of_rank))
    node_of_shard = [draw(st.sampled_from(nodes)) for _ in shard_sizes]
    shards_of_ranks = [
        tuple(index for index, holder in enumerate(node_of_shard) if holder == node)
        for node in node_of_rank
    ]
    return shard_sizes, shards_of_ranks


def shards_of(
    shard_sizes: list[int], shards_of_ranks: list[tuple[int, ...]]
) -> list[ExampleShard]:
    records = records_of(shard_sizes)
    return [
        shard_of_rank(records, shards_of_ranks, rank)
        for rank in range(len(shards_of_ranks))
    ]


@given(placement=placements())
@hypothesis.example(placement=([50, 0, 30, 37], [(0, 1, 2, 3)] * 512))
def test_all_ranks_together_evaluate_each_example_once(placement):
    evaluated: list[int] = []
    sizes: dict[tuple[int, ...], set[int]] = {}
    for shard, node in zip(shards_of(*placement), placement[1], strict=True):
        numbers = shard.records.number_of_example
        files = {int(name) for name in np.unique(shard.records.file_of_example)}
        assert files <= set(node)
        own = numbers[shard.first_example : shard.end_example].tolist()
        evaluated += own
        sizes.setdefault(node, set()).add(len(own))
        assert shard.num_examples_of_all == sum(placement[0])
    assert sorted(evaluated) == list(range(sum(placement[0])))
    for of_node in sizes.values():
        assert max(of_node) - min(of_node) <= 1


@given(placement=placements(), most=st.integers(1, 99))
def test_a_sample_is_evenly_spaced_and_evaluated_once(placement, most):
    evaluated: list[int] = []
    num_examples = sum(placement[0])
    hypothesis.assume(num_examples)
    for shard in shards_of(*placement):
        sample = shard.sample(most)
        numbers = sample.records.number_of_example
        evaluated += numbers[sample.first_example : sample.end_example].tolist()
    assert len(evaluated) == sample.num_examples_of_all <= most
    assert sorted(evaluated) == list(range(0, num_examples, -(-num_examples // most)))


@given(placement=placements(), local_batch_size=st.integers(1, 5))
def test_the_ranks_of_a_node_train_on_each_of_its_examples_once_an_epoch(
    placement, local_batch_size
):
    shards = shards_of(*placement)
    for node in set(placement[1]):
        pairs = zip(shards, placement[1], strict=True)
        of_node = [shard for shard, its_node in pairs if its_node == node]
        num_ranks, num_examples = len(of_node), of_node[0].records.num_examples
        assert [shard.rank for shard in of_node] == list(range(num_ranks))
        if not num_examples:
            continue
        num_steps = -(-2 * num_examples // (local_batch_size * num_ranks))
        read = np.concatenate(
            [
                input_pipeline.examples_of_micro_batch(
                    step, 7, rank, num_ranks, local_batch_size, num_examples
                )
                for step in range(num_steps)
                for rank in range(num_ranks)
            ]
        )
        for epoch in read[: 2 * num_examples].reshape(2, num_examples):
            assert sorted(epoch) == list(range(num_examples))
