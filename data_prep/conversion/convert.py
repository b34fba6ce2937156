"""Runs a plan: worker processes write the shards, the main one offsets and manifest."""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import numpy as np

from data_prep import worker_processes
from data_prep.conversion import shard_reports, shards
from data_prep.conversion.plan import Plan, SplitPlan, encoder, shard_jobs
from data_prep.records import class_mixing, manifest, schema
from resnet.base.errors import UserError


def reported_shards(plan: Plan) -> set[str]:
    """Returns the paths of the shards that earlier runs reported as finished."""
    return {
        path
        for path in plan.paths
        if shard_reports.report_path(plan.root, path).exists()
    }


def find_finished(
    plan: Plan, num_processes: int, report_images: Callable[[int], None]
) -> set[str]:
    """Returns the paths of the shards that earlier runs finished, and reads each shard.

    Args:
        plan: Plan of the conversion.
        num_processes: Number of worker processes, at least 1.
        report_images: Function that is called with the number of images of each
            finished shard.
    """
    reported = reported_shards(plan)
    finished: set[str] = set()

    def keep(report: shard_reports.ShardReport | None) -> None:
        if report is not None:
            finished.add(report.path)
            report_images(report.num_images)

    if reported:
        worker_processes.run(
            shards.check_shard,
            shard_jobs(plan, left_out=set(plan.paths) - reported),
            min(num_processes, len(reported)),
            keep,
        )
    return finished


def write_shards(
    plan: Plan,
    finished: Collection[str],
    num_processes: int,
    report_images: Callable[[int], None],
) -> None:
    """Writes the unfinished shards; their bytes don't depend on `num_processes`.

    Args:
        plan: Plan of the conversion.
        finished: Paths of the shards to leave as they are.
        num_processes: Number of worker processes, at least 1; each writes whole shards.
        report_images: Function that is called with the number of images of each shard
            when the shard is written.

    Raises:
        UserError: If an image can't be decoded or a worker process died.
        OSError: If an image can't be read or a shard can't be written.
    """
    num_missing = len(plan.paths) - len(finished)
    if num_missing:
        worker_processes.run(
            shards.write_shard,
            shard_jobs(plan, finished),
            min(num_processes, num_missing),
            lambda report: report_images(report.num_images),
        )


def finish(plan: Plan) -> manifest.Manifest:
    """Writes offsets and manifest, removes the shard reports, returns the manifest.

    Everything is computed from the shard reports, so a resumed conversion gives the
    same files as an uninterrupted one.

    Raises:
        UserError: If a shard report is missing or corrupt.
    """
    converted_counts: Counter[str] = Counter()
    splits = {
        split.name: _finish_split(plan, split, converted_counts)
        for split in plan.splits
    }
    complete = manifest.Manifest(
        class_names=plan.raw.class_names,
        class_descriptions=plan.raw.class_descriptions,
        first_label=schema.FIRST_LABEL,
        splits=splits,
        image_format=plan.image_format,
        source={
            **plan.raw.description,
            "shuffle_seed": plan.options.shuffle_seed,
            "apply_exif_orientation": plan.options.apply_exif_orientation,
            "on_bad_image": "skip" if plan.options.skip_bad_images else "fail",
            "converted_images": dict(sorted(converted_counts.items())),
            "num_ignored_files": plan.raw.num_ignored_files,
            "ignored_files": plan.raw.ignored_kinds,
            **encoder(plan.image_format),
        },
    )
    manifest.write(complete, plan.root)
    shutil.rmtree(plan.root / schema.CONVERSION_FOLDER, ignore_errors=True)
    return complete


def emptied_classes(
    plan: Plan, written: manifest.Manifest
) -> Iterator[tuple[str, str]]:
    """Yields the split and the name of each class whose images were all skipped."""
    for split in plan.splits:
        label_counts = written.splits[split.name].label_counts
        for index in np.unique(split.images.class_indices).tolist():
            if label_counts[index] == 0:
                yield split.name, plan.raw.class_names[index]


def _finish_split(
    plan: Plan, split: SplitPlan, converted_counts: Counter[str]
) -> manifest.Split:
    class_counts = np.zeros(
        (len(split.record_ranges), len(plan.raw.class_names)), np.int32
    )
    offsets = []
    skipped_images: list[manifest.SkippedImage] = []
    entries = []
    for index, path in enumerate(split.paths):
        report = shard_reports.read(plan.root, path)
        if report is None:
            raise UserError(
                f"the shard report {shard_reports.report_path(plan.root, path)} is"
                " missing or corrupt; rerun the same command to resume"
            )
        offsets.append(np.array(report.offsets, np.int64))
        class_counts[index, list(report.class_counts)] = list(
            report.class_counts.values()
        )
        skipped_images += report.skipped_images
        converted_counts.update(report.converted_counts)
        entries.append((path, report.num_records, report.num_bytes, report.sha256))
    split_counts = class_counts.sum(axis=0, dtype=np.int64)
    offsets_path, offsets_sha256 = manifest.write_offsets(
        plan.root, split.name, np.concatenate(offsets)
    )
    return manifest.Split(
        name=split.name,
        shards=tuple(
            manifest.Shard(
                *entry, class_mixing.class_mixing(counts.astype(np.int64), split_counts)
            )
            for entry, counts in zip(entries, class_counts, strict=True)
        ),
        label_counts=tuple(split_counts.tolist()),
        offsets_path=offsets_path,
        offsets_sha256=offsets_sha256,
        skipped_images=tuple(skipped_images),
    )
