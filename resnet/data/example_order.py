"""The order of the examples, as arithmetic: nothing is drawn, stored or skipped.

Position p of the run lies in epoch p // num_examples; within an epoch the examples come
in the order of a permutation that (seed, epoch) alone decide. Global batch k is
positions k*B to (k+1)*B - 1 and runs on over an epoch's end into the next permutation;
rank r of R takes its r-th slice of it. So the batches depend neither on the number of
ranks nor on where a run was interrupted.

The functions use only operators that NumPy arrays and TensorFlow's int64 tensors
share, and no value exceeds an int64: tests and the input graph run the same lines.
"""

import math
from typing import Any

import numpy as np

_MASK = 0xFFFFFFFF
_ROUNDS = 8  # Twice what makes a Feistel network a pseudo-random permutation (4).
_MULTIPLIER = 0x45D9F3B  # Below 2**27: times a 32-bit number it stays in an int64.
_GOLDEN = 0x9E3779B9  # 2**32 divided by the golden ratio: spreads consecutive keys.


def mix(x: Any) -> Any:
    """Returns a well mixed 32-bit number for each 32-bit number, one to one.

    Args:
        x: int64 in [0, 2**32): a number, a NumPy array or a TensorFlow tensor.
    """
    x = ((x ^ (x // 65536)) * _MULTIPLIER) & _MASK
    x = ((x ^ (x // 65536)) * _MULTIPLIER) & _MASK
    return x ^ (x // 65536)


def mix_seed(seed: int, stream: int, epoch: Any) -> Any:
    """Returns a 32-bit number that depends on all bits of its arguments.

    Args:
        seed: The run's seed, in [0, 2**63).
        stream: Which use it is for, from 0: two uses must not share their numbers.
        epoch: int64 of any shape, from 0; the result has its shape.
    """
    key = mix(((seed & _MASK) + stream * _GOLDEN) & _MASK)
    key = mix(key ^ (seed >> 32))
    return mix((key + epoch) & _MASK)


def domain(num_examples: int) -> tuple[int, int]:
    """Returns the sides (a, b) of the smallest near-square that holds all examples.

    a * b is at least `num_examples` and exceeds it by less than a.
    """
    a = math.isqrt(num_examples - 1) + 1
    return a, -(-num_examples // a)


def shuffle_once(x: Any, seed: int, epoch: Any, num_examples: int) -> Any:
    """Returns one pass of the permutation of [0, a * b) that (seed, epoch) decide.

    A Feistel network on pairs (left, right) of the domain's sides: in turn, one half is
    shifted by a number that depends on the other. Each round can be undone, so the
    whole is one to one. Results of `num_examples` or more must be passed in again until
    they fall below ("cycle walking").

    Args:
        x: int64 in [0, a * b), any shape.
        seed: The run's seed, in [0, 2**63).
        epoch: int64, of x's shape or one for all.
        num_examples: Examples in an epoch.

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains": cycle
    walking and the generalized Feistel network.
    """
    a, b = domain(num_examples)
    left, right = x % a, x // a
    for number in range(_ROUNDS):
        key = mix_seed(seed, number, epoch)
        if number % 2 == 0:
            left = (left + mix(right ^ key)) % a
        else:
            right = (right + mix(left ^ key)) % b
    return left + a * right


def shuffled(
    position_in_epoch: np.ndarray, seed: int, epoch: Any, num_examples: int
) -> np.ndarray:
    """Returns the examples that stand at these positions of these epochs.

    `resnet.data.input_pipeline` has the same few lines on TensorFlow's tensors.

    Args:
        position_in_epoch: int64 in [0, num_examples), any shape.
        seed: The run's seed, in [0, 2**63).
        epoch: int64, of the same shape or one for all.
        num_examples: Examples in an epoch, from 1 to 2**62.
    """
    example: np.ndarray = shuffle_once(position_in_epoch, seed, epoch, num_examples)
    while (outside := example >= num_examples).any():
        again = shuffle_once(example, seed, epoch, num_examples)
        example = np.where(outside, again, example)
    return example


def slice_positions(
    step: Any, global_batch_size: int, rank: Any, num_ranks: int
) -> tuple[Any, int]:
    """Returns the first position of a rank's slice of a global batch, and its length.

    Args:
        step: Which global batch, from 0.
        global_batch_size: A multiple of `num_ranks`.
        rank: From 0; a number, an array or a tensor, as `step`.
        num_ranks: Ranks that share the batch.
    """
    local_batch_size = global_batch_size // num_ranks
    return step * global_batch_size + rank * local_batch_size, local_batch_size


def part_positions(
    part: Any, num_parts: int, global_batch_size: int, rank: int, num_ranks: int
) -> tuple[Any, int]:
    """Returns the first position of a part of a rank's slice, and its length.

    The slice of each step is divided into equal parts. They are counted on from step to
    step: part p is of step p // num_parts.

    Args:
        part: Which part, from 0.
        num_parts: Of each step.
        global_batch_size: A multiple of `num_ranks * num_parts`.
        rank: From 0.
        num_ranks: Ranks that share the batch.
    """
    # They are the slices that so many times as many ranks would have.
    return slice_positions(
        part // num_parts,
        global_batch_size,
        rank * num_parts + part % num_parts,
        num_ranks * num_parts,
    )
