"""What the ranks find out together about the numbers of a state."""

import platform

import numpy as np
import pytest
import tensorflow as tf

from resnet.distributed.communicator import AgreedFailure
from resnet.runtime.divergence import check_equal, check_state
from tests.unit.simulated_ranks import on_all_ranks

HOST = platform.node()
NEXT = float(np.nextafter(np.float32(3), np.float32(4)))  # One bit is another.


def failures(num_ranks: int, changes: dict[tuple[int, str], float]) -> set[str | None]:
    """Returns what the ranks say, with one value of some of their tensors changed."""

    def check(communicator, place):
        values = {"a": 1.0, "ema/b": 3.0, "own": float(place.rank)}
        values |= {
            name: new for (rank, name), new in changes.items() if rank == place.rank
        }
        tensors = {name: tf.constant([[2.0], [new]]) for name, new in values.items()}
        own = {"own": tensors.pop("own")}
        try:
            check_state(7, tensors, own, communicator)
        except AgreedFailure as error:
            return str(error)

    return set(on_all_ranks(check, num_ranks)[0])


@pytest.mark.parametrize(
    ("digests", "named"),
    [
        ((7, 7, 7), None),
        ((7, 8, 7, 8, 7), "rank 1 on b, rank 3 on d differ from the others"),
        ((8, 7, 7, 6), "rank 0 on a, rank 3 on d differ from the others"),
        ((7, 8), "rank 0 on a differ from those of rank 1 on b, and it is unknown"),
        (
            (8, 7, 7, 8),
            "rank 0 on a, rank 3 on d differ from those of rank 1 on b, rank 2 on c",
        ),
        ((7, 8, 9), "rank 0 on a differ from those of rank 1 on b, rank 2 on c, and"),
    ],
)
def test_only_a_majority_says_which_rank_is_wrong(digests, named):
    hosts = "abcde"[: len(digests)]
    if named is None:
        check_equal("they", digests, hosts)
        return
    with pytest.raises(AgreedFailure, match=f"; those of {named}") as error:
        check_equal("they", digests, hosts)
    assert ("start again without it" in str(error.value)) == ("others" in named)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            NEXT,
            "the values of ema/b after step 7 must be the same on all ranks; those of",
        ),
        (np.nan, "ema/b after step 7 is not finite on"),
    ],
)
def test_the_tensor_and_the_rank_of_a_wrong_value_are_named(value, sentence):
    (said,) = failures(3, {(1, "ema/b"): value})
    assert said.startswith(f"{sentence} rank 1 on {HOST}")


def test_what_is_a_ranks_own_may_differ_but_is_finite_too():
    assert failures(3, {}) == {None}
    (said,) = failures(8, {(rank, "own"): np.inf for rank in range(1, 8)})
    assert said.startswith(
        f"own after step 7 is not finite on rank 1 on {HOST}, rank 2"
    )
    assert "and 3 more" in said
