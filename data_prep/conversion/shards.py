"""Writes and checks single shards (record files); divides examples into shards."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Sequence

from data_prep.conversion import image_encoding, shard_reports
from data_prep.records import manifest, schema, tfrecord
from data_prep.sources.image_list import SourceImage, files_digest
from resnet.base import atomic_files
from resnet.base.errors import UserError

MIN_EXAMPLES_PER_SHARD = 256  # Smaller shards only add files.


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """One shard to write, or to check if an earlier run has written it.

    Attributes:
        root: Root folder of the record set.
        path: POSIX path of the record file relative to `root`; its folder must exist.
        images: Source images in record order.
        class_indices: Class index of each image; the label is the class index plus
            `schema.FIRST_LABEL`.
        apply_exif_orientation: Whether to rotate and flip images by their EXIF
            orientation.
        skip_bad_images: Whether to skip images that can't be decoded; otherwise they
            are errors.
        image_format: Format of the stored images, "jpeg" or "png".
    """

    root: str
    path: str
    images: Sequence[SourceImage]
    class_indices: Sequence[int]
    apply_exif_orientation: bool = False
    skip_bad_images: bool = False
    image_format: str = "jpeg"


def default_num_shards(num_examples: int, max_shards: int) -> int:
    """Returns the number of shards of a split, at most `max_shards`."""
    return max(1, min(max_shards, num_examples // MIN_EXAMPLES_PER_SHARD))


def split_evenly(num_examples: int, num_shards: int) -> list[range]:
    """Returns the contiguous range of examples of each shard, larger shards first.

    The sizes differ by at most one.

    Args:
        num_examples: Number of examples, at least 0.
        num_shards: Number of shards, at least 1.
    """
    size, num_larger = divmod(num_examples, num_shards)
    starts = [index * size + min(index, num_larger) for index in range(num_shards + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def write_shard(job: ShardJob) -> shard_reports.ShardReport:
    """Writes one record file atomically, then its report, and returns the report.

    Only one image at a time is in memory.

    Raises:
        UserError: If an image can't be decoded; with `skip_bad_images`, if no image
            can be decoded.
        OSError: If an image can't be read or the shard can't be written.
    """
    offsets: list[int] = []
    num_bytes = 0
    class_counts: Counter[int] = Counter()
    converted_counts: Counter[str] = Counter()
    skipped_images: list[manifest.SkippedImage] = []
    digest = hashlib.sha256()
    encode = (
        image_encoding.to_png if job.image_format == "png" else image_encoding.to_jpeg
    )
    # Taken before reading: an image that is replaced meanwhile has another digest.
    source_digest = files_digest(job.images)
    with atomic_files.atomic_file(pathlib.Path(job.root, job.path)) as file:
        for source, class_index in zip(job.images, job.class_indices, strict=True):
            data = source.read()
            try:
                image = encode(data, source.name, job.apply_exif_orientation)
            except UserError as error:
                if not job.skip_bad_images:
                    raise UserError(
                        f"{error} Or skip such images: --on_bad_image=skip. If one is"
                        " removed instead, the conversion has to start over."
                    ) from error
                skipped_images.append(manifest.SkippedImage(source.name, str(error)))
                continue
            example = schema.image_example(
                image.data,
                height=image.height,
                width=image.width,
                label=schema.FIRST_LABEL + class_index,
                class_name=source.class_name,
                filename=source.filename,
                image_format=job.image_format,
                is_oriented=job.apply_exif_orientation,
            )
            record = tfrecord.frame_record(example)
            file.write(record)
            digest.update(record)
            offsets.append(num_bytes)
            num_bytes += len(record)
            class_counts[class_index] += 1
            if image.converted_from is not None:
                converted_counts[image.converted_from] += 1
        if not offsets:
            raise UserError(
                f"none of the {len(job.images)} images of shard {job.path} can be"
                f" decoded; the first error: {skipped_images[0].reason} Or convert"
                " with fewer shards into another --local_scratch_dir."
            )
    report = shard_reports.ShardReport(
        path=job.path,
        num_bytes=num_bytes,
        sha256=digest.hexdigest(),
        offsets=tuple(offsets),
        class_counts=dict(class_counts),
        converted_counts=dict(converted_counts),
        skipped_images=tuple(skipped_images),
        source_digest=source_digest,
    )
    shard_reports.write(job.root, report)
    return report


def check_shard(job: ShardJob) -> shard_reports.ShardReport | None:
    """Returns the report of a finished shard; None if the shard must be written again.

    A shard is finished if its report exists and matches the file's size and SHA-256, if
    the files of its images have not changed since, and if it contains all images or
    `skip_bad_images` is set.
    """
    report = shard_reports.read(job.root, job.path)
    if report is None or report.num_images != len(job.images):
        return None
    if report.skipped_images and not job.skip_bad_images:
        return None  # Writing the shard again reports the bad image.
    try:
        if report.source_digest != files_digest(job.images):
            return None
    except OSError:
        return None  # Writing the shard again reports the missing image.
    if not shard_reports.matches_shard(job.root, report):
        return None
    return report


def num_bytes_kept(root: str | os.PathLike[str], paths: Sequence[str]) -> int:
    """Returns the total size of the shards that have a report, in bytes."""
    total = 0
    for path in paths:
        if shard_reports.report_path(root, path).exists():
            try:
                total += pathlib.Path(root, path).stat().st_size
            except OSError:
                continue  # The shard was removed; it is written again.
    return total
