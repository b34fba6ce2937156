"""Writes and checks single shards (record files), each with a report.

The report is a JSON file in RECORDS/.conversion, written after the shard has its final
name. A resumed conversion keeps the shards that agree with their reports, if the images
that they were made from have not changed.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import google_crc32c

from data_prep.images.image_encoding import EncodedImage, Encoding
from data_prep.records import manifest, tf_example, tfrecord
from data_prep.sources.image_list import SourceImage, files_digest
from resnet.base import atomic_files, json_file, regular_file
from resnet.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """One shard to write, or to check if an earlier run has written it."""

    root: str  # Root folder of the record set.
    path: str  # POSIX path of the record file in `root`; its folder must exist.
    images: Sequence[SourceImage]  # In record order.
    class_indices: Sequence[Sequence[int]]  # Of each image, mostly one.
    class_names: tuple[str, ...]  # Of all classes.
    encoding: Encoding
    skip_bad_images: bool = False  # Whether to skip images that can't be decoded.


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """The content of one finished shard."""

    path: str  # As in `manifest.Shard`, like `num_bytes` and `sha256`.
    num_bytes: int
    sha256: str
    offsets: tuple[int, ...]  # Byte offset of each record.
    stored: tuple[int, ...]  # Places of their images among those of the shard.
    content_keys: tuple[int, ...]  # `content_key` of each stored image's file.
    converted_counts: dict[str, int]  # Re-encoded images by original kind, as "PNG".
    num_ignored_orientations: int  # Images that aren't rotated as their EXIF tells.
    skipped_images: tuple[manifest.SkippedImage, ...]
    source_digest: str  # `files_digest` of the images assigned to the shard.

    @property
    def num_images(self) -> int:
        """Number of images assigned to the shard, including skipped ones."""
        return len(self.offsets) + len(self.skipped_images)


def store(
    data: bytes, name: str, encoding: Encoding, skip_bad_images: bool
) -> EncodedImage | manifest.SkippedImage:
    """Returns an image as a set stores it, or why it is skipped.

    Raises UserError if it can't be decoded and isn't to be skipped.
    """
    try:
        return encoding.store(data, name)
    except UserError as error:
        if not skip_bad_images:
            raise UserError(
                f"{error} Or skip such images: --on_bad_image=skip. If one is removed"
                " instead, the conversion has to start over."
            ) from error
        return manifest.SkippedImage(name, str(error))


def content_key(num_bytes: Any, checksum: Any) -> Any:
    """Returns a number that files of other bytes don't share, but by a rare accident.

    Its upper half is the size and its lower the CRC-32C, which costs much less time
    than a SHA-256. Sizes and checksums may be arrays of uint64.
    """
    return num_bytes << 32 | checksum


def write_shard(job: ShardJob) -> ShardReport:
    """Writes one record file atomically, then its report, and returns the report.

    Only one image at a time is in memory. Raises UserError if an image can't be decoded
    or, with `skip_bad_images`, if none can.
    """
    offsets: list[int] = []
    num_bytes = 0
    stored: list[int] = []
    content_keys: list[int] = []
    converted_counts: Counter[str] = Counter()
    num_ignored_orientations = 0
    skipped_images: list[manifest.SkippedImage] = []
    digest = hashlib.sha256()
    # Taken before reading: an image that is replaced meanwhile has another digest.
    source_digest = files_digest(job.images)
    with atomic_files.atomic_file(pathlib.Path(job.root, job.path)) as file:
        for place, source in enumerate(job.images):
            data = source.read()
            image = store(data, source.name, job.encoding, job.skip_bad_images)
            if isinstance(image, manifest.SkippedImage):
                skipped_images.append(image)
                continue
            classes = job.class_indices[place]
            example = tf_example.image_example(
                image.data,
                height=image.height,
                width=image.width,
                labels=[tf_example.FIRST_LABEL + index for index in classes],
                class_names=[job.class_names[index] for index in classes],
                filename=source.filename,
                image_format=job.encoding.image_format,
                is_oriented=job.encoding.apply_exif_orientation,
            )
            record = tfrecord.frame_record(example)
            file.write(record)
            digest.update(record)
            offsets.append(num_bytes)
            num_bytes += len(record)
            stored.append(place)
            content_keys.append(content_key(len(data), google_crc32c.value(data)))
            num_ignored_orientations += image.ignores_orientation
            if image.converted_from is not None:
                converted_counts[image.converted_from] += 1
        if not offsets:
            raise UserError(
                f"none of the {len(job.images)} images of shard {job.path} can be"
                f" decoded; the first error: {skipped_images[0].reason} Or convert"
                " with fewer shards into another --local_scratch_dir."
            )
    report = ShardReport(
        path=job.path,
        num_bytes=num_bytes,
        sha256=digest.hexdigest(),
        offsets=tuple(offsets),
        stored=tuple(stored),
        content_keys=tuple(content_keys),
        converted_counts=dict(converted_counts),
        num_ignored_orientations=num_ignored_orientations,
        skipped_images=tuple(skipped_images),
        source_digest=source_digest,
    )
    fields = dataclasses.asdict(report)
    sealed = {"report": fields, "sha256": json_digest(fields)}
    atomic_files.atomic_write_bytes(
        report_path(job.root, job.path), json.dumps(sealed).encode()
    )
    return report


def check_shard(job: ShardJob) -> ShardReport | None:
    """Returns the report of a finished shard; None if the shard must be written again.

    Its report must match the file, the files of its images must not have changed since,
    and it contains all images unless `skip_bad_images` is set.
    """
    report = read_report(job.root, job.path)
    if report is None or report.num_images != len(job.images):
        return None
    if report.skipped_images and not job.skip_bad_images:
        return None  # Writing the shard again reports the bad image.
    try:
        if report.source_digest != files_digest(job.images):
            return None
        digest = regular_file.sha256(pathlib.Path(job.root, job.path))
    except OSError:
        return None  # Writing the shard again reports a missing image.
    return report if digest == report.sha256 else None


def changed_since_read(job: ShardJob) -> list[str]:
    """Returns a shard's path, in a list, if images have changed since it read them."""
    report = read_report(job.root, job.path)
    with contextlib.suppress(OSError):
        if report is None or report.source_digest == files_digest(job.images):
            return []
    return [job.path]


def report_path(root: str | os.PathLike[str], shard_path: str) -> pathlib.Path:
    """Returns the path of a shard's report; `root` is the folder of the set."""
    name = f"{pathlib.PurePosixPath(shard_path).name}.json"
    return pathlib.Path(root, manifest.CONVERSION_FOLDER, name)


def read_report(root: str | os.PathLike[str], shard_path: str) -> ShardReport | None:
    """Returns the report of a shard, or None if it is missing or corrupt."""
    try:
        path = report_path(root, shard_path)
        sealed = json_file.read(path, dict, "a report of a finished shard")
        report = json_file.instance(ShardReport, sealed.get("report"))
    except UserError:
        return None
    is_whole = json_digest(dataclasses.asdict(report)) == sealed.get("sha256")
    return report if is_whole and report.path == shard_path else None


def json_digest(value: Any) -> str:
    """Returns the SHA-256 of a value's JSON text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
