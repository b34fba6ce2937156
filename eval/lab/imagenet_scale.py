"""Measures the costs that grow with the number of images, at ImageNet's size.

python eval/lab/imagenet_scale.py --work_dir=DIR
python eval/lab/imagenet_scale.py --work_dir=DIR --num_images=100000

Makes 1,281,167 file names of tiny images in DIR (hard links in 1,000 class
folders), converts them to 1,024 record files, and prints the converter's time
and memory. Then it prints the time that training needs at its start: for the
checks, and for the first batch in the first epoch, in the last epoch and in the
middle of training. DIR needs about 2 GB and is kept; a second call reuses the
converted records.
"""

import functools
import io
import os
import pathlib
import subprocess
import sys
import time

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from absl import flags
from PIL import Image

from data_prep.records import class_mixing, manifest
from data_prep.records.manifest import RecordSet
from resnet.base import errors
from resnet.base.errors import UserError

FLAGS = flags.FLAGS

NUM_CLASSES = 1000
IMAGE_SIZE = 32
BATCH_SIZE = 256
_CONVERTER = (
    pathlib.Path(__file__).parents[2] / "data_prep" / "imagenet_to_tfrecords.py"
)
_SAMPLE_SECONDS = 0.1


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program.

    It is called when the program starts, not when it is imported, since other programs
    define flags of the same names.
    """
    define_integer = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    flags.DEFINE_string(
        "work_dir",
        None,
        "Folder for the images and the record files.",
        flag_values=flag_values,
    )
    define_integer("num_images", 1_281_167, "Images; by default ImageNet's number.")
    define_integer("num_processes", 2, "Number of processes of the converter.")
    define_integer("rounds", 5, "Number of repetitions of each measurement.")


def main() -> None:
    """Measures and prints the costs, or raises `UserError`."""
    if not FLAGS.work_dir:
        raise UserError("--work_dir is required and must name a folder.")
    if FLAGS.num_images < NUM_CLASSES:
        raise UserError(
            f"--num_images must be at least {NUM_CLASSES}; got {FLAGS.num_images}."
        )
    if FLAGS.rounds < 1:
        raise UserError(f"--rounds must be at least 1; got {FLAGS.rounds}.")
    work_dir = pathlib.Path(FLAGS.work_dir).resolve()
    if not (work_dir / "records" / manifest.FILE_NAME).exists():
        make_names(work_dir / "raw")
        convert(work_dir / "raw", work_dir / "records")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    record_set = measure_checks(str(work_dir / "records"))
    measure_starts(record_set)


def make_names(raw_data_dir: pathlib.Path) -> None:
    """Makes `--num_images` files; those of a class are links to one tiny image."""
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
    """Runs the converter; prints its rate and the peak memory of its processes."""
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
        raise UserError(f"the converter failed with exit code {converter.returncode}")
    seconds = time.perf_counter() - start
    megabytes = sorted((peak / 1e6 for peak in peaks.values()), reverse=True)
    print(
        f"conversion: {FLAGS.num_images / seconds:,.0f} images/s, including listing;"
        " peak memory of its processes in MB:"
        f" {', '.join(f'{peak:.0f}' for peak in megabytes)}"
    )


def measure_checks(data_dir: str) -> RecordSet:
    """Prints the time of the checks before the first step; returns the record set."""
    seconds = []
    for _ in range(FLAGS.rounds):
        start = time.perf_counter()
        record_set = manifest.load(data_dir, "train")
        manifest.check_files(record_set, "train")
        class_mixing.check_mixing(record_set.manifest.splits["train"])
        seconds.append(time.perf_counter() - start)
    split = record_set.manifest.splits["train"]
    print(
        f"checks of {split.num_examples:,} examples in {len(split.shards):,} files:"
        f" {_spread(seconds)}"
    )
    return record_set


def measure_starts(record_set: RecordSet) -> None:
    """Prints the time from the opened record set to the first batch."""
    from resnet.config.phases import Phase
    from resnet.data import batches, record_files
    from resnet.data.example_shard import shard_of_rank

    num_examples = record_set.manifest.splits["train"].num_examples
    num_steps = 90 * num_examples // BATCH_SIZE
    phase = Phase(name="measured", num_steps=num_steps, image_size=IMAGE_SIZE)

    def first_batch(step: int) -> None:
        records = record_files.open_split(record_set, "train")
        shard = shard_of_rank(records, [tuple(range(len(records.paths)))], 0)
        train_batches = batches.train_batches(
            shard,
            [phase],
            seed=0,
            local_batch_size=BATCH_SIZE,
            num_classes=len(record_set.manifest.class_names),
            num_parallel_calls=1,
            start_step=step,
        )
        next(train_batches)

    first_batch(0)  # Warm-up: TensorFlow starts its threads.
    steps_per_epoch = num_examples // BATCH_SIZE
    for title, step in (
        ("first epoch", 0),
        ("last epoch", 89 * steps_per_epoch),
        ("in the middle", 45 * steps_per_epoch + steps_per_epoch // 3),
    ):
        seconds = []
        for _ in range(FLAGS.rounds):
            start = time.perf_counter()
            first_batch(step)
            seconds.append(time.perf_counter() - start)
        print(
            f"from the opened record set to the first batch of {BATCH_SIZE},"
            f" {title} (step {step:,}): {_spread(seconds)}"
        )


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 2]
    return f"{middle:.2f} s ({ordered[0]:.2f} to {ordered[-1]:.2f}, n={len(ordered)})"


def _with_children(pid: int) -> list[int]:
    """Returns the ids of a process and all its descendants."""
    found = [pid]
    for process in found:
        for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:  # It has ended.
                continue
    return found


def _peak_memory(pid: int) -> int:
    """Returns the peak memory of a process in bytes; 0 if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line[:6] == "VmHWM:"]
    return 1024 * int(peaks[0]) if peaks else 0


def run() -> None:
    """Runs the program."""
    define_flags(FLAGS)
    errors.run(main)


if __name__ == "__main__":
    run()
