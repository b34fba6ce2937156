"""Random numbers of one vector in one step: a pure function of their position.

They come from Philox4x32-10, whose key is the seed of the run and whose counter is made
of the number of a group of four values, of the vector, of the step and of the rank. So
a run that resumes draws the same numbers, whatever number of threads it has.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = np.uint64(0xFFFFFFFF)


class Stream(NamedTuple):
    """What the random numbers of a vector depend on.

    Attributes:
        seed: Seed of the run, an int64 from 0.
        vector: Number of the vector among those of a step, below 2**32.
        step: Number of the step, below 2**32.
        rank: Rank that draws them, below 2**32.
    """

    seed: int
    vector: int
    step: int
    rank: int


def uniform(stream: Stream, count: int) -> npt.NDArray[np.float32]:
    """Returns numbers from 0 to below 1, multiples of 2**-24, `[count]` float32."""
    groups = np.arange(-(-count // 4), dtype=np.uint64)
    others = (stream.vector, stream.step, stream.rank)
    counter = [groups, *(np.full_like(groups, number) for number in others)]
    bits = philox(counter, (stream.seed & 0xFFFFFFFF, stream.seed >> 32))
    numbers = np.stack(bits, axis=1).ravel()[:count] >> np.uint64(8)
    return numbers.astype(np.float32) * np.float32(2**-24)


def philox(
    counter: list[npt.NDArray[np.uint64]], key: tuple[int, int]
) -> list[npt.NDArray[np.uint64]]:
    """Returns Philox4x32-10 of counters.

    Args:
        counter: The four words of each counter, below 2**32.
        key: The two words of the key, below 2**32.

    Returns:
        The four words of each result, below 2**32.
    """
    a, b, c, d = counter
    for number in range(_ROUNDS):
        first, second = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        keys = [
            np.uint64(word + number * step & 0xFFFFFFFF)
            for word, step in zip(key, _KEY_STEPS, strict=True)
        ]
        a, b = (second >> np.uint64(32)) ^ b ^ keys[0], second & _MASK
        c, d = (first >> np.uint64(32)) ^ d ^ keys[1], first & _MASK
    return [a, b, c, d]
