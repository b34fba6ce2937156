"""Reads a whole record set again and finds what is not as it was written."""

import dataclasses
import hashlib
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from data_prep import worker_processes
from data_prep.errors import UserError
from data_prep.records import manifest, scan, tfrecord_format
from data_prep.records.manifest import RecordSet, Shard, Split
from data_prep.records.tfrecord_format import FOOTER_BYTES, HEADER_BYTES, CorruptRecord

_IMAGE_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}
_MOST_DAMAGES_OF_A_FILE = 100  # Where another file took its place, all are bad.


@dataclasses.dataclass(frozen=True)
class Damage:
    """One thing that is wrong with a file.

    Attributes:
        path: The file.
        offset: Where the record begins that it is about, in bytes; None if it is about
            the whole file.
        what: What is wrong.
    """

    path: str
    offset: int | None
    what: str

    def __str__(self) -> str:
        place = "" if self.offset is None else f", record at byte {self.offset:,}"
        return f"{self.path}{place}: {self.what}"


@dataclasses.dataclass(frozen=True)
class _Job:
    """One shard that is to be read; what its records must be.

    Attributes:
        split_name: Of its split.
        path: Of the file.
        shard: Its entry in the manifest.
        offsets: Where its records begin, `[num_records]`; None: not known.
    """

    split_name: str
    path: str
    shard: Shard
    offsets: npt.NDArray[np.int64] | None
    image_key: str
    label_key: str
    image_format: str
    first_label: int
    num_classes: int


@dataclasses.dataclass(frozen=True)
class _Finding:
    split_name: str
    num_records: int
    damages: list[Damage]
    label_counts: npt.NDArray[np.int64]


def verify(
    record_set: RecordSet,
    num_processes: int,
    report_records: Callable[[int], None],
) -> list[Damage]:
    """Reads every byte of a record set and returns what is wrong with it.

    Each record is found by its offset, so damage of one doesn't hide that of the next.
    Checked are sizes, both checksums of each record, that records lie end to end, that
    each is a labelled image with a beginning and an end, that labels are in their
    range and as many as they should be and, where the manifest has it and nothing else
    is wrong with a file, its SHA-256.

    Args:
        record_set: The set.
        num_processes: At least 1. Each reads whole shards, one record in memory.
        report_records: Called with the number of records of each shard that was read.

    Returns:
        The damages by path and offset; none if all is well.

    Raises:
        UserError: If a process died.
    """
    damages: list[Damage] = []
    jobs: list[_Job] = []
    counts = {}
    for name, split in record_set.manifest.splits.items():
        counts[name] = np.zeros(len(record_set.manifest.class_names), np.int64)
        offsets = None
        try:
            offsets = manifest.read_offsets(record_set, split)
        except UserError as error:
            path = record_set.index_dir / split.offsets_path
            damages.append(Damage(str(path), None, str(error)))
        jobs += _jobs(record_set, split, offsets)

    def take(finding: _Finding) -> None:
        damages.extend(finding.damages)
        counts[finding.split_name] += finding.label_counts
        report_records(finding.num_records)

    worker_processes.run(_check_shard, jobs, min(num_processes, len(jobs)), take)
    if not damages:  # Else the counts can't be right.
        damages += _check_label_counts(record_set, counts)
    return sorted(damages, key=lambda d: (d.path, -1 if d.offset is None else d.offset))


def _check_label_counts(
    record_set: RecordSet, counts: dict[str, npt.NDArray[np.int64]]
) -> list[Damage]:
    contents = record_set.manifest
    damages = []
    for name, split in contents.splits.items():
        wrong = np.flatnonzero(counts[name] != split.label_counts)
        if len(wrong):
            label = int(wrong[0])
            what = (
                f"it says that {split.label_counts[label]:,} {name} examples are of"
                f" class {contents.class_names[label]!r}; there are"
                f" {counts[name][label]:,}. {len(wrong):,} classes differ"
            )
            path = str(record_set.index_dir / manifest.FILE_NAME)
            damages.append(Damage(path, None, what))
    return damages


def _jobs(
    record_set: RecordSet, split: Split, offsets: npt.NDArray[np.int64] | None
) -> Iterator[_Job]:
    contents = record_set.manifest
    begin = 0
    for shard in split.shards:
        end = begin + shard.num_records
        yield _Job(
            split_name=split.name,
            path=str(record_set.records_dir / shard.path),
            shard=shard,
            offsets=None if offsets is None else offsets[begin:end],
            image_key=contents.image_key,
            label_key=contents.label_key,
            image_format=contents.image_format,
            first_label=contents.first_label,
            num_classes=len(contents.class_names),
        )
        begin = end


def _check_shard(job: _Job) -> _Finding:
    """Reads one shard; this is what a worker process runs."""
    counts = np.zeros(job.num_classes, np.int64)
    damages: list[Damage] = []
    try:
        with open(job.path, "rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes != job.shard.num_bytes:
                what = f"it has {num_bytes:,} bytes instead of {job.shard.num_bytes:,}"
                damages.append(Damage(job.path, None, what))
            digest = _check_records(job, file, damages, counts)
    except OSError as error:
        what = f"it can't be read ({error.strerror})"
        damages.append(Damage(job.path, None, what))
    else:
        if not damages and job.shard.sha256 not in (None, digest):
            what = (
                "it is another file than the one that was written: its records are"
                " whole, its SHA-256 is not that of the manifest"
            )
            damages.append(Damage(job.path, None, what))
    return _Finding(job.split_name, job.shard.num_records, _shortened(damages), counts)


def _check_records(
    job: _Job, file: BinaryIO, damages: list[Damage], counts: npt.NDArray[np.int64]
) -> str:
    """Adds to `damages` and to `counts`, and returns the SHA-256 of what was read."""
    digest = hashlib.sha256()
    offsets = job.offsets
    if offsets is None:
        offsets = _follow_lengths(file)
        if len(offsets) != job.shard.num_records:
            what = f"it has {len(offsets):,} records instead of"
            what += f" {job.shard.num_records:,}"
            damages.append(Damage(job.path, None, what))
    for offset, end in itertools.pairwise([*offsets.tolist(), job.shard.num_bytes]):
        file.seek(offset)
        record = file.read(end - offset)
        digest.update(record)
        try:
            label = _check_record(job, record)
        except ValueError as error:
            damages.append(Damage(job.path, offset, str(error)))
        else:
            counts[label - job.first_label] += 1
        if not record:
            break  # The file was cut; what follows is missing too.
    return digest.hexdigest()


def _check_record(job: _Job, record: bytes) -> int:
    """Returns a record's label.

    Args:
        job: The shard.
        record: Everything from the record's offset to the next one's.

    Raises:
        ValueError: What is wrong with it.
    """
    data = tfrecord_format.read_record(record, 0)
    num_bytes = HEADER_BYTES + len(data) + FOOTER_BYTES
    if num_bytes != len(record):
        raise ValueError(
            f"it ends after {num_bytes:,} bytes, and what follows should begin after"
            f" {len(record):,}"
        )
    features = tfrecord_format.parse_example(data, (job.image_key, job.label_key))
    label = scan.the_integer(features, job.label_key)
    if not 0 <= label - job.first_label < job.num_classes:
        raise ValueError(
            f"its label must be from {job.first_label} to"
            f" {job.first_label + job.num_classes - 1:,}; it is {label:,}"
        )
    encoded = scan.the_bytes(features, job.image_key)
    image_format = scan.image_format_of(encoded)
    if image_format != job.image_format:
        raise ValueError(
            f"its image must be in the format {job.image_format}; it is in"
            f" {image_format}"
        )
    end = _IMAGE_ENDS[image_format]
    if encoded[-len(end) :] != end:
        _decode(encoded)
    return label


def _decode(encoded: memoryview) -> None:
    """Decodes an image that doesn't end as it should; most such are good all the same.

    Raises:
        ValueError: If it is not good.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of broken metadata, which isn't read.
            with Image.open(io.BytesIO(encoded)) as image:
                image.load()
    except Exception as error:  # Pillow's decoders raise errors of any type.
        raise ValueError(f"its image can't be decoded: {error}") from error


def _follow_lengths(file: BinaryIO) -> npt.NDArray[np.int64]:
    """Returns where the records of a file begin, as far as their lengths are good."""
    num_bytes = os.fstat(file.fileno()).st_size
    offsets = []
    offset = 0
    while offset < num_bytes:
        offsets.append(offset)
        header = os.pread(file.fileno(), HEADER_BYTES, offset)
        try:
            length = tfrecord_format.record_length(header, offset)
        except CorruptRecord:
            break
        offset += HEADER_BYTES + length + FOOTER_BYTES
    return np.array(offsets, np.int64)


def _shortened(damages: list[Damage]) -> list[Damage]:
    """Returns the first damages of a file; all its records can be bad."""
    if len(damages) <= _MOST_DAMAGES_OF_A_FILE:
        return damages
    rest = len(damages) - _MOST_DAMAGES_OF_A_FILE
    path = damages[0].path
    more = Damage(path, None, f"{rest:,} more of its records are bad")
    return [*damages[:_MOST_DAMAGES_OF_A_FILE], more]
