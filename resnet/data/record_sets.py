"""Opens a data set and checks it, on all ranks, before TensorFlow is imported."""

from collections.abc import Sequence

from absl import logging

from data_prep.errors import UserError
from data_prep.records import indexing, manifest
from data_prep.records.manifest import RecordSet, Split
from resnet.distributed import Communicator
from resnet.placement import Place

# Examples for each rank may differ so much from node to node, as a share of their mean:
# those of a node with fewer are seen more often.
MOST_UNEVEN = 0.1
_ADVICE = "launch/place_shards.py tells which shards go to which node."


def open_record_set(
    data_dir: str, split_name: str, place: Place, communicator: Communicator
) -> RecordSet:
    """Returns the data set in a folder; one of other programs gets its index first.

    That is made once: by rank 0 or, on a node that doesn't see it, by one rank there.

    Args:
        data_dir: The folder.
        split_name: Of a split that the set must have.
        place: This rank's place.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if there is no such set.
    """
    for makes_index in (communicator.rank == 0, place.local_rank == 0):
        with communicator.together():
            if makes_index:
                indexing.make_if_missing(data_dir, logging.info)
    with communicator.together():
        return manifest.load(data_dir, split_name)


def check_split(
    record_set: RecordSet, split: Split, shard_by: str, communicator: Communicator
) -> list[tuple[int, ...]]:
    """Returns the indices of the shards that each rank reads, after a look at them.

    Args:
        record_set: The set.
        split: One of its splits.
        shard_by: "example": each rank reads all shards. "file": those on its node.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if a shard is missing or has another size than it
            should, or if the nodes don't share the shards as they must.
    """
    shards = tuple(
        index
        for index, shard in enumerate(split.shards)
        if shard_by == "example" or (record_set.records_dir / shard.path).exists()
    )
    with communicator.together():
        manifest.check_files(record_set, split.name, shards)
    shards_of_ranks = communicator.gather(shards)
    if shard_by == "file":
        with communicator.together():
            check_shares(split, shards_of_ranks)
    return shards_of_ranks


def check_shares(split: Split, shards_of_ranks: Sequence[tuple[int, ...]]) -> None:
    """Refuses shards that lie nowhere or on two nodes, and nodes that differ too much.

    Ranks that see the same shards count as one node.

    Args:
        split: The split.
        shards_of_ranks: Indices of the shards that each rank sees.

    Raises:
        UserError: Naming a shard, or the numbers of examples.
    """
    nodes = sorted(set(shards_of_ranks))
    for index, shard in enumerate(split.shards):
        holders = [shards_of_ranks.index(node) for node in nodes if index in node]
        if not holders:
            raise UserError(
                f"--shard_by=file needs each shard on one node; {shard.path} is on"
                f" none. {_ADVICE}"
            )
        if len(holders) > 1:
            raise UserError(
                f"--shard_by=file needs each shard on one node; {shard.path} is there"
                f" for ranks {holders[0]} and {holders[1]}, which differ in other"
                f" shards. {_ADVICE}"
            )
    examples_of_a_rank = [
        sum(split.shards[index].num_records for index in node)
        / shards_of_ranks.count(node)
        for node in nodes
    ]
    low, high = min(examples_of_a_rank), max(examples_of_a_rank)
    mean = split.num_examples / len(shards_of_ranks)
    if split.name == "train" and (
        low < (1 - MOST_UNEVEN) * mean or high > (1 + MOST_UNEVEN) * mean
    ):
        raise UserError(
            "--shard_by=file needs about as many training examples for each rank; they"
            f" have from {low:.0f} to {high:.0f}. Give the nodes equal shares, or"
            " convert with a --train_shards that is a multiple of the number of nodes."
            f" {_ADVICE}"
        )
