"""The order of the examples, computed from the seed, the epoch and the position.

Nothing is drawn, stored or skipped. Position p of the run lies in epoch
p // num_examples. Within an epoch, the order of the examples is a permutation that
depends on (seed, epoch) alone. Global batch k holds the positions k*B to (k+1)*B - 1; a
batch at the end of an epoch continues with the permutation of the next epoch. Rank r of
R takes the r-th slice of the global batch. Hence the batches depend neither on the
number of ranks nor on where a run was interrupted.

The functions use only operators that NumPy arrays and TensorFlow's int64 tensors have
in common, and no value exceeds an int64: tests and the input graph run the same lines.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_MASK = 0xFFFFFFFF
_ROUNDS = 8  # Twice what makes a Feistel network a pseudo-random permutation (4).
_MULTIPLIER = 0x45D9F3B  # Below 2**27: times a 32-bit number it stays in an int64.
_FLIP_STREAM = 3000  # For `mix_seed`; no other use has this number.
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


def round_keys(seed: int, epoch: Any) -> Any:
    """Returns the keys of all rounds of `shuffle_once`: `mix_seed` of streams 0 to 7.

    The result has a new first axis of length 8 before the shape of the epoch.
    """
    seed_keys = np.array([_seed_key(seed, stream) for stream in range(_ROUNDS)])
    return mix((seed_keys.reshape([-1] + [1] * len(epoch.shape)) + epoch) & _MASK)


def shuffle_once(x: Any, keys: Sequence[Any], num_examples: int) -> Any:
    """Returns one pass of the permutation of [0, a * b) that the keys determine.

    a * b is at least `num_examples` and exceeds it by less than a. The permutation is a
    Feistel network on pairs (left, right) below a and b: alternately, one half is
    shifted by a number that depends on the other half. Each round can be undone, so the
    network is a bijection. Results of `num_examples` or more have to be passed in again
    until they fall below ("cycle walking"). `x` is an int64 in [0, a * b) of any shape,
    and each key is of its shape or a scalar.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": cycle
    walking and the generalized Feistel network.
    """
    a = math.isqrt(num_examples - 1) + 1
    b = -(-num_examples // a)
    left, right = x % a, x // a
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left = (left + mix(right ^ key)) % a
        else:
            right = (right + mix(left ^ key)) % b
    return left + a * right


def shuffled(
    position_in_epoch: np.ndarray, seed: int, epoch: Any, num_examples: int
) -> np.ndarray:
    """Returns the examples at these positions of these epochs.

    The positions are int64 in [0, num_examples), of any shape; the epoch has the same
    shape or is a scalar. `num_examples` is from 1 to 2**62.
    """
    keys = round_keys(seed, np.asarray(epoch, np.int64))
    example: np.ndarray = shuffle_once(position_in_epoch, keys, num_examples)
    while (outside := example >= num_examples).any():
        again = shuffle_once(example, keys, num_examples)
        example = np.where(outside, again, example)
    return example


def alternating_flips(examples: Any, seed: int, epochs: Any) -> Any:
    """Returns whether examples are flipped horizontally in these epochs, bool.

    Each is flipped in every other epoch; the seed decides whether in even or odd ones.
    So any two consecutive epochs have both sides of each image. The examples are their
    indices in the split, int64 of any shape.

    Source: Jordan 2024, arXiv:2404.00498; there a hash decides, too.
    """
    return (mix_seed(seed, _FLIP_STREAM, examples) // 65536 + epochs) % 2 == 1


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
