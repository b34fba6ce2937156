"""Verifies a record set: reads every byte and lists corrupt files and records."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy.typing as npt

from data_prep import worker_processes
from data_prep.images import image_encoding
from data_prep.records import in_place, labels, record_index, tf_example, tfrecord
from data_prep.records.manifest import Manifest, RecordSet, Shard
from data_prep.records.tfrecord import FOOTER_BYTES, HEADER_BYTES
from resnet.base import regular_file
from resnet.base.errors import UserError

_IMAGE_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}
_MAX_RECORD_BYTES = 2**31  # The limit of protobuf's messages.
_MAX_PROBLEMS_PER_FILE = 100  # Every record of a file from another set is a problem.


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem of a file or of one of its records."""

    path: str  # Of the file.
    offset: int | None  # Of the record in bytes; None if the whole file is meant.
    what: str  # Clause that describes the problem.
    count: int = 1  # Number of corrupt records or files that it stands for.

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}{place}: {self.what}"


@dataclasses.dataclass(frozen=True)
class _Job:
    """One shard to read, with its entry in the manifest, which has no splits here."""

    path: str
    shard: Shard
    index: npt.NDArray[Any] | None  # The part of the shard; None if unknown.
    contents: Manifest


def verify(
    record_set: RecordSet, num_processes: int, report_records: Callable[[int], None]
) -> list[Problem]:
    """Reads every byte of a record set and returns its problems by path and offset.

    The records are found by their offsets, so that one corrupt record doesn't hide the
    next. The checks are: file sizes; both checksums of each record; no gap and no
    overlap between records; labels as in the index, class names, start and end of the
    image; and, for a file without any other problem, the SHA-256.

    `report_records` is called with the number of records of each shard that was read.
    """
    contents = record_set.manifest
    problems: list[Problem] = []
    jobs: list[_Job] = []
    for split in contents.splits.values():
        index = None
        try:
            index = record_index.read_index(record_set, split)
        except UserError as error:
            path = record_set.index_dir / split.index_path
            problems.append(Problem(str(path), None, str(error)))
        shard_of_example = record_index.shard_of_example(split, index)
        for number, shard in enumerate(split.shards):
            jobs.append(
                _Job(
                    path=str(record_set.records_dir / shard.path),
                    shard=shard,
                    index=None if index is None else index[shard_of_example == number],
                    contents=dataclasses.replace(contents, splits={}),
                )
            )

    def take(result: tuple[_Job, list[Problem]]) -> None:
        job, problems_of_shard = result
        problems.extend(problems_of_shard)
        report_records(job.shard.num_records)

    worker_processes.run(_check_shard, jobs, min(num_processes, len(jobs)), take)

    def place(problem: Problem) -> tuple[str, int]:
        return problem.path, -1 if problem.offset is None else problem.offset

    return sorted(problems, key=place)


def _check_shard(job: _Job) -> tuple[_Job, list[Problem]]:
    """Returns a shard's problems; runs in a worker process."""
    problems: list[Problem] = []

    def note(what: str, offset: int | None = None) -> None:
        problems.append(Problem(job.path, offset, what))

    if job.contents.images_dir:
        _check_images(job, note)
        return job, problems
    try:
        with regular_file.open_regular(job.path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes != job.shard.num_bytes:
                note(f"it has {num_bytes:,} bytes; expected {job.shard.num_bytes:,}")
            digest = _check_records(job, file, note)
    except OSError as error:
        note(f"it can't be read ({error.strerror})")
    else:
        if not problems and job.shard.sha256 != digest:
            note(
                "its records are good, but its SHA-256 differs from the manifest's:"
                " it is not the file that was written"
            )
    num_more = len(problems) - _MAX_PROBLEMS_PER_FILE
    if num_more > 0:
        what = f"{num_more:,} more of its records are corrupt"
        problems[_MAX_PROBLEMS_PER_FILE:] = [Problem(job.path, None, what, num_more)]
    return job, problems


def _check_images(job: _Job, note: Callable[[str, int | None], None]) -> None:
    """Checks the images in place of a shard: their bytes and their ends."""
    for entry in () if job.index is None else job.index:
        try:
            encoded = in_place.read(job.path, entry)
            _check_end(job.contents, encoded)
        except (OSError, ValueError) as error:
            note(f"{in_place.name_of(entry)}: {error}", int(entry["offset"]))


def _check_records(
    job: _Job, file: BinaryIO, note: Callable[[str, int | None], None]
) -> str:
    """Checks all records of a shard and returns the SHA-256 of their bytes."""
    digest = hashlib.sha256()
    num_bytes = os.fstat(file.fileno()).st_size
    expected_labels: list[tuple[int, ...]] | None = None
    if job.index is None:
        bounds = [*_follow_lengths(file), num_bytes]
        if (num_records := len(bounds) - 1) != job.shard.num_records:
            expected = f"expected {job.shard.num_records:,}"
            note(f"it has {num_records:,} records; {expected}", None)
    else:
        bounds = [*job.index["offset"].tolist(), job.shard.num_bytes]
        expected_labels = labels.indices_of(record_index.labels_of(job.index))
    for number, (offset, end) in enumerate(itertools.pairwise(bounds)):
        length = max(0, min(end, num_bytes) - offset)
        if length > _MAX_RECORD_BYTES:
            what = f"it is {length:,} bytes long; at most {_MAX_RECORD_BYTES:,}"
            note(f"{what} can be read", offset)
            continue
        file.seek(offset)
        record = file.read(length)
        digest.update(record)
        try:
            of_record = _check_record(job.contents, record)
            if expected_labels and expected_labels[number] != of_record:
                raise ValueError(
                    f"it has the classes {of_record}, and {expected_labels[number]} in"
                    " the index"
                )
        except ValueError as error:
            note(str(error), offset)
        if not record:
            break  # The file is truncated here.
    return digest.hexdigest()


def _follow_lengths(file: BinaryIO) -> Iterator[int]:
    """Yields the offsets of a file's records up to the first corrupt length."""
    num_bytes = os.fstat(file.fileno()).st_size
    offset = 0
    while offset < num_bytes:
        yield offset
        header = os.pread(file.fileno(), HEADER_BYTES, offset)
        try:
            length = tfrecord.record_length(header)
        except ValueError:
            return
        offset += HEADER_BYTES + length + FOOTER_BYTES


def _check_record(contents: Manifest, record: bytes) -> tuple[int, ...]:
    """Returns the classes of a good record, the bytes up to the next one's offset.

    Raises ValueError if the record is corrupt or not as expected.
    """
    data = tfrecord.read_record(record, 0)
    num_bytes = HEADER_BYTES + len(data) + FOOTER_BYTES
    if num_bytes != len(record):
        raise ValueError(
            f"it is {num_bytes:,} bytes long, but the next record begins after"
            f" {len(record):,} bytes"
        )
    features = tf_example.parse_example(data)
    classes, encoded = contents.labels_and_image(features)
    names = tf_example.class_names_of(features)
    known = [contents.class_names[index] for index in classes]
    if names and names != known:
        numbers = (str(contents.first_label + index) for index in classes)
        raise ValueError(
            f"its class is {', '.join(map(repr, names))}, but its label"
            f" {', '.join(numbers)} is that of {', '.join(map(repr, known))}"
        )
    _check_end(contents, encoded)
    return tuple(classes)


def _check_end(contents: Manifest, encoded: bytes) -> None:
    """Raises an error if an image can't be decoded, unless it ends as it should."""
    if not encoded.endswith(_IMAGE_ENDS[contents.image_format]):  # Some are good.
        image_encoding.Encoding(contents.image_format).store(encoded, "its image")
