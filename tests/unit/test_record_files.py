"""Where the examples of a split lie, and which of them a rank reads."""

import io
import pathlib

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.records import manifest
from resnet.base.errors import UserError
from resnet.data import input_pipeline, record_files
from resnet.data.record_files import ExampleShard, RecordFiles, shard_of_rank
from tests.unit.read_batches import open_train

CLASSES = ("ant", "bee", "cat")
SHARD_SIZES = (5, 4, 4)


def image(index: int) -> bytes:
    """Example i is of class i % 3 and has i + 1 rows."""
    file = io.BytesIO()
    Image.new("RGB", (8, index + 1), (index, 0, 0)).save(file, "JPEG")
    return file.getvalue()


IMAGES = [image(index) for index in range(13)]
LABELS = [index % 3 for index in range(13)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory, write_tiny_set) -> pathlib.Path:
    """The folder of a set; not to be changed."""
    folder = tmp_path_factory.mktemp("records")
    write_tiny_set(folder, IMAGES, LABELS, CLASSES, SHARD_SIZES)
    return folder


def test_a_split_knows_where_its_examples_lie(converted):
    records = open_train(converted)
    assert records.num_examples == 13
    assert records.paths == tuple(
        str(converted / "train" / f"train-0000{number}-of-00003") for number in range(3)
    )
    assert records.file_of_example.tolist() == [0] * 5 + [1] * 4 + [2] * 4
    assert records.offset_of_example[[0, 5, 9]].tolist() == [0, 0, 0]
    assert records.number_of_example.tolist() == list(range(13))
    assert records.first_label == 1
    assert records.class_names == CLASSES
    assert records.image_format == "jpeg"


def test_an_index_may_lie_in_another_folder_than_the_records(converted):
    found = manifest.load(str(converted), "train")
    elsewhere = manifest.RecordSet(
        found.manifest, pathlib.Path("/records"), found.index_dir
    )
    records = record_files.open_split(elsewhere, "train")
    assert records.paths[0] == "/records/train/train-00000-of-00003"
    np.testing.assert_array_equal(
        records.offset_of_example, open_train(converted).offset_of_example
    )


def test_some_of_the_files_hold_a_part_that_keeps_its_numbers(converted):
    whole = open_train(converted)
    part = whole.only_files([2, 0])
    kept = [0, 1, 2, 3, 4, 9, 10, 11, 12]
    assert part.num_examples == 9
    assert part.number_of_example.tolist() == kept
    assert part.file_of_example.tolist() == [0] * 5 + [2] * 4
    assert part.offset_of_example.tolist() == whole.offset_of_example[kept].tolist()
    assert part.paths == whole.paths
    assert whole.only_files([]).num_examples == 0


def test_corrupt_offsets_are_refused(tmp_path, write_tiny_set):
    write_tiny_set(tmp_path, IMAGES, LABELS, CLASSES, SHARD_SIZES)
    path = tmp_path / "train-offsets.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="SHA-256"):
        open_train(tmp_path)


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


def test_ranks_that_see_the_same_shards_share_those():
    # Ranks 0 and 2 are on one node, 1 and 3 on another.
    shards = shards_of([4, 3, 5, 2], [(0, 3), (1, 2), (0, 3), (1, 2)])
    assert [(shard.rank, shard.num_ranks) for shard in shards] == [
        (0, 2),
        (0, 2),
        (1, 2),
        (1, 2),
    ]
    for rank, shard in enumerate(shards):
        numbers = shard.records.number_of_example.tolist()
        assert numbers == [[0, 1, 2, 3, 12, 13], list(range(4, 12))][rank % 2]
        assert shard.num_examples_of_all == 14


def test_a_rank_that_sees_no_shard_has_nothing_to_do():
    shard = shards_of([4, 3], [(0, 1), ()])[1]
    assert shard.records.num_examples == 0
    assert shard.first_example == shard.end_example == 0


@settings(deadline=None)
@given(placement=placements())
@hypothesis.example(placement=([50, 0, 30, 37], [(0, 1, 2, 3)] * 512))
def test_all_ranks_together_evaluate_each_example_once(placement):
    evaluated: list[int] = []
    sizes: dict[tuple[int, ...], set[int]] = {}
    for shard, node in zip(shards_of(*placement), placement[1], strict=True):
        numbers = shard.records.number_of_example
        own = numbers[shard.first_example : shard.end_example].tolist()
        evaluated += own
        sizes.setdefault(node, set()).add(len(own))
        assert shard.num_examples_of_all == sum(placement[0])
    assert sorted(evaluated) == list(range(sum(placement[0])))
    for of_node in sizes.values():
        assert max(of_node) - min(of_node) <= 1


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
