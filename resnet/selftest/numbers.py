"""Numbers for the cases: the same on every machine, from integer arithmetic alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_COUNT = 1 << 21  # Of different values; then they are used again.
_STEP = 0x9E3779B97F4A7C15
_BFLOAT16 = tf.bfloat16.as_numpy_dtype


class Numbers:
    """Pseudorandom numbers of a seed, without libraries whose numbers may change.

    Source: SplitMix64, Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195.
    """

    def __init__(self, seed: int) -> None:
        bits = np.arange(1, _COUNT + 1, dtype=np.uint64) + np.uint64(seed * _COUNT)
        bits *= np.uint64(_STEP)  # Modulo 2^64, as all of this.
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(factor)
        bits ^= bits >> np.uint64(31)
        # 24 bits of each, so that all of float32's are used, and none is rounded off.
        self._integers = (bits >> np.uint64(40)).astype(np.int32) - (1 << 23)
        self._next = 0

    def from_group(self, group: int) -> "Numbers":
        """Starts again at a place of a group's own; returns itself."""
        self._next = group * 77_773
        return self

    def integers(self, *shape: int) -> np.ndarray:
        """Returns integers from -2^23 to below 2^23."""
        count = int(np.prod(shape, dtype=np.int64))
        start = self._next % (_COUNT - count)
        self._next += count
        return self._integers[start : start + count].reshape(shape)

    def floats(self, *shape: int, dtype: Any = tf.float32) -> np.ndarray:
        """Returns values from -2 to below 2; those of bfloat16 are cut, not rounded."""
        values = self.integers(*shape).astype(np.float32) * np.float32(2.0**-22)
        if dtype == tf.float32:
            return values
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(_BFLOAT16)

    def whole(self, *shape: int, dtype: Any = tf.bfloat16) -> np.ndarray:
        """Returns whole numbers from -128 to 127, which bfloat16 represents."""
        values = (self.integers(*shape) >> 16).astype(np.float32)
        return values.astype(dtype.as_numpy_dtype)

    def kernel(self, *shape: int) -> np.ndarray:
        """Returns float32 that bfloat16 rounds to whole numbers, of 65 to 128 or less.

        There, neighbors in bfloat16 are 0.5 apart.
        """
        whole = (self.integers(*shape) >> 17).astype(np.float32)  # From -64 to 63.
        whole += np.where(whole < 0, np.float32(-64), np.float32(65))
        return whole + self.floats(*shape) * np.float32(0.109375)

    def below(self, limit: int) -> int:
        """Returns a number from 0 to below a limit."""
        return (int(self.integers(1)[0]) + (1 << 23)) % limit

    def choice(self, options: Sequence[Any]) -> Any:
        """Returns one of several."""
        return options[self.below(len(options))]
