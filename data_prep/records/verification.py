"""Verifies a record set: reads every byte and lists corrupt files and records."""

import dataclasses
import hashlib
import io
import itertools
import os
import warnings
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from data_prep import worker_processes
from data_prep.records import manifest, tf_example, tfrecord
from data_prep.records.manifest import Manifest, RecordSet, Shard
from data_prep.records.tf_example import Features
from data_prep.records.tfrecord import FOOTER_BYTES, HEADER_BYTES
from resnet.base import regular_file
from resnet.base.errors import UserError

_IMAGE_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}
_MAX_RECORD_BYTES = 2**31  # The limit of protobuf's messages.
_MAX_PROBLEMS_PER_FILE = 100  # Every record of a file from another set is a problem.


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem of a file or of one of its records.

    Attributes:
        path: Path of the file.
        offset: Byte offset of the record; None if the whole file has the problem.
        what: Clause that describes the problem.
        count: Number of corrupt records or files that it stands for.
    """

    path: str
    offset: int | None
    what: str
    count: int = 1

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}{place}: {self.what}"


@dataclasses.dataclass(frozen=True)
class _Job:
    """One shard to read, with its entry in the manifest, which has no splits here."""

    split_name: str
    path: str
    shard: Shard
    offsets: npt.NDArray[np.int64] | None  # Of each record; None if unknown.
    contents: Manifest


@dataclasses.dataclass(frozen=True)
class _ShardResult:
    job: _Job
    problems: list[Problem]
    label_counts: npt.NDArray[np.int64]


def verify(
    record_set: RecordSet,
    num_processes: int,
    report_records: Callable[[int], None],
) -> list[Problem]:
    """Reads every byte of a record set and returns its problems.

    The records are found by their offsets, so that one corrupt record doesn't hide the
    next. The checks are: file sizes; both checksums of each record; no gap and no
    overlap between records; each record is an example with a label in range, the class
    name of that label if any, and an image with the start and end bytes of its format;
    the number of examples of each class; and, for a file without any other problem, the
    SHA-256 from the manifest.

    Args:
        num_processes: Number of worker processes, at least 1. Each process reads whole
            shards and keeps one record in memory.
        report_records: Function that is called with the number of records of each
            shard when the shard has been read.

    Returns:
        All problems, sorted by path and offset.

    Raises:
        UserError: If a worker process died.
    """
    contents = record_set.manifest
    problems: list[Problem] = []
    jobs: list[_Job] = []
    counts = {}
    for name, split in contents.splits.items():
        counts[name] = np.zeros(len(contents.class_names), np.int64)
        offsets = None
        try:
            offsets = manifest.read_offsets(record_set, split)
        except UserError as error:
            path = record_set.index_dir / split.offsets_path
            problems.append(Problem(str(path), None, str(error)))
        begin = 0
        for shard in split.shards:
            end = begin + shard.num_records
            jobs.append(
                _Job(
                    split_name=name,
                    path=str(record_set.records_dir / shard.path),
                    shard=shard,
                    offsets=None if offsets is None else offsets[begin:end],
                    contents=dataclasses.replace(contents, splits={}),
                )
            )
            begin = end

    def take(result: _ShardResult) -> None:
        problems.extend(result.problems)
        counts[result.job.split_name] += result.label_counts
        report_records(result.job.shard.num_records)

    worker_processes.run(_check_shard, jobs, min(num_processes, len(jobs)), take)
    if not problems:  # The counts of a corrupt set would differ anyway.
        problems += _check_label_counts(record_set, counts)
    return sorted(problems, key=_place)


def _place(problem: Problem) -> tuple[str, int]:
    return problem.path, -1 if problem.offset is None else problem.offset


def _check_label_counts(
    record_set: RecordSet, counts: dict[str, npt.NDArray[np.int64]]
) -> list[Problem]:
    contents = record_set.manifest
    problems = []
    for name, split in contents.splits.items():
        wrong = np.flatnonzero(counts[name] != split.label_counts)
        if len(wrong):
            label = int(wrong[0])
            what = (
                f"it states {split.label_counts[label]:,} {name} examples of class"
                f" {contents.class_names[label]!r}, the records contain"
                f" {counts[name][label]:,}; {len(wrong):,} classes differ"
            )
            path = str(record_set.index_dir / manifest.FILE_NAME)
            problems.append(Problem(path, None, what))
    return problems


def _check_shard(job: _Job) -> _ShardResult:
    """Reads one shard; runs in a worker process."""
    counts = np.zeros(len(job.contents.class_names), np.int64)
    problems: list[Problem] = []
    try:
        with regular_file.open_regular(job.path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes != job.shard.num_bytes:
                what = f"it has {num_bytes:,} bytes; expected {job.shard.num_bytes:,}"
                problems.append(Problem(job.path, None, what))
            digest = _check_records(job, file, problems, counts)
    except OSError as error:
        what = f"it can't be read ({error.strerror})"
        problems.append(Problem(job.path, None, what))
    else:
        if not problems and job.shard.sha256 not in (None, digest):
            what = (
                "its records are good, but its SHA-256 differs from the manifest's:"
                " it is not the file that was written"
            )
            problems.append(Problem(job.path, None, what))
    return _ShardResult(job, _shortened(problems), counts)


def _check_records(
    job: _Job, file: BinaryIO, problems: list[Problem], counts: npt.NDArray[np.int64]
) -> str:
    """Checks all records of a shard and returns the SHA-256 of their bytes."""
    digest = hashlib.sha256()
    offsets = job.offsets
    num_bytes = os.fstat(file.fileno()).st_size
    end_of_last = job.shard.num_bytes
    if offsets is None:
        offsets = _follow_lengths(file)
        end_of_last = num_bytes
        if len(offsets) != job.shard.num_records:
            what = f"it has {len(offsets):,} records; expected"
            what += f" {job.shard.num_records:,}"
            problems.append(Problem(job.path, None, what))
    for offset, end in itertools.pairwise([*offsets.tolist(), end_of_last]):
        length = max(0, min(end, num_bytes) - offset)
        if length > _MAX_RECORD_BYTES:
            what = f"it is {length:,} bytes long; at most {_MAX_RECORD_BYTES:,}"
            problems.append(Problem(job.path, offset, f"{what} can be read"))
            continue
        file.seek(offset)
        record = file.read(length)
        digest.update(record)
        try:
            label = _check_record(job, record)
        except ValueError as error:
            problems.append(Problem(job.path, offset, str(error)))
        else:
            counts[label - job.contents.first_label] += 1
        if not record:
            break  # The file is truncated here.
    return digest.hexdigest()


def _check_record(job: _Job, record: bytes) -> int:
    """Returns the label of a good record, the bytes up to the next one's offset.

    Raises:
        ValueError: If the record is corrupt or not as expected.
    """
    data = tfrecord.read_record(record, 0)
    num_bytes = HEADER_BYTES + len(data) + FOOTER_BYTES
    if num_bytes != len(record):
        raise ValueError(
            f"it is {num_bytes:,} bytes long, but the next record begins after"
            f" {len(record):,} bytes"
        )
    features = tf_example.parse_example(data)
    contents = job.contents
    label = tf_example.integer_of(features, contents.label_key)
    first_label, num_classes = contents.first_label, len(contents.class_names)
    if not 0 <= label - first_label < num_classes:
        raise ValueError(
            f"its label is {label:,}; expected {first_label} to"
            f" {first_label + num_classes - 1:,}"
        )
    _check_class_name(features, label, contents.class_names[label - first_label])
    encoded = tf_example.bytes_of(features, contents.image_key)
    image_format = tf_example.image_format_of(encoded)
    if image_format != contents.image_format:
        raise ValueError(
            f"its image is a {image_format.upper()} file; expected"
            f" {contents.image_format.upper()}"
        )
    if not encoded.endswith(_IMAGE_ENDS[image_format]):  # As in some good images.
        _decode(encoded)
    return label


def _check_class_name(features: Features, label: int, expected: str) -> None:
    """Raises ValueError if a record has another class name than that of its label."""
    if tf_example.SYNSET in features and features[tf_example.SYNSET].bytes_list.value:
        name = tf_example.text_of(features, tf_example.SYNSET)
        if name and name != expected:
            raise ValueError(
                f"its class is {name!r}, but its label {label:,} is that of"
                f" {expected!r}"
            )


def _decode(encoded: bytes) -> None:
    """Raises ValueError if an image can't be decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About corrupt metadata, which isn't used.
            with Image.open(io.BytesIO(encoded)) as image:
                image.load()
    except Exception as error:  # Pillow's decoders raise errors of any type.
        raise ValueError(f"its image can't be decoded: {error}") from error


def _follow_lengths(file: BinaryIO) -> npt.NDArray[np.int64]:
    """Returns the offsets of a file's records up to the first corrupt length, int64."""
    num_bytes = os.fstat(file.fileno()).st_size
    offsets = []
    offset = 0
    while offset < num_bytes:
        offsets.append(offset)
        header = os.pread(file.fileno(), HEADER_BYTES, offset)
        try:
            length = tfrecord.record_length(header)
        except ValueError:
            break
        offset += HEADER_BYTES + length + FOOTER_BYTES
    return np.array(offsets, np.int64)


def _shortened(problems: list[Problem]) -> list[Problem]:
    """Returns the first problems of a file and a count of the others."""
    if len(problems) <= _MAX_PROBLEMS_PER_FILE:
        return problems
    rest = len(problems) - _MAX_PROBLEMS_PER_FILE
    path = problems[0].path
    more = Problem(path, None, f"{rest:,} more of its records are corrupt", rest)
    return [*problems[:_MAX_PROBLEMS_PER_FILE], more]
