"""The order of the examples, computed from the seed, the epoch and the position.

Nothing is drawn, stored or skipped. Position p of the run lies in epoch
p // num_examples. Within an epoch, the order of the examples is a permutation that
depends on (seed, epoch) alone. Global batch k holds the positions k*B to (k+1)*B - 1; a
batch at the end of an epoch continues with the permutation of the next epoch. Rank r of
R takes the r-th slice of the global batch. Hence the batches depend neither on the
number of ranks nor on where a run was interrupted. With other sampling than "natural",
the permutation gives a slot instead of an example, and each class has its share of an
epoch's slots (`ClassOrder`).

The functions use only operators that NumPy arrays and TensorFlow's int64 tensors have
in common, and those of `ArrayFunctions`, and no value exceeds an int64: tests and the
input graph run the same lines.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_MASK = 0xFFFFFFFF
_ROUNDS = 8  # Twice what makes a Feistel network a pseudo-random permutation (4).
_MULTIPLIER = 0x45D9F3B  # Below 2**27: times a 32-bit number it stays in an int64.
_FLIP_STREAM = 3000  # For `mix_seed`; no other use has this number.
_CLASS_STREAM = 4000  # The first of those of the orders within classes.
_GOLDEN = 0x9E3779B9  # 2**32 divided by the golden ratio: spreads consecutive keys.


def mix(x: Any) -> Any:
    """Returns a hash of each int64 in [0, 2**32); the hash is a bijection."""
    x = ((x ^ (x // 65536)) * _MULTIPLIER) & _MASK
    x = ((x ^ (x // 65536)) * _MULTIPLIER) & _MASK
    return x ^ (x // 65536)


def mix_seed(seed: int, stream: int, epoch: Any) -> Any:
    """Returns a 32-bit key of the epoch's shape that depends on all bits of all.

    The seed of the run is in [0, 2**63). Each use of keys needs a stream of its own,
    from 0, so that no two uses share their keys. The epoch is int64 of any shape.
    """
    return mix((_seed_key(seed, stream) + epoch) & _MASK)


def _seed_key(seed: int, stream: int) -> int:
    """Returns the part of `mix_seed` that all epochs share."""
    low_key = mix(((seed & _MASK) + stream * _GOLDEN) & _MASK)
    key: int = mix(low_key ^ (seed >> 32))
    return key


def round_keys(seed: int, epoch: Any, first_stream: int = 0) -> Any:
    """Returns the keys of all rounds of `shuffle_once`: `mix_seed` of 8 streams.

    The result has a new first axis of length 8 before the shape of the epoch.
    """
    streams = range(first_stream, first_stream + _ROUNDS)
    seed_keys = np.array([_seed_key(seed, stream) for stream in streams])
    return mix((seed_keys.reshape([-1] + [1] * len(epoch.shape)) + epoch) & _MASK)


def sides(num_examples: int) -> tuple[int, int]:
    """Returns the sides a and b of `shuffle_once`, from 1 example on.

    a * b is at least `num_examples` and exceeds it by less than a.
    """
    a = math.isqrt(num_examples - 1) + 1
    return a, -(-num_examples // a)


def shuffle_once(x: Any, keys: Sequence[Any], ab: tuple[Any, Any]) -> Any:
    """Returns one pass of the permutation of [0, a * b) that the keys determine.

    The permutation is a Feistel network on pairs (left, right) below the `sides` a and
    b: alternately, one half is shifted by a number that depends on the other half. Each
    round can be undone, so the network is a bijection. Results of `num_examples` or
    more have to be passed in again until they fall below ("cycle walking"). `x` is an
    int64 in [0, a * b) of any shape, and each key and side is of its shape or a scalar.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": cycle
    walking and the generalized Feistel network.
    """
    a, b = ab
    left, right = x % a, x // a
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + mix(right ^ key)) % a
        else:
            right = (right + mix(left ^ key)) % b
    return left + a * right


class ArrayFunctions(NamedTuple):
    """What NumPy and TensorFlow have under different names."""

    # (x, keys, sides, num_examples): the cycle walk of `shuffle_once`.
    walk: Callable[[Any, Any, tuple[Any, Any], Any], Any]
    take: Callable[[np.ndarray, Any], Any]  # The rows of an array with some indices.
    # (ends, x): the index of the first of the rising ends that is above x.
    search: Callable[[np.ndarray, Any], Any]


def _walk(
    x: np.ndarray, keys: Any, ab: tuple[Any, Any], num_examples: Any
) -> np.ndarray:
    example: np.ndarray = shuffle_once(x, keys, ab)
    while (outside := example >= num_examples).any():
        example = np.where(outside, shuffle_once(example, keys, ab), example)
    return example


NUMPY = ArrayFunctions(
    walk=_walk,
    take=lambda values, indices: values[indices],
    search=lambda ends, x: np.searchsorted(ends, x, side="right"),
)


@dataclass(frozen=True, eq=False)
class ClassOrder:
    """How often the classes of some examples are read in an epoch, and in which order.

    An epoch has as many slots as there are examples. Class k has its quota of them,
    the floor or the ceiling of its share: the same for each class ("balanced"), or in
    proportion to the root of its number of examples ("root"). The slots of a class walk
    through one permutation of its examples after another, over the ends of epochs, so
    the numbers of times that two of its examples were read differ by at most 1.
    """

    members: np.ndarray  # The examples, class by class, int64 `[num_examples]`.
    slot_ends: np.ndarray  # The end of each class' slots, int64 `[num_classes]`.
    # Of each class: first slot, quota, first of its members, their number, the `sides`
    # of this, and what tells its keys from others'; int64 `[num_classes, 7]`.
    table: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, sampling: str) -> "ClassOrder":
        """Returns the order of examples with these labels, int32 `[num_examples]`."""
        present, sizes = np.unique(labels, return_counts=True)
        counts, shares = sizes.tolist(), [1] * len(sizes)
        if sampling == "root":  # In whole numbers, which are the same on all hosts.
            shares = [math.isqrt(count << 40) for count in counts]
        total = sum(shares)
        ends = [len(labels) * end // total for end in itertools.accumulate(shares)]
        members = [0, *itertools.accumulate(counts)]
        rows = [
            (first, end - first, member, count, *sides(count), mix(label))
            for first, end, member, count, label in zip(
                [0, *ends], ends, members, counts, present.tolist(), strict=False
            )
        ]
        order = np.argsort(labels, kind="stable").astype(np.int64)
        return cls(order, np.array(ends, np.int64), np.array(rows, np.int64))


def examples_at(
    position: Any,
    seed: int,
    num_examples: int,
    classes: ClassOrder | None = None,
    library: ArrayFunctions = NUMPY,
) -> tuple[Any, Any]:
    """Returns the examples at positions of a run, and the numbers of these uses.

    All are int64 `[n]`. Each example has every use once, from 0 on: augmentation draws
    from it. With natural sampling, without `classes`, it is the epoch.
    """
    epoch = position // num_examples
    keys = round_keys(seed, epoch)
    slot = library.walk(
        position % num_examples, keys, sides(num_examples), num_examples
    )
    if classes is None:
        return slot, epoch
    rows = library.take(classes.table, library.search(classes.slot_ends, slot))
    columns = [rows[:, index] for index in range(classes.table.shape[1])]
    first_slot, quota, first_member, count, a, b, own = columns
    number = epoch * quota + slot - first_slot  # Among all slots of the class.
    use = number // count
    keys = round_keys(seed, use + own, _CLASS_STREAM)
    place = library.walk(number % count, keys, (a, b), count)
    return library.take(classes.members, first_member + place), use


def alternating_flips(examples: Any, seed: int, uses: Any) -> Any:
    """Returns whether examples are flipped horizontally in these uses of them, bool.

    Each is flipped in every other use, or epoch; the seed decides whether in even or
    odd ones. So any two consecutive uses show both sides of each image. The examples
    are their indices in the split, int64 of any shape.

    Source: Jordan 2024, arXiv:2404.00498; there a hash decides, too.
    """
    return (mix_seed(seed, _FLIP_STREAM, examples) // 65536 + uses) % 2 == 1


def micro_batch_positions(
    micro_batch: Any,
    accumulation_steps: int,
    global_batch_size: int,
    rank: int,
    num_ranks: int,
) -> tuple[Any, int]:
    """Returns the first position of a micro-batch of a rank, and its length.

    The rank's slice of each step is divided into equal micro-batches: micro-batch m
    belongs to step m // accumulation_steps.
    """
    size = global_batch_size // (num_ranks * accumulation_steps)
    step = micro_batch // accumulation_steps
    part = rank * accumulation_steps + micro_batch % accumulation_steps
    return step * global_batch_size + part * size, size
