import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from resnet.distributed.collectives import Collectives
from resnet.exchange.divided_work import DividedWork, owners

SHAPES = [tf.TensorShape(shape) for shape in ([2, 3], [4], [], [1, 5], [2, 2])]
COSTS = [1.0, 8.0, 2.0, 5.0, 4.0]


class Rank(Collectives):
    """One of several ranks, which sees the messages that the others have sent before.

    Attributes:
        sent: This rank's messages.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__()
        self.sent: list[tf.Tensor] = []
        self.others: list[Rank] = []
        self._place = rank, num_ranks

    @property
    def rank(self) -> int:
        return self._place[0]

    @property
    def num_ranks(self) -> int:
        return self._place[1]

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        assert name == "a name"
        self.sent.append(tensor)
        seen = [other.sent[0] for other in self.others if other.sent]
        padding = tf.fill([sum(map(tf.TensorShape.num_elements, SHAPES))], np.nan)
        gathered = tf.concat([*seen, padding], 0)
        return gathered[: padding.shape[0]]


def values() -> list[tf.Tensor]:
    return [tf.fill(shape, float(i)) for i, shape in enumerate(SHAPES)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_each_result_is_computed_on_one_rank_and_known_to_all(num_ranks):
    ranks = [Rank(rank, num_ranks) for rank in range(num_ranks)]
    called = []

    def task(number: int) -> tf.Tensor:
        called.append(number)
        return values()[number]

    tasks = [lambda number=number: task(number) for number in range(len(SHAPES))]
    for rank in ranks:
        rank.others = ranks
    for repetition in range(2):  # In the second, all messages are known.
        for rank in ranks:
            work = DividedWork(rank, "a name")
            results = work(tasks, SHAPES, COSTS)
            mine = rank.sent[0].shape[0] if rank.sent else 0
            assert work.bytes_sent == 4 * mine * (num_ranks - 1)
            if repetition:
                for found, expected in zip(results, values(), strict=True):
                    np.testing.assert_array_equal(found, expected)
    assert sorted(called) == sorted(2 * list(range(len(SHAPES))))


def test_the_most_expensive_tasks_are_assigned_first():
    assert owners(COSTS, 2) == [1, 0, 0, 1, 1]  # 8 + 2, and 5 + 4 + 1.
    assert owners([1.0, 1.0, 1.0], 2) == [0, 1, 0]
    assert owners([], 2) == []
    assert owners([3.0], 4) == [0]


@given(
    st.lists(st.floats(0.0, 100.0), max_size=6),
    st.integers(1, 3),
)
def test_no_rank_has_much_more_work_than_necessary(costs, num_ranks):
    def most(ranks: tuple[int, ...] | list[int]) -> float:
        work = [0.0] * num_ranks
        for rank, cost in zip(ranks, costs, strict=True):
            work[rank] += cost
        return max(work)

    found = owners(costs, num_ranks)
    best = min(map(most, itertools.product(range(num_ranks), repeat=len(costs))))
    assert most(found) <= (4 / 3 - 1 / (3 * num_ranks)) * best * (1 + 1e-9)
