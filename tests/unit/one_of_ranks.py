"""A rank whose others are not there."""

from typing import Any

import numpy as np


class OneOfRanks:
    """A communicator that keeps what this rank adds to the sum of all.

    Attributes:
        rank: Of this rank.
        num_ranks: Of all.
        values: What it has added last.
    """

    def __init__(
        self, rank: int, num_ranks: int, sum_of_all: np.ndarray | None = None
    ) -> None:
        """Pretends that the sum of all is always the same, or what this rank adds."""
        self.rank = rank
        self.num_ranks = num_ranks
        self._sum_of_all = sum_of_all

    def report_status(self, status: str, **facts: bool) -> None:
        """Does nothing."""

    def allgather(self, value: Any) -> list[Any]:
        """Returns the value of this rank alone."""
        return [value]

    def any_rank(self, value: object) -> bool:
        """Returns whether the value of this rank is true."""
        return bool(value)

    def gather_objects(self, value: Any) -> list[Any] | None:
        """Returns the values of all ranks to rank 0."""
        values = self.allgather(value)
        return values if self.rank == 0 else None

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """Keeps the values, and returns the sum of all."""
        self.values = values
        return values if self._sum_of_all is None else self._sum_of_all
