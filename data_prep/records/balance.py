"""The limit on how unevenly training examples may be spread over nodes."""

from collections.abc import Iterable

# The number of examples per rank may differ between nodes by this fraction of its mean:
# the examples of a node with fewer examples are used more often.
MAX_IMBALANCE = 0.1


def is_balanced(examples_per_rank: Iterable[float], mean: float) -> bool:
    """Returns whether the examples are spread evenly enough for `--shard_by=file`.

    Args:
        examples_per_rank: The number of training examples per rank of each node.
        mean: The number of training examples divided by the number of ranks.
    """
    limit = MAX_IMBALANCE * mean
    return all(abs(number - mean) <= limit for number in examples_per_rank)
