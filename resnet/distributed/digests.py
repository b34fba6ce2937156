"""Digests of tensors, by which states and gradients are compared bit by bit.

They are CRC-32C, which is computed as fast as memory is read, and miss a fault with a
probability of 2^-32. They are no signatures.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import google_crc32c
import numpy as np


def digest_of_state(tensors: Mapping[str, Any]) -> int:
    """Returns a digest of tensors and their names, in whatever order they are."""
    return digest_by_name(dict(zip(tensors, digests_of(tensors.values()), strict=True)))


def digest_by_name(digests: Mapping[str, int]) -> int:
    """Returns a digest of named digests, in whatever order they are."""
    return int(google_crc32c.value(repr(sorted(digests.items())).encode()))


def digest(tensors: Iterable[Any]) -> int:
    """Returns a digest of tensors that depends on their order."""
    return combined(digests_of(tensors))


def combined(of_tensors: Iterable[int]) -> int:
    """Returns the digest of tensors, of the digest of each (`digests_of`)."""
    return int(google_crc32c.value(repr(tuple(of_tensors)).encode()))


def digests_of(tensors: Iterable[Any]) -> tuple[int, ...]:
    """Returns the CRC-32C of all bytes of each eager tensor or array."""
    return tuple(google_crc32c.value(array(tensor)) for tensor in tensors)


def array(tensor: Any) -> np.ndarray:
    """Returns the values of an eager tensor, without a copy."""
    values = np.asarray(memoryview(tensor)).ravel()
    values.flags.writeable = False  # CRC-32C requires it.
    return values
