"""Measures the work on data that grows with the number of pictures, at ImageNet's.

python eval/benchmarking/imagenet_scale.py --work_dir=DIR

Makes 1,281,167 names for tiny pictures in DIR (hard links, in 1,000 class folders),
converts them to 1,024 record files and prints the time and the memory that the
converter needed; then what a training start costs: the checks, and the first batch of
the first epoch, of the last, and of a step in the middle. DIR needs some 2 GB and is
kept; a second call converts no more.
"""

import io
import os
import pathlib
import subprocess
import sys
import time

if __package__ in (None, ""):  # Run by its path: the packages lie two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from absl import flags
from PIL import Image

from data_prep import errors
from data_prep.errors import UserError
from data_prep.records import manifest
from data_prep.records.manifest import RecordSet

FLAGS = flags.FLAGS
flags.DEFINE_string("work_dir", None, "Folder for names and records.")
flags.DEFINE_integer("num_images", 1_281_167, "Names; ImageNet's number.")
flags.DEFINE_integer("num_processes", 2, "Of the conversion.")
flags.DEFINE_integer("rounds", 5, "How often each start is measured.")

NUM_CLASSES = 1000
IMAGE_SIZE = 32
BATCH_SIZE = 256
_CONVERTER = (
    pathlib.Path(__file__).parents[2] / "data_prep" / "imagenet_to_tfrecords.py"
)
_SAMPLE_SECONDS = 0.1


def main() -> None:
    """Measures and prints, or raises `UserError`."""
    if not FLAGS.work_dir:
        raise UserError("--work_dir is required and must name a folder.")
    if FLAGS.num_images < NUM_CLASSES:
        raise UserError(
            f"--num_images must be at least {NUM_CLASSES}; got {FLAGS.num_images}."
        )
    work_dir = pathlib.Path(FLAGS.work_dir).resolve()
    if not (work_dir / "records" / manifest.FILE_NAME).exists():
        make_names(work_dir / "raw")
        convert(work_dir / "raw", work_dir / "records")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    record_set = measure_checks(str(work_dir / "records"))
    measure_starts(record_set)


def make_names(raw_data_dir: pathlib.Path) -> None:
    """Makes `--num_images` names in class folders, each class's of one tiny picture."""
    for index in range(NUM_CLASSES):
        folder = raw_data_dir / "train" / f"class{index:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        color = (index % 250, index // 4, 100)
        Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), color).save(file, "JPEG")
        first = folder / "0.JPEG"
        first.write_bytes(file.getvalue())
        for number in range(index + NUM_CLASSES, FLAGS.num_images, NUM_CLASSES):
            name = folder / f"class{index:03d}_{number}.JPEG"
            if not name.exists():
                os.link(first, name)


def convert(raw_data_dir: pathlib.Path, records: pathlib.Path) -> None:
    """Runs the converter; prints its time and the memory of each of its processes."""
    start = time.perf_counter()
    converter = subprocess.Popen(
        [
            sys.executable,
            str(_CONVERTER),
            f"--raw_data_dir={raw_data_dir}",
            f"--local_scratch_dir={records}",
            f"--num_processes={FLAGS.num_processes}",
        ]
    )
    peaks: dict[int, int] = {}
    while converter.poll() is None:
        for process in _with_children(converter.pid):
            peaks[process] = max(peaks.get(process, 0), _peak_memory(process))
        time.sleep(_SAMPLE_SECONDS)
    if converter.returncode:
        raise UserError(f"the conversion ended with exit code {converter.returncode}")
    seconds = time.perf_counter() - start
    megabytes = sorted((peak / 1e6 for peak in peaks.values()), reverse=True)
    print(
        f"conversion: {FLAGS.num_images / seconds:,.0f} images/s, listing included;"
        f" largest memory of its processes in MB:"
        f" {', '.join(f'{one:.0f}' for one in megabytes)}"
    )


def measure_checks(data_dir: str) -> RecordSet:
    """Prints how long the checks before the first step take; returns the set."""
    seconds = []
    for _ in range(FLAGS.rounds):
        start = time.perf_counter()
        record_set = manifest.load(data_dir, "train")
        manifest.check_files(record_set, "train")
        manifest.check_mixing(record_set.manifest.splits["train"])
        seconds.append(time.perf_counter() - start)
    split = record_set.manifest.splits["train"]
    print(
        f"checks of {split.num_examples:,} examples in {len(split.shards):,} files:"
        f" {_spread(seconds)}"
    )
    return record_set


def measure_starts(record_set: RecordSet) -> None:
    """Prints how long it takes from the checks to the first batch."""
    from resnet.config.phases import Phase
    from resnet.data import batches, record_files
    from resnet.data.example_shard import shard_of_rank

    num_examples = record_set.manifest.splits["train"].num_examples
    num_steps = 90 * num_examples // BATCH_SIZE
    phase = Phase(name="measured", num_steps=num_steps, image_size=IMAGE_SIZE)

    def first_batch(step: int) -> None:
        records = record_files.open_split(record_set, "train")
        share = shard_of_rank(records, [tuple(range(len(records.paths)))], 0)
        train_batches = batches.train_batches(
            share,
            [phase],
            seed=0,
            local_batch_size=BATCH_SIZE,
            num_classes=len(record_set.manifest.class_names),
            num_parallel_calls=1,
            start_step=step,
        )
        next(train_batches)

    first_batch(0)  # TensorFlow starts its threads.
    an_epoch = num_examples // BATCH_SIZE
    for title, step in (
        ("first epoch", 0),
        ("last epoch", 89 * an_epoch),
        ("in the middle", 45 * an_epoch + an_epoch // 3),
    ):
        seconds = []
        for _ in range(FLAGS.rounds):
            start = time.perf_counter()
            first_batch(step)
            seconds.append(time.perf_counter() - start)
        print(
            f"from the open set to the first batch of {BATCH_SIZE},"
            f" {title} (step {step:,}): {_spread(seconds)}"
        )


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 2]
    return f"{middle:.2f} s ({ordered[0]:.2f} to {ordered[-1]:.2f}, n={len(ordered)})"


def _with_children(pid: int) -> list[int]:
    """Returns a process and the processes that it started and those started by them."""
    found = [pid]
    for process in found:
        for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:  # It has ended.
                continue
    return found


def _peak_memory(pid: int) -> int:
    """Returns the most memory that a process has had, in bytes; 0 if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line[:6] == "VmHWM:"]
    return 1024 * int(peaks[0]) if peaks else 0


def run() -> None:
    """Runs the program."""
    errors.run(main)


if __name__ == "__main__":
    run()
