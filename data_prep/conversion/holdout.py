"""Holds out a part of the training images for validation, by their content.

An image is held out if the first 64 bits of the SHA-256 of (seed, bytes of its file)
are below the fraction of 2^64. So the same files are chosen in each conversion, images
that are added later move no others, and files of the same bytes stay together.
"""

import dataclasses
import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from data_prep.conversion.plan import Options
from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources.image_list import ImageList, Source
from data_prep.worker_processes import Progress
from resnet.base.errors import UserError
from resnet.base.text import first_of

_CHUNK = 256  # Images read at most after Ctrl-C.

Digests = npt.NDArray[np.uint64]


def hold_out(source: Source, options: Options, num_threads: int) -> Source:
    """Returns a source whose training images are divided; reads all their files.

    Raises UserError if it has a validation split, or nothing can be held out.
    """
    if VALIDATION in source.splits:
        raise UserError(
            "--validation_fraction is for sources without a validation split; this one"
            f" has {len(source.splits[VALIDATION]):,} validation images. Leave the flag"
            " out, or name a --raw_data_dir with the training images alone."
        )
    images = source.splits[TRAIN]
    digests = _digests(images, options.shuffle_seed, num_threads)
    is_held = choose(digests, images.class_indices, options.validation_fraction)
    if not is_held.any():
        raise UserError(
            "--validation_fraction needs a class of at least two different images;"
            f" there is none among the {len(images):,}. Add images, or leave it out."
        )
    warnings = source.warnings
    not_held = np.setdiff1d(images.class_indices, images.class_indices[is_held])
    if len(not_held):
        names = first_of(repr(source.class_names[index]) for index in not_held)
        warnings += (
            "no validation images are held out of classes with one image, or copies of"
            f" one: {names}",
        )
    splits = {
        TRAIN: images.subset(np.flatnonzero(~is_held)),
        VALIDATION: images.subset(np.flatnonzero(is_held)),
    }
    return dataclasses.replace(source, splits=splits, warnings=warnings)


def choose(
    digests: Digests, class_indices: npt.NDArray[np.int32], fraction: float
) -> npt.NDArray[np.bool_]:
    """Returns whether each image is held out, by digests and classes `[num_images]`.

    Of a class of several images with none below the threshold, the one with the lowest
    digest is held out; of one with all below, that with the highest is not. Images of
    one digest stay together, also in different classes.
    """
    limit = np.uint64(fraction * 2.0**64)
    order = np.lexsort((digests, class_indices))
    ends = np.flatnonzero(np.diff(class_indices[order])) + 1
    classes = np.split(digests[order], ends)
    lowest = [own[0] for own in classes if limit <= own[0] < own[-1]]
    is_held = (digests < limit) | np.isin(digests, lowest)
    held = np.split(is_held[order], ends)
    kept = [own[-1] for own, of in zip(classes, held, strict=True) if of.all()]
    return is_held & ~np.isin(digests, kept)


def _digests(images: ImageList, seed: int, num_threads: int) -> Digests:
    prefix = hashlib.sha256(f"{seed}/".encode())

    def digest_of(index: int) -> int:
        digest = prefix.copy()
        digest.update(images[index].read())
        return int.from_bytes(digest.digest()[:8], "big")

    digests = np.empty(len(images), np.uint64)
    with (
        Progress(len(images), "images compared") as progress,
        ThreadPoolExecutor(num_threads) as threads,
    ):
        for first in range(0, len(images), _CHUNK):
            indices = range(len(images))[first : first + _CHUNK]
            digests[first : first + _CHUNK] = list(threads.map(digest_of, indices))
            progress.add(len(indices))
    return digests
