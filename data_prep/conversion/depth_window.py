"""Chooses the window of a set's images of 16 bits, by the samples of some of them."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from data_prep import worker_processes
from data_prep.images import depth, image_encoding
from data_prep.sources.image_list import ImageList, SourceImage
from data_prep.worker_processes import Progress
from resnet.base.errors import UserError

MOST_IMAGES = 1_000
_CHUNK = 16  # Images of a job.

Histogram = npt.NDArray[np.int64]  # The number of samples by value, `[65536]`.


def choose(
    images: ImageList,
    order: npt.NDArray[np.int64],
    skip_bad_images: bool,
    num_processes: int,
) -> tuple[int, ...]:
    """Returns the window that follows from images; () if none of them has 16 bits.

    It is that of the percentiles 0.1 and 99.9 of the samples of gray or colors of at
    most 1,000 images, evenly spaced in their order, `[num_images]`. Raises UserError,
    unless `skip_bad_images`, if one of these can't be decoded.
    """
    if images.pixels is not None:
        return ()
    num_chosen = min(len(order), MOST_IMAGES)
    places = np.arange(num_chosen) * len(order) // num_chosen
    chosen = [
        image
        for image in (images[index] for index in order[places].tolist())
        if image_encoding.may_be_deep(image.read_start())
    ]
    if not chosen:
        return ()
    total = np.zeros(depth.NUM_VALUES, np.int64)

    def take(part: tuple[int, Histogram]) -> None:
        nonlocal total
        total += part[1]
        progress.add(part[0])

    count = functools.partial(_histogram, skip_bad_images=skip_bad_images)
    chunks = (chosen[i : i + _CHUNK] for i in range(0, len(chosen), _CHUNK))
    with Progress(len(chosen), "images read for the depth window") as progress:
        worker_processes.run(count, chunks, num_processes, take)
    return percentiles(total) if total.any() else ()


def percentiles(histogram: Histogram) -> tuple[int, int]:
    """Returns the window of the percentiles 0.1 and 99.9 of samples, at least one.

    Each is the lowest value that this part of the samples doesn't exceed.
    """
    num_up_to = 1000 * np.cumsum(histogram)
    num_samples = int(num_up_to[-1]) // 1000
    low, high = np.searchsorted(num_up_to, [num_samples, 999 * num_samples]).tolist()
    high = max(high, 1)
    return min(low, high - 1), high


def _histogram(
    images: Sequence[SourceImage], skip_bad_images: bool
) -> tuple[int, Histogram]:
    """Returns the number of images and the histogram of those that have 16 bits."""
    total = np.zeros(depth.NUM_VALUES, np.int64)
    for image in images:
        try:
            colors = image_encoding.read_colors(image.read(), image.name)
        except UserError:
            if not skip_bad_images:
                raise
            continue
        if colors is not None:
            total += np.bincount(colors.ravel(), minlength=depth.NUM_VALUES)
    return len(images), total
