"""The part of a split that a rank reads, and the ranks that read the same part."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet.data.record_files import RecordFiles


@dataclass(frozen=True)
class ExampleShard:
    """A part of a split and the ranks that read it.

    Attributes:
        records: The examples of the part.
        rank: The number of this rank among the ranks that read the part, from 0.
        num_ranks: The number of ranks that read the part.
        num_examples_of_all: The number of examples of the whole split, over all parts.
    """

    records: RecordFiles
    rank: int
    num_ranks: int
    num_examples_of_all: int

    @property
    def first_example(self) -> int:
        """The first example of `records` that this rank evaluates."""
        return self.rank * self.records.num_examples // self.num_ranks

    @property
    def end_example(self) -> int:
        """The example after the last one that this rank evaluates."""
        return (self.rank + 1) * self.records.num_examples // self.num_ranks


def shard_of_rank(
    records: RecordFiles, shards_of_ranks: Sequence[tuple[int, ...]], rank: int
) -> ExampleShard:
    """Returns the example shard of a rank.

    Ranks that read the same record files divide the examples of these files among
    themselves.

    Args:
        records: The whole split.
        shards_of_ranks: The indices of the record files that each rank reads.
        rank: The rank, from 0.
    """
    files = shards_of_ranks[rank]
    ranks = [other for other, indices in enumerate(shards_of_ranks) if indices == files]
    part = records
    if len(files) < len(records.paths):
        part = records.only_files(files)
    return ExampleShard(part, ranks.index(rank), len(ranks), records.num_examples)
