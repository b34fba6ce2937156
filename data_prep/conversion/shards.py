"""Writes the record files of a set, one at a time; which images go into which."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Sequence

from data_prep import atomic_files
from data_prep.conversion import image_encoding, shard_reports
from data_prep.errors import UserError
from data_prep.records import manifest, tfrecord_format
from data_prep.sources.image_list import SourceImage

LEAST_EXAMPLES_PER_SHARD = 256  # Fewer make many small files for nothing.


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """One shard that is to be written.

    Attributes:
        root: Folder of the converted set.
        path: Posix path of the record file, relative to `root`; its folder must exist.
        images: The images in the order of the records.
        class_indices: The index of each image's class; its label is
            `tfrecord_format.FIRST_LABEL` more.
        apply_exif_orientation: Whether images are turned as their EXIF data says.
        skip_bad_images: Whether images that can't be decoded are left out. Otherwise
            they are errors.
    """

    root: str
    path: str
    images: Sequence[SourceImage]
    class_indices: Sequence[int]
    apply_exif_orientation: bool = False
    skip_bad_images: bool = False


@dataclasses.dataclass(frozen=True)
class ShardCheck:
    """One shard that may have been finished by an earlier run.

    Attributes:
        root: Folder of the converted set.
        path: Posix path of the record file, relative to `root`.
        num_images: How many images are to be in it.
        skip_bad_images: As in `ShardJob`.
    """

    root: str
    path: str
    num_images: int
    skip_bad_images: bool = False


def default_num_shards(num_examples: int, most: int) -> int:
    """Returns how many shards to make of a split: up to `most`, none of them tiny."""
    return max(1, min(most, num_examples // LEAST_EXAMPLES_PER_SHARD))


def split_evenly(num_examples: int, num_shards: int) -> list[range]:
    """Returns each shard's examples, contiguous, the larger shards first.

    Sizes differ by at most one.

    Args:
        num_examples: At least 0.
        num_shards: At least 1.
    """
    size, num_larger = divmod(num_examples, num_shards)
    starts = [index * size + min(index, num_larger) for index in range(num_shards + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def write_shard(job: ShardJob) -> shard_reports.ShardReport:
    """Writes one record file, which gets its name when it is whole, then its report.

    One image at a time is in memory.

    Raises:
        UserError: If an image can't be decoded, or none of them, when such images
            are left out.
        OSError: If an image can't be read or the shard can't be written.
    """
    offsets: list[int] = []
    num_bytes = 0
    class_counts: Counter[int] = Counter()
    converted_counts: Counter[str] = Counter()
    skipped_images: list[manifest.SkippedImage] = []
    digest = hashlib.sha256()
    with atomic_files.atomic_file(pathlib.Path(job.root, job.path)) as file:
        for source, class_index in zip(job.images, job.class_indices, strict=True):
            data = source.read()
            try:
                image = image_encoding.to_jpeg(
                    data, source.name, job.apply_exif_orientation
                )
            except UserError as error:
                if not job.skip_bad_images:
                    raise UserError(
                        f"{error} Or leave out such images: --on_bad_image=skip."
                    ) from error
                skipped_images.append(manifest.SkippedImage(source.name, str(error)))
                continue
            example = tfrecord_format.image_example(
                image.data,
                height=image.height,
                width=image.width,
                label=tfrecord_format.FIRST_LABEL + class_index,
                class_name=source.class_name,
                filename=source.filename,
            )
            record = tfrecord_format.frame_record(example)
            file.write(record)
            digest.update(record)
            offsets.append(num_bytes)
            num_bytes += len(record)
            class_counts[class_index] += 1
            if image.converted_from is not None:
                converted_counts[image.converted_from] += 1
        if not offsets:
            raise UserError(
                f"each record file must get an image that can be decoded; of the"
                f" {len(job.images)} of {job.path} none can: {skipped_images[0].reason}"
            )
    report = shard_reports.ShardReport(
        path=job.path,
        num_bytes=num_bytes,
        sha256=digest.hexdigest(),
        offsets=tuple(offsets),
        class_counts=dict(class_counts),
        converted_counts=dict(converted_counts),
        skipped_images=tuple(skipped_images),
    )
    shard_reports.write(job.root, report)
    return report


def check_shard(check: ShardCheck) -> shard_reports.ShardReport | None:
    """Returns the report of a shard that can be kept; None if it must be written.

    It is kept if its report is there and agrees with the file's size and content, and
    if it leaves out images only where that is asked for.
    """
    report = shard_reports.read(check.root, check.path)
    if report is None or report.num_images != check.num_images:
        return None
    if report.skipped_images and not check.skip_bad_images:
        return None  # Writing it again says which image it is.
    if not shard_reports.agrees_with_its_shard(check.root, report):
        return None
    return report


def num_bytes_kept(root: str | os.PathLike[str], paths: Sequence[str]) -> int:
    """Returns the bytes of the shards that have a report, without looking into them."""
    total = 0
    for path in paths:
        if shard_reports.report_path(root, path).exists():
            try:
                total += pathlib.Path(root, path).stat().st_size
            except OSError:
                continue  # Was removed: it is written again.
    return total
