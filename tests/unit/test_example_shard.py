import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data import input_pipeline
from resnet.data.record_files import ExampleShard, RecordFiles, shard_of_rank


def records_of(shard_sizes: list[int]) -> RecordFiles:
    """A split whose files aren't there: nothing is read."""
    num_examples = sum(shard_sizes)
    numbers = np.arange(num_examples, dtype=np.int64)
    return RecordFiles(
        paths=tuple(f"shard-{index}" for index in range(len(shard_sizes))),
        file_of_example=np.repeat(np.arange(len(shard_sizes)), shard_sizes),
        offset_of_example=10 * numbers,
        number_of_example=numbers,
        first_label=1,
        class_names=("a",),
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


def test_ranks_that_see_all_shards_share_them_all():
    shards = shards_of([4, 3, 4], [(0, 1, 2)] * 3)
    for rank, shard in enumerate(shards):
        assert (shard.rank, shard.num_ranks) == (rank, 3)
        assert shard.records.number_of_example.tolist() == list(range(11))
        assert shard.num_examples_of_all == 11
    # Eleven examples on three ranks: none has two more than another.
    ranges = [(shard.first_example, shard.end_example) for shard in shards]
    assert ranges == [(0, 3), (3, 7), (7, 11)]


def test_ranks_that_see_the_same_shards_share_those():
    # Ranks 0 and 2 are on one node, 1 and 3 on another.
    shards = shards_of([4, 3, 5, 2], [(0, 3), (1, 2), (0, 3), (1, 2)])
    assert [(shard.rank, shard.num_ranks) for shard in shards] == [
        (0, 2),
        (0, 2),
        (1, 2),
        (1, 2),
    ]
    for rank in (0, 2):
        numbers = shards[rank].records.number_of_example.tolist()
        assert numbers == [0, 1, 2, 3, 12, 13]
    for rank in (1, 3):
        numbers = shards[rank].records.number_of_example.tolist()
        assert numbers == list(range(4, 12))
    assert {shard.num_examples_of_all for shard in shards} == {14}


def test_a_rank_that_sees_no_shard_has_nothing_to_do():
    shard = shards_of([4, 3], [(0, 1), ()])[1]
    assert shard.records.num_examples == 0
    assert shard.first_example == shard.end_example == 0


@settings(deadline=None)
@given(placement=placements())
def test_all_ranks_together_evaluate_each_example_once(placement):
    evaluated: list[int] = []
    for shard in shards_of(*placement):
        numbers = shard.records.number_of_example
        evaluated += numbers[shard.first_example : shard.end_example].tolist()
        assert shard.num_examples_of_all == sum(placement[0])
    assert sorted(evaluated) == list(range(sum(placement[0])))


@settings(deadline=None)
@given(placement=placements(), local_batch_size=st.integers(1, 5))
def test_the_ranks_of_a_node_train_on_each_of_its_examples_once_an_epoch(
    placement, local_batch_size
):
    shards = shards_of(*placement)
    for node in set(placement[1]):
        ranks = [
            shard
            for shard, one in zip(shards, placement[1], strict=True)
            if one == node
        ]
        num_examples = ranks[0].records.num_examples
        if not num_examples:
            continue
        num_epochs = 2
        num_steps = -(-num_epochs * num_examples // (local_batch_size * len(ranks)))
        found = np.concatenate(
            [
                input_pipeline.examples_of_micro_batch(
                    step,
                    7,
                    shard.rank,
                    shard.num_ranks,
                    local_batch_size,
                    shard.records.num_examples,
                )
                for step in range(num_steps)
                for shard in ranks
            ]
        )
        for epoch in range(num_epochs):
            one = found[epoch * num_examples : (epoch + 1) * num_examples]
            assert sorted(one) == list(range(num_examples))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 64, 512])
def test_evaluation_is_divided_evenly(num_ranks):
    shards = shards_of([50, 0, 30, 37], [(0, 1, 2, 3)] * num_ranks)
    sizes = [shard.end_example - shard.first_example for shard in shards]
    assert sum(sizes) == 117
    assert max(sizes) - min(sizes) <= 1
