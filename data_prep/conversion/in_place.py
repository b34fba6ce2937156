"""Makes the index of images that training reads where they are, without conversion.

Example i is the image that record i of a conversion would hold, so that both give the
same batches. Each image is read once, for its checksum, and must be of a kind that
records hold as it is.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from data_prep import worker_processes
from data_prep.conversion import convert, shards
from data_prep.conversion.plan import Plan, SplitPlan
from data_prep.images.image_encoding import Encoding
from data_prep.records import image_sizes, labels, manifest, record_index
from data_prep.records.class_mixing import class_mixing
from data_prep.records.manifest import Shard, SkippedImage
from data_prep.sources.image_list import ImageList, SourceImage, files_digest
from resnet.base.errors import UserError

_CHUNK = 512  # Images of a job.


@dataclasses.dataclass(frozen=True)
class _Job:
    split: str
    first: int  # The index of the first of the images in their list.
    images: Sequence[SourceImage]
    encoding: Encoding
    skip_bad_images: bool


@dataclasses.dataclass(frozen=True)
class _Read:
    """What was read of the images of a job."""

    job: _Job
    num_bytes: list[int]  # Of each image; 0 if it is skipped.
    checksums: list[int]
    skipped: list[SkippedImage]
    num_ignored_orientations: int


def write(
    plan: Plan, num_processes: int, report_images: Callable[[int], None]
) -> manifest.Manifest:
    """Reads the images of a plan, and writes their index and the manifest.

    Raises UserError if an image can't be decoded or used as it is, or changes
    meanwhile.
    """
    images_dir = str(plan.source.description["raw_data_dir"])
    for split in plan.splits:
        _check_source(split.images, images_dir)
    num_labels = len(plan.source.class_names) if plan.source.multi_label else 0
    entries = {}
    for split in plan.splits:
        rows = split.images.rows
        lengths = np.diff(rows["filename_end"], prepend=0)[rows["num_bytes"] < 0]
        longest = int(lengths.max(initial=0))  # Bytes of the longest name of a file.
        kind = record_index.image_index_type(longest, num_labels)
        entries[split.name] = np.zeros(len(split.images), kind)
    skipped: dict[str, list[SkippedImage]] = {split.name: [] for split in plan.splits}
    counts: Counter[str] = Counter()

    def take(part: _Read) -> None:
        rows = slice(part.job.first, part.job.first + len(part.job.images))
        entries[part.job.split][rows]["num_bytes"] = part.num_bytes
        entries[part.job.split][rows]["crc32c"] = part.checksums
        skipped[part.job.split] += part.skipped
        counts[convert.IGNORED_ORIENTATIONS] += part.num_ignored_orientations
        report_images(len(part.job.images))

    before = _states(plan)
    worker_processes.run(_read, _jobs(plan), num_processes, take)
    if _states(plan) != before:
        raise UserError(
            "images must not change while their index is made; some have. Rerun the"
            " same command."
        )
    splits = {
        split.name: _write_split(plan, split, entries[split.name], skipped[split.name])
        for split in plan.splits
    }
    keys = {
        name: shards.content_key(of["num_bytes"].astype(np.uint64), of["crc32c"])
        for name, of in entries.items()
    }
    side = image_sizes.median_side_of(
        (
            split.images[index].read()
            for index in split.order[records]
            if entries[split.name]["num_bytes"][index]
        )
        for split in plan.splits
        for records in split.record_ranges
    )
    written = convert.manifest_of(plan, splits, side, counts, before, keys, images_dir)
    manifest.write(written, plan.root)
    shutil.rmtree(plan.root / manifest.CONVERSION_FOLDER, ignore_errors=True)
    return written


def _check_source(images: ImageList, images_dir: str) -> None:
    """Raises UserError unless the images are files, or parts of files, of a folder."""
    if images.image_key is not None or images.pixels is not None:
        raise UserError(
            "--in_place is for image files and archives of these; this source has"
            f" {'records' if images.image_key else 'pixels without a format'}. Leave"
            " the flag out."
        )
    for path in images.containers:
        if not pathlib.Path(path).is_relative_to(images_dir):
            raise UserError(
                f"--in_place needs all images in {images_dir}; {path} is elsewhere."
                " Name the folder of all: --raw_data_dir=FOLDER."
            )


def _states(plan: Plan) -> list[str]:
    return [files_digest(job.images) for job in plan.shard_jobs()]


def _jobs(plan: Plan) -> Iterator[_Job]:
    """Yields the jobs in the order of the source, in which files are read fastest."""
    for split in plan.splits:
        for first in range(0, len(split.images), _CHUNK):
            chosen = range(first, min(first + _CHUNK, len(split.images)))
            yield _Job(
                split.name,
                first,
                [split.images[index] for index in chosen],
                plan.encoding,
                plan.options.on_bad_image == "skip",
            )


def _read(job: _Job) -> _Read:
    """Reads the images of a job; runs in a worker process."""
    part = _Read(job, [], [], [], 0)
    num_ignored_orientations = 0
    for image in job.images:
        data = image.read()
        stored = shards.store(data, image.name, job.encoding, job.skip_bad_images)
        if isinstance(stored, SkippedImage):
            part.skipped.append(stored)
            part.num_bytes.append(0)
            part.checksums.append(0)
            continue
        if stored.converted_from is not None:
            raise UserError(
                f"--in_place needs images that are used as they are; {image.name} would"
                f" be re-encoded ({stored.converted_from}). Leave the flag out, which"
                " converts the images to records."
            )
        part.num_bytes.append(len(data))
        part.checksums.append(google_crc32c.value(data))
        num_ignored_orientations += stored.ignores_orientation
    return dataclasses.replace(part, num_ignored_orientations=num_ignored_orientations)


def _write_split(
    plan: Plan,
    split: SplitPlan,
    entries: npt.NDArray[Any],
    skipped: Sequence[SkippedImage],
) -> manifest.Split:
    """Writes the index of a split, in the order of records, and returns the split."""
    rows, images_dir = split.images.rows, plan.source.description["raw_data_dir"]
    entries["offset"] = rows["offset"]
    record_index.set_labels(entries, split.images.labels)
    entries["shard"] = rows["container"]
    is_file = rows["num_bytes"] < 0
    for number in np.flatnonzero(is_file).tolist():
        entries["name"][number] = os.fsencode(split.images[number].filename)
    index = entries[split.order]
    index = index[index["num_bytes"] > 0]
    if not len(index):
        raise UserError(
            f"none of the {len(entries):,} {split.name} images can be decoded; the"
            f" first error: {skipped[0].reason}"
        )
    present, index["shard"] = np.unique(index["shard"], return_inverse=True)
    num_classes = len(plan.source.class_names)
    of_images = record_index.labels_of(index)
    counts = labels.counts(of_images, num_classes)
    ends = np.cumsum(np.bincount(index["shard"]))
    examples_of_shards = np.split(np.argsort(index["shard"], kind="stable"), ends[:-1])
    shards_of_split = []
    for container, examples in zip(present.tolist(), examples_of_shards, strict=True):
        path = split.images.containers[container]
        part = index[examples]
        num_bytes = int(part["num_bytes"].sum())
        if os.path.isfile(path):
            num_bytes = os.stat(path).st_size
        of_classes = labels.counts(of_images[examples], num_classes)
        shards_of_split.append(
            Shard(
                pathlib.Path(os.path.relpath(path, images_dir)).as_posix(),
                len(part),
                num_bytes,
                hashlib.sha256(
                    examples.astype("<i8").tobytes() + part.tobytes()
                ).hexdigest(),
                class_mixing(of_classes, counts) if of_images.ndim == 1 else 0.0,
            )
        )
    path, sha256 = record_index.write_index(plan.root, split.name, index)
    return manifest.Split(
        split.name,
        tuple(shards_of_split),
        tuple(counts.tolist()),
        path,
        sha256,
        tuple(skipped),
    )
