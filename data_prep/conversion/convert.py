"""Runs a plan: worker processes write the shards, the main one offsets and manifest."""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from data_prep import worker_processes
from data_prep.conversion import shards
from data_prep.conversion.plan import Plan, SplitPlan
from data_prep.conversion.shards import ShardReport
from data_prep.records import image_sizes, manifest, tf_example, verified
from data_prep.records.class_mixing import ShardContent, write_split
from resnet.base.errors import UserError
from resnet.base.text import counted

# In the source of a manifest: of all shards' `source_digest`.
FILES_DIGEST = "files_sha256"
IGNORED_ORIENTATIONS = "ignored_exif_orientations"
REPEATED = "validation_images_in_training"  # The clause of the warning about them.

ContentKeys = npt.NDArray[np.uint64]  # `[num_images]`, in the order of the source.


def reported_shards(plan: Plan) -> set[str]:
    """Returns the paths of the shards that earlier runs reported as finished."""
    return {path for path in plan.paths if shards.report_path(plan.root, path).exists()}


def find_finished(
    plan: Plan, num_processes: int, report_images: Callable[[int], None]
) -> set[str]:
    """Returns the paths of the shards that earlier runs finished, and reports these."""
    others = set(plan.paths) - reported_shards(plan)
    finished: set[str] = set()

    def keep(report: ShardReport | None) -> None:
        if report is not None:
            finished.add(report.path)
            report_images(report.num_images)

    jobs = plan.shard_jobs(left_out=others)
    worker_processes.run(shards.check_shard, jobs, num_processes, keep)
    return finished


def write_shards(
    plan: Plan,
    finished: Collection[str],
    num_processes: int,
    report_images: Callable[[int], None],
) -> None:
    """Writes all shards but the finished ones, each in one worker process.

    Calls `report_images` with the number of images of each shard that is written.
    Raises UserError if an image can't be decoded or a worker process died, and OSError.
    """
    worker_processes.run(
        shards.write_shard,
        plan.shard_jobs(left_out=finished),
        num_processes,
        lambda report: report_images(report.num_images),
    )


def finish(plan: Plan, num_processes: int) -> manifest.Manifest:
    """Writes offsets and manifest, removes the shard reports, returns the manifest.

    Raises UserError if a report is missing or corrupt, or an image has changed since it
    was read, so that the set would mix images of two moments.
    """
    changed: list[str] = []
    worker_processes.run(
        shards.changed_since_read, plan.shard_jobs(), num_processes, changed.extend
    )
    if changed:
        raise UserError(
            "images must not change while they are converted; those of"
            f" {len(changed):,} of the {len(plan.paths):,} shards have, such as"
            f" {min(changed)}. Rerun the same command to convert these shards again."
        )
    counts: Counter[str] = Counter()
    states: list[str] = []
    keys = {s.name: np.zeros(len(s.images), np.uint64) for s in plan.splits}
    splits = {
        s.name: _finish_split(plan, s, counts, states, keys[s.name])
        for s in plan.splits
    }
    side = image_sizes.median_side(plan.root, plan.paths, tf_example.ENCODED)
    complete = manifest_of(plan, splits, side, counts, states, keys)
    manifest.write(complete, plan.root)
    verified.write_all(manifest.RecordSet(complete, plan.root, plan.root))
    shutil.rmtree(plan.root / manifest.CONVERSION_FOLDER, ignore_errors=True)
    return complete


def manifest_of(
    plan: Plan,
    splits: dict[str, manifest.Split],
    median_side: int,
    counts: Counter[str],
    states: Sequence[str],
    keys: Mapping[str, ContentKeys],
    images_dir: str = "",
) -> manifest.Manifest:
    """Returns the manifest of a set, of records or of images that stay in a folder.

    Counted are the converted images by kind and `IGNORED_ORIENTATIONS`; the states are
    the digests of the files of each shard, and the keys those of each split's images.
    """
    converted = {kind: counts[kind] for kind in sorted(counts)}
    num_ignored_orientations = converted.pop(IGNORED_ORIENTATIONS, 0)
    return manifest.Manifest(
        class_names=plan.source.class_names,
        class_descriptions=plan.source.class_descriptions,
        multi_label=plan.source.multi_label,
        first_label=0 if images_dir else tf_example.FIRST_LABEL,
        splits=splits,
        image_format=plan.encoding.image_format,
        depth_window=plan.encoding.depth_window,
        median_side=median_side,
        images_dir=images_dir,
        source={
            **plan.metadata(),
            FILES_DIGEST: shards.json_digest(states),
            "on_bad_image": plan.options.on_bad_image,
            "converted_images": converted,
            IGNORED_ORIENTATIONS: num_ignored_orientations,
            "num_ignored_files": plan.source.num_ignored_files,
            "ignored_files": plan.source.ignored_kinds,
            REPEATED: _repeated(plan, keys),
        },
    )


def _repeated(plan: Plan, keys: Mapping[str, ContentKeys]) -> str:
    """Returns a clause on validation images that are training images, too, or ""."""
    if not {manifest.TRAIN, manifest.VALIDATION} <= keys.keys():
        return ""
    images = {split.name: split.images for split in plan.splits}
    of_training, of_validation = keys[manifest.TRAIN], keys[manifest.VALIDATION]
    is_repeated = np.isin(of_validation, of_training) & (of_validation > 0)
    if not is_repeated.any():
        return ""
    first = int(is_repeated.argmax())
    same = int((of_training == of_validation[first]).argmax())
    of_all = counted(len(is_repeated), "validation image")
    return (
        f"{is_repeated.sum():,} of {of_all}, such as"
        f" {images[manifest.VALIDATION][first].name}, equal to"
        f" {images[manifest.TRAIN][same].name}"
    )


def _finish_split(
    plan: Plan,
    split: SplitPlan,
    counts: Counter[str],
    states: list[str],
    keys: ContentKeys,
) -> manifest.Split:
    """Returns a split, whose counts and states of images it adds to the others'.

    It sets the keys of its images, which stay 0 for those that were skipped.
    """
    reports, contents = [], []
    for path, records in zip(split.paths, split.record_ranges, strict=True):
        report = shards.read_report(plan.root, path)
        if report is None:
            raise UserError(
                f"the shard report {shards.report_path(plan.root, path)} is missing or"
                " corrupt; rerun the same command to resume"
            )
        reports.append(report)
        images = split.order[records.start : records.stop][list(report.stored)]
        contents.append(
            ShardContent(
                path=path,
                num_bytes=report.num_bytes,
                sha256=report.sha256,
                offsets=report.offsets,
                labels=split.images.labels[images],
            )
        )
        keys[images] = report.content_keys
        states.append(report.source_digest)
        counts.update(report.converted_counts)
        counts[IGNORED_ORIENTATIONS] += report.num_ignored_orientations
    skipped = tuple(image for report in reports for image in report.skipped_images)
    num_classes = len(plan.source.class_names)
    return write_split(plan.root, split.name, contents, num_classes, skipped)


def emptied_classes(
    plan: Plan, written: manifest.Manifest
) -> Iterator[tuple[str, str]]:
    """Yields the split and the name of each class whose images were all skipped."""
    for split in plan.splits:
        known = split.images.label_counts().tolist()
        counts = written.splits[split.name].label_counts
        names = plan.source.class_names
        for name, before, count in zip(names, known, counts, strict=True):
            if before and not count:
                yield split.name, name
