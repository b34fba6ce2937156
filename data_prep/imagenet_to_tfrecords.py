"""Converts a folder of labelled pictures into record files for training.

python data_prep/imagenet_to_tfrecords.py --raw_data_dir RAW --local_scratch_dir RECORDS

RAW holds train/<class>/* and, in validation/, either class folders or pictures whose
classes are in RAW/synset_labels.txt. RECORDS gets train/train-00000-of-01024 and so on,
offsets files and, last, manifest.json.
"""

import os
import pathlib
import signal
import sys
import time
from collections import Counter
from types import TracebackType

import numpy as np
import PIL
import tqdm
from absl import flags

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import atomic_files, errors, manifest, shards, sources, tfrecord_format

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "raw_data_dir", None, "Folder with the pictures, in train/ and validation/."
)
flags.DEFINE_string("local_scratch_dir", None, "Folder for the records.")
flags.DEFINE_integer(
    "train_shards", 0, "Number of train record files; 0 = by size.", lower_bound=0
)
flags.DEFINE_integer(
    "validation_shards",
    0,
    "Number of validation record files; 0 = by size.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "num_processes", 0, "Worker processes; 0 = one a usable core.", lower_bound=0
)
flags.DEFINE_integer("shuffle_seed", 0, "Seed of the order of the records.")

SMALL_SET = 100_000  # Images; below, the hint names a recipe with a small batch.
MOST_SHARDS = {  # ImageNet's, as in the TPU scripts.
    tfrecord_format.TRAIN: 1024,
    tfrecord_format.VALIDATION: 128,
}


def main() -> None:
    """Converts what the flags say, or raises `errors.UserError`."""
    raw_data_dir = _required("raw_data_dir")
    root = pathlib.Path(os.path.abspath(_required("local_scratch_dir")))
    if (root / manifest.FILE_NAME).exists():
        raise errors.UserError(
            f"{root} holds a finished set already ({manifest.FILE_NAME}); remove it or"
            " give another --local_scratch_dir"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # A worker needs no pool of it.
    try:
        raw = sources.list_raw_folder(raw_data_dir)
        jobs = {split: _plan_split(raw, split, root) for split in raw.splits}
        _prepare_folders(root, jobs)
        try:
            summary = _convert(raw, jobs, root)
        finally:
            _remove_leftovers(root, jobs)
    except OSError as error:
        raise errors.UserError(
            f"converting {raw_data_dir} to {root} failed: {error}"
        ) from error
    print(summary)


def run() -> None:
    """Runs the program, as its console script does."""
    # A batch system's end of time cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        errors.parse_flags(sys.argv)
        main()
    except errors.UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(errors.EXIT_CODE)
    except KeyboardInterrupt:
        print("error: interrupted, the set is not complete", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _required(name: str) -> str:
    value: str | None = FLAGS[name].value
    if not value:
        raise errors.UserError(f"--{name} is needed: {FLAGS[name].help}")
    return value


def _plan_split(
    raw: sources.RawFolder, split: str, root: pathlib.Path
) -> list[shards.ShardJob]:
    images = sources.shuffled(raw.splits[split], FLAGS.shuffle_seed, split)
    num_shards = FLAGS[f"{split}_shards"].value or shards.default_num_shards(
        len(images), MOST_SHARDS[split]
    )
    if num_shards > len(images):
        raise errors.UserError(
            f"--{split}_shards must be at most the number of {split} pictures,"
            f" {len(images)}; got {num_shards}"
        )
    labels = {
        name: tfrecord_format.FIRST_LABEL + index
        for index, name in enumerate(raw.class_names)
    }
    return [
        shards.ShardJob(
            root=str(root),
            path=f"{split}/{tfrecord_format.shard_name(split, index, num_shards)}",
            images=[(images[i], labels[images[i].class_name]) for i in examples],
        )
        for index, examples in enumerate(shards.split_evenly(len(images), num_shards))
    ]


def _prepare_folders(
    root: pathlib.Path, jobs: dict[str, list[shards.ShardJob]]
) -> None:
    for split in jobs:
        (root / split).mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root, jobs)
    for split, split_jobs in jobs.items():
        # Shards of another conversion would mix with ours for whoever reads `train-*`.
        ours = {root / job.path for job in split_jobs}
        strangers = sorted(set((root / split).iterdir()) - ours)
        if strangers:
            raise errors.UserError(
                f"{root / split} must hold nothing but files of this conversion; it"
                f" holds {strangers[0].name!r}. Empty it or give another"
                " --local_scratch_dir"
            )


def _remove_leftovers(
    root: pathlib.Path, jobs: dict[str, list[shards.ShardJob]]
) -> None:
    for folder in (root, *(root / split for split in jobs)):
        atomic_files.remove_leftovers(folder)


def _convert(
    raw: sources.RawFolder, jobs: dict[str, list[shards.ShardJob]], root: pathlib.Path
) -> str:
    """Writes the whole set and returns a summary of it for the user."""
    all_jobs = [job for split_jobs in jobs.values() for job in split_jobs]
    num_images = sum(len(images) for images in raw.splits.values())
    num_processes = min(
        FLAGS.num_processes or len(os.sched_getaffinity(0)), len(all_jobs)
    )
    start_time = time.perf_counter()
    with _Progress(num_images) as progress:
        written = shards.write_shards(all_jobs, num_processes, progress.add)
    seconds = time.perf_counter() - start_time

    remaining = iter(written)
    splits = {
        split: _finish_split(raw, split, [next(remaining) for _ in split_jobs], root)
        for split, split_jobs in jobs.items()
    }
    num_converted = sum(shard.num_converted for shard in written)
    manifest.write(
        manifest.Manifest(
            class_names=raw.class_names,
            first_label=tfrecord_format.FIRST_LABEL,
            splits=splits,
            source={
                "raw_data_dir": os.path.abspath(FLAGS.raw_data_dir),
                "shuffle_seed": FLAGS.shuffle_seed,
                "num_converted_images": num_converted,
                "num_ignored_files": raw.num_ignored_files,
                "pillow_version": PIL.__version__,  # It encoded the converted ones.
            },
        ),
        root,
    )

    num_bytes = sum(shard.shard.num_bytes for shard in written)
    parts = [
        f"{split.name}: {split.num_examples:,} images in {len(split.shards):,} shards"
        for split in splits.values()
    ]
    program = "eval/resnet_eval.py"
    if tfrecord_format.TRAIN in splits:
        program = "resnet/resnet_main.py"
        if num_images < SMALL_SET:
            program += " --recipe=imagenette"
    return "\n".join(
        (
            *parts,
            f"{len(raw.class_names):,} classes, {num_bytes:,} bytes;"
            f" {num_converted:,} images turned into RGB JPEG,"
            f" {raw.num_ignored_files:,} files ignored",
            f"{num_images / seconds:,.0f} images/s with {num_processes} processes",
            f"records: {root}",
            f"next:    python {program} --data_dir={root} --model_dir=MODEL",
        )
    )


def _finish_split(
    raw: sources.RawFolder,
    split: str,
    written: list[shards.WrittenShard],
    root: pathlib.Path,
) -> manifest.Split:
    offsets_path, offsets_sha256 = manifest.write_offsets(
        root, split, np.concatenate([shard.offsets for shard in written])
    )
    counts = Counter(image.class_name for image in raw.splits[split])
    return manifest.Split(
        name=split,
        shards=tuple(shard.shard for shard in written),
        label_counts=tuple(counts[name] for name in raw.class_names),
        offsets_path=offsets_path,
        offsets_sha256=offsets_sha256,
    )


class _Progress:
    """A bar on a terminal; elsewhere a line whenever another tenth is done."""

    def __init__(self, num_images: int) -> None:
        self._num_images = num_images
        self._num_done = 0
        self._start_time = time.perf_counter()
        self._bar = tqdm.tqdm(
            total=num_images, unit=" images", disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def add(self, num_images: int) -> None:
        """Counts images that are done."""
        tenths_before = 10 * self._num_done // self._num_images
        self._num_done += num_images
        self._bar.update(num_images)
        tenths = 10 * self._num_done // self._num_images
        if self._bar.disable and tenths > tenths_before:
            rate = self._num_done / (time.perf_counter() - self._start_time)
            print(
                f"{10 * tenths} %: {self._num_done:,} of {self._num_images:,} images,"
                f" {rate:,.0f} images/s",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    run()
