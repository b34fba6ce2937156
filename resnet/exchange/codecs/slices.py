"""How the vectors of a bucket are cut into slices, one for each rank to sum up."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from resnet.config.compression import CompressionSettings
from resnet.exchange.codecs import ternary


class Piece(NamedTuple):
    """The part of a vector that is in one slice.

    Attributes:
        vector: Number of the vector in its bucket.
        size: Number of values.
    """

    vector: int
    size: int


def cut(sizes: Sequence[int], num_slices: int, alignment: int) -> list[list[Piece]]:
    """Returns the pieces of each slice, in the order of the vectors.

    The slices are equal parts of all vectors together, whatever the sizes of these,
    except that pieces begin at multiples of the alignment in their vector. There are
    slices without pieces where there are too few values.

    Args:
        sizes: Length of each vector.
        num_slices: Number of slices.
        alignment: Number of values of which the place of each cut is a multiple.
    """
    total = sum(sizes)
    cuts = [total * number // num_slices for number in range(1, num_slices)]
    slices: list[list[Piece]] = [[]]
    first = 0  # The place of the vector in its bucket.
    for vector, size in enumerate(sizes):
        begin = 0
        while len(slices) <= len(cuts) and cuts[len(slices) - 1] < first + size:
            place = cuts[len(slices) - 1] - first + alignment // 2
            end = min(max(place // alignment * alignment, begin), size)
            if end > begin:
                slices[-1].append(Piece(vector, end - begin))
            slices.append([])
            begin = end
        if size > begin:
            slices[-1].append(Piece(vector, size - begin))
        first += size
    return slices + [[] for _ in range(num_slices - len(slices))]


def alignment(compression: CompressionSettings, largest_size: int) -> int:
    """Returns the values of which the places of cuts must be multiples.

    So the bytes of a message can be cut there, and each norm belongs to one piece. A
    norm of a whole vector is in the message of each piece.

    Args:
        compression: The settings of compression.
        largest_size: Length of the longest vector.
    """
    if compression.method == "terngrad":
        return ternary.VALUES_PER_BYTE
    if compression.method != "qsgd":
        return 1
    bucket = compression.qsgd_bucket
    return math.lcm(8, bucket) if 0 < bucket < largest_size else 8
