"""Which part of a split a rank reads, and with which other ranks it shares it."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet.data.record_files import RecordFiles


@dataclass(frozen=True)
class ExampleShard:
    """A part of a split and the ranks that read it.

    Attributes:
        records: The part.
        rank: This rank's number among those that read it, from 0.
        num_ranks: How many read it.
        num_examples_of_all: Examples of the whole split.
    """

    records: RecordFiles
    rank: int
    num_ranks: int
    num_examples_of_all: int

    @property
    def first_example(self) -> int:
        """First example of `records` that this rank evaluates."""
        return self.rank * self.records.num_examples // self.num_ranks

    @property
    def end_example(self) -> int:
        """First example behind those that this rank evaluates."""
        return (self.rank + 1) * self.records.num_examples // self.num_ranks


def shard_of_rank(
    records: RecordFiles, shards_of_ranks: Sequence[tuple[int, ...]], rank: int
) -> ExampleShard:
    """Returns the share of a rank: ranks that read the same shards share them.

    Args:
        records: The whole split.
        shards_of_ranks: Indices of the shards that each rank reads.
        rank: Which rank.
    """
    shards = shards_of_ranks[rank]
    ranks = [other for other, one in enumerate(shards_of_ranks) if one == shards]
    part = records
    if len(shards) < len(records.paths):
        part = records.only_files(shards)
    return ExampleShard(part, ranks.index(rank), len(ranks), records.num_examples)
