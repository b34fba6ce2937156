"""The labels of images as arrays: one class of each, or several labels an image.

`Labels` are `[num_images]` integers, the class of each image, or `[num_images,
num_labels]` uint8, 1 for each label that an image has and else 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[Any]


def multi_hot(indices: Sequence[Sequence[int]], num_labels: int) -> Labels:
    """Returns the labels of images that have those of these indices, maybe none."""
    labels = np.zeros((len(indices), num_labels), np.uint8)
    for row, of_image in zip(labels, indices, strict=True):
        row[list(of_image)] = 1
    return labels


def indices_of(labels: Labels) -> list[tuple[int, ...]]:
    """Returns the indices of each image's labels: one, or those in ascending order."""
    if labels.ndim == 1:
        return [(index,) for index in labels.tolist()]
    return [tuple(np.flatnonzero(row).tolist()) for row in labels]


def counts(labels: Labels, num_labels: int) -> npt.NDArray[np.int64]:
    """Returns the number of images that have each label, `[num_labels]`."""
    counted: npt.NDArray[np.int64]
    if labels.ndim == 1:
        counted = np.bincount(labels, minlength=num_labels)
    else:
        counted = labels.sum(axis=0, dtype=np.int64)
    return counted


def rarest(labels: Labels) -> npt.NDArray[np.int32]:
    """Returns the class of each image: that of several labels which fewest images have.

    Of equally rare ones it is the first. Images without labels are a class of their
    own, after all others.
    """
    classes: npt.NDArray[np.int32] = labels.astype(np.int32)
    if labels.ndim > 1:
        num_labels = labels.shape[1]
        order = np.argsort(counts(labels, num_labels), kind="stable")
        by_rarity = np.pad(labels[:, order], [(0, 0), (0, 1)], constant_values=1)
        order = np.append(order, num_labels).astype(np.int32)
        classes = order[by_rarity.argmax(axis=1)]
    return classes
