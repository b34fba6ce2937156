"""The ranks' own state when another number of ranks resumes a run."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from resnet.exchange import gathered, sliced

_RESIDUAL = "residual/"


def merge(
    saved: Iterable[Mapping[str, np.ndarray]],
    num_ranks: int,
    shapes: Mapping[str, Sequence[int]],
    dense_below: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the state that each rank begins with.

    It is the mean over the ranks that saved theirs. What the messages of slices lacked
    (`sliced.SlicedMessages`) belonged to the mean over ranks: it becomes a part of each
    rank's residual of the same values. The residuals of the slices, which are others on
    another number of ranks, begin with zeros. So the mean over ranks of all that is
    left to be sent stays the same.

    Args:
        saved: What each rank saved, by name, in the order of the ranks.
        num_ranks: Number of ranks that saved theirs.
        shapes: Shapes of the variables of a rank that begins, by name; the residuals in
            the order of their vectors.
        dense_below: Vectors of fewer values are sent whole, outside of the slices.
    """
    means: dict[str, np.ndarray] = {}
    of_slices: dict[str, list[np.ndarray]] = {}
    for own in saved:
        for name, values in own.items():
            if sliced.is_slice(name):
                of_slices.setdefault(name, []).append(values)
                continue
            part = values / np.float32(num_ranks)
            means[name] = means[name] + part if name in means else part
    names = [
        name
        for name in shapes
        if name.startswith(_RESIDUAL) and shapes[name][0] >= dense_below
    ]
    buckets = gathered.buckets([shapes[name][0] for name in names])
    for number, bucket in enumerate(buckets if of_slices else []):
        whole = np.concatenate(of_slices[sliced.slice_name(number)])
        ends = np.cumsum([shapes[names[vector]][0] for vector in bucket])
        for vector, part in zip(bucket, np.split(whole, ends[:-1]), strict=True):
            means[names[vector]] += part
    zeros = {
        name: np.zeros(shape, np.float32)
        for name, shape in shapes.items()
        if sliced.is_slice(name)
    }
    return {**means, **zeros}
