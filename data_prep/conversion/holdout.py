"""Holds out a part of the training images for validation, by their content or group.

An image is held out if its digest, the first 64 bits of the SHA-256 of (seed, bytes of
its file), is below the fraction of 2^64, or if digest * N / 2^64, rounded down, is its
fold's index of N. So the same files are chosen in each conversion, images that are
added later move no others, and files of the same bytes stay together. If groups are
known, their names replace the bytes. An image with several labels counts as one of the
label that the fewest images have.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from data_prep.conversion.plan import Options
from data_prep.records import labels
from data_prep.records.manifest import TRAIN, VALIDATION
from data_prep.sources.image_list import ImageList, Source
from data_prep.worker_processes import Progress
from resnet.base.errors import UserError
from resnet.base.text import first_of

_CHUNK = 256  # Images read at most after Ctrl-C.
_MOST_FOLDS = 1_000
_ONE_IMAGE = " with one image, or copies of one"

Digests = npt.NDArray[np.uint64]


def hold_out(source: Source, options: Options, num_threads: int) -> Source:
    """Returns a source whose training images are divided; may read all their files.

    Raises UserError if it has a validation split, or nothing can be held out.
    """
    fold = parse_fold(options.fold) if options.fold else None
    if VALIDATION in source.splits:
        flag = "fold" if fold else "validation_fraction"
        raise UserError(
            f"--{flag} is for sources without a validation split; this one"
            f" has {len(source.splits[VALIDATION]):,} validation images. Leave the flag"
            " out, or name a --raw_data_dir with the training images alone."
        )
    images = source.splits[TRAIN]
    digest_of = _digest_of(options.shuffle_seed)
    if source.groups:
        of_group = {group: digest_of(group.encode()) for group in {*source.groups}}
        digests = np.array([of_group[group] for group in source.groups], np.uint64)
    else:
        digests = _image_digests(images, digest_of, num_threads)
    kind = "groups" if source.groups else "images"
    if fold:
        is_held = in_fold(digests, *fold)
    else:
        classes = labels.rarest(images.labels)
        is_held = choose(digests, classes, options.validation_fraction)
    if is_held.all() or not is_held.any():
        what = f"--fold={options.fold} needs {kind} inside and outside of the fold"
        if not fold:
            what = (
                f"--validation_fraction needs a class of at least two different {kind}"
            )
        raise UserError(
            f"{what}; there are none among the {len(images):,} images. Add images, or"
            " leave it out."
        )
    warnings = source.warnings
    splits = {
        TRAIN: images.subset(np.flatnonzero(~is_held)),
        VALIDATION: images.subset(np.flatnonzero(is_held)),
    }
    for split, side in ((VALIDATION, "validation"), (TRAIN, "training")):
        is_lacking = (images.label_counts() > 0) & (splits[split].label_counts() == 0)
        if len(lacking := np.flatnonzero(is_lacking)):
            names = first_of(repr(source.class_names[index]) for index in lacking)
            why = " with one group" if source.groups else _ONE_IMAGE
            why = "" if fold else why
            warnings += (f"there are no {side} images of classes{why}: {names}",)
    return dataclasses.replace(source, splits=splits, warnings=warnings)


def check(options: Options, group_column: str | None) -> None:
    """Raises UserError if the flags that say what is held out contradict each other."""
    if options.fold:
        parse_fold(options.fold)
    if options.fold and options.validation_fraction:
        raise UserError(
            f"set --fold={options.fold} or"
            f" --validation_fraction={options.validation_fraction:g}, not both"
        )
    if group_column and not (options.fold or options.validation_fraction):
        raise UserError(
            f"--group_column={group_column} is for images that are held out; set also"
            " --validation_fraction or --fold"
        )


def parse_fold(text: str) -> tuple[int, int]:
    """Returns K and N of "K/N", or raises UserError."""
    if re.fullmatch("[0-9]{1,4}/[0-9]{1,4}", text):
        fold, num_folds = map(int, text.split("/"))
        if 1 <= fold <= num_folds and 2 <= num_folds <= _MOST_FOLDS:
            return fold, num_folds
    raise UserError(
        f"--fold must be K/N with 1 <= K <= N and 2 <= N <= {_MOST_FOLDS:,}, such as"
        f" 2/5; got {text!r}"
    )


def in_fold(digests: Digests, fold: int, num_folds: int) -> npt.NDArray[np.bool_]:
    """Returns whether each image is of a fold, from 1, by digests `[num_images]`."""
    count, half = np.uint64(num_folds), np.uint64(32)
    upper, lower = digests >> half, digests & np.uint64(2**32 - 1)
    # digest * N >> 64, without products of more than 64 bits.
    index: Digests = (upper * count + (lower * count >> half)) >> half
    return np.equal(index, np.uint64(fold - 1))


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


def _digest_of(seed: int) -> Callable[[bytes], int]:
    prefix = hashlib.sha256(f"{seed}/".encode())

    def digest_of(content: bytes) -> int:
        digest = prefix.copy()
        digest.update(content)
        return int.from_bytes(digest.digest()[:8], "big")

    return digest_of


def _image_digests(
    images: ImageList, digest_of: Callable[[bytes], int], num_threads: int
) -> Digests:
    def digest_at(index: int) -> int:
        return digest_of(images[index].read())

    digests = np.empty(len(images), np.uint64)
    with (
        Progress(len(images), "images compared") as progress,
        ThreadPoolExecutor(num_threads) as threads,
    ):
        for first in range(0, len(images), _CHUNK):
            indices = range(len(images))[first : first + _CHUNK]
            digests[first : first + _CHUNK] = list(threads.map(digest_at, indices))
            progress.add(len(indices))
    return digests
