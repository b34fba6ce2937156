"""The ranks' own state when another number of ranks resumes a run.

Each rank reads what some of the ranks have saved, and the ranks add up their parts: the
files of all ranks may be hundreds of GB, which no rank could read alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from resnet.distributed.communicator import Communicator
from resnet.exchange import gathered, sliced

_RESIDUAL = "residual/"


@dataclass(frozen=True)
class PartOfMean:
    """What some of the ranks add to the mean over all ranks that saved their state.

    Attributes:
        means: The sums over these ranks, divided by the number of all ranks, by name.
        slices: The residual of each of these ranks' slices, by name and rank.
    """

    means: dict[str, np.ndarray]
    slices: dict[tuple[str, int], np.ndarray]

    @classmethod
    def of(
        cls, saved: Iterable[tuple[int, Mapping[str, np.ndarray]]], num_ranks: int
    ) -> "PartOfMean":
        """Returns the part of some ranks.

        Args:
            saved: The ranks, each with what it saved, by name.
            num_ranks: Number of all ranks that saved theirs.
        """
        part = cls({}, {})
        for rank, own in saved:
            for name, values in own.items():
                if sliced.is_slice(name):
                    part.slices[name, rank] = values
                elif name in part.means:
                    part.means[name] += values / np.float32(num_ranks)
                else:
                    part.means[name] = values / np.float32(num_ranks)
        return part


def merge(
    part: PartOfMean,
    communicator: Communicator,
    shapes: Mapping[str, Sequence[int]],
    dense_below: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the state that each rank begins with. All ranks must call it.

    It is the mean over the ranks that saved theirs. What the messages of slices lacked
    (`sliced.SlicedMessages`) belonged to the mean over ranks: it becomes a part of each
    rank's residual of the same values. The residuals of the slices, which are others on
    another number of ranks, begin with zeros. So the mean over ranks of all that is
    left to be sent stays the same.

    Args:
        part: What this rank has read; the parts of all ranks together are the mean.
        communicator: The ranks that begin.
        shapes: Shapes of the variables of a rank that begins, by name; the residuals in
            the order of their vectors.
        dense_below: Vectors of fewer values are sent whole, outside of the slices.
    """
    means = _sums_over_ranks(part.means, communicator)
    lacked = _slices_in_order(part.slices, communicator)
    names = [
        name
        for name in shapes
        if name.startswith(_RESIDUAL) and shapes[name][0] >= dense_below
    ]
    buckets = gathered.buckets([shapes[name][0] for name in names])
    for number, bucket in enumerate(buckets if lacked else []):
        whole = lacked[sliced.slice_name(number)]
        ends = np.cumsum([shapes[names[vector]][0] for vector in bucket])
        for vector, values in zip(bucket, np.split(whole, ends[:-1]), strict=True):
            means[names[vector]] += values
    zeros = {
        name: np.zeros(shape, np.float32)
        for name, shape in shapes.items()
        if sliced.is_slice(name)
    }
    return {**means, **zeros}


def _sums_over_ranks(
    arrays: Mapping[str, np.ndarray], communicator: Communicator
) -> dict[str, np.ndarray]:
    """Returns the sums of the ranks' float32 arrays by name; a missing one is 0."""
    shapes: dict[str, Sequence[int]] = {}
    for of_rank in communicator.allgather(
        {name: values.shape for name, values in arrays.items()}
    ):
        shapes.update(of_rank)
    return {
        name: communicator.allreduce_sum(
            arrays.get(name, np.zeros(shape, np.float32))  # type: ignore[arg-type]
        )
        for name, shape in shapes.items()
    }


def _slices_in_order(
    slices: Mapping[tuple[str, int], np.ndarray], communicator: Communicator
) -> dict[str, np.ndarray]:
    """Returns the residuals of the slices of all ranks that saved, joined, by name."""
    sizes: dict[tuple[str, int], int] = {}
    for of_rank in communicator.allgather(
        {key: values.size for key, values in slices.items()}
    ):
        sizes.update(of_rank)
    own: dict[str, list[np.ndarray]] = {}
    for key in sorted(sizes):
        values = slices.get(key, np.zeros(sizes[key], np.float32))
        own.setdefault(key[0], []).append(values)
    return {
        name: communicator.allreduce_sum(np.concatenate(parts))
        for name, parts in own.items()
    }
