"""The names of the files that hold each rank's own state. Needs no TensorFlow."""

import re

_NAME = re.compile(r"rank-(\d{5,})-of-(\d{5,})\.(index|data-.*)")


def prefix(rank: int, num_ranks: int) -> str:
    """Returns the first part of the names of a rank's files."""
    return f"rank-{rank:05d}-of-{num_ranks:05d}"


def owner(name: str) -> int | None:
    """Returns the rank that wrote a file of this name; None for rank 0's `state`."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def num_ranks(name: str) -> int:
    """Returns the number of ranks that wrote files of such names; 0 for `state`."""
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else 0
