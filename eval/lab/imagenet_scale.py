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

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import psutil
from PIL import Image

from data_prep.records import class_mixing, manifest
from data_prep.records.manifest import RecordSet
from eval.benchmarking.jobs import spread
from resnet.base import cli, program
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting

NUM_CLASSES = 1000
IMAGE_SIZE = 32
BATCH_SIZE = 256
_ROOT = pathlib.Path(__file__).parents[2]
_CONVERTER = _ROOT / "data_prep" / "imagenet_to_tfrecords.py"
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class ScaleSettings:
    """What is converted and measured."""

    work_dir: str = setting("", "Folder for the images and the record files.")
    num_images: int = setting(1_281_167, "Images; by default ImageNet's number.")
    num_processes: int = setting(2, "Number of processes of the converter.")
    rounds: int = setting(5, "Number of repetitions of each measurement.", bounds=COUNT)


FLAGS: cli.Groups = (ScaleSettings,)


def main(argv: Sequence[str]) -> int:
    """Measures and prints the costs."""
    settings = cli.parse(argv, __doc__, FLAGS).of(ScaleSettings)
    if not settings.work_dir:
        raise UserError("--work_dir is required and must name a folder.")
    if settings.num_images < NUM_CLASSES:
        raise UserError(
            f"--num_images must be at least {NUM_CLASSES}; got {settings.num_images}."
        )
    work_dir = pathlib.Path(settings.work_dir).resolve()
    records = work_dir / "records"
    if not (records / manifest.FILE_NAME).exists():
        make_names(work_dir / "raw", settings.num_images)
        convert(work_dir / "raw", records, settings)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    record_set = measure_checks(str(records), settings.rounds)
    measure_starts(record_set, settings.rounds)
    return 0


def make_names(raw_data_dir: pathlib.Path, num_images: int) -> None:
    """Makes files of images; those of a class are links to one tiny image."""
    for index in range(NUM_CLASSES):
        folder = raw_data_dir / "train" / f"class{index:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        color = (index % 250, index // 4, 100)
        Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), color).save(file, "JPEG")
        first = folder / "0.JPEG"
        first.write_bytes(file.getvalue())
        for number in range(index + NUM_CLASSES, num_images, NUM_CLASSES):
            name = folder / f"class{index:03d}_{number}.JPEG"
            if not name.exists():
                os.link(first, name)


def convert(
    raw_data_dir: pathlib.Path, records: pathlib.Path, settings: ScaleSettings
) -> None:
    """Runs the converter; prints its rate and the peak memory of its processes."""
    start = time.perf_counter()
    converter = subprocess.Popen(
        [
            sys.executable,
            str(_CONVERTER),
            f"--raw_data_dir={raw_data_dir}",
            f"--local_scratch_dir={records}",
            f"--num_processes={settings.num_processes}",
        ]
    )
    peaks: dict[int, int] = {}
    while converter.poll() is None:
        parent = psutil.Process(converter.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (parent, *parent.children(recursive=True)):
                peak = _peak_memory(process.pid)
                peaks[process.pid] = max(peaks.get(process.pid, 0), peak)
        time.sleep(_SAMPLE_SECONDS)
    if converter.returncode:
        raise UserError(f"the converter failed with exit code {converter.returncode}")
    seconds = time.perf_counter() - start
    megabytes = sorted((peak / 1e6 for peak in peaks.values()), reverse=True)
    print(
        f"conversion: {settings.num_images / seconds:,.0f} images/s, including listing;"
        " peak memory of its processes in MB:"
        f" {', '.join(f'{peak:.0f}' for peak in megabytes)}"
    )


def measure_checks(data_dir: str, rounds: int) -> RecordSet:
    """Prints the time of the checks before the first step; returns the record set."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        record_set = manifest.load(data_dir, "train")
        manifest.check_files(record_set, "train")
        class_mixing.check_mixing(record_set.manifest.splits["train"])
        seconds.append(time.perf_counter() - start)
    split = record_set.manifest.splits["train"]
    print(
        f"checks of {split.num_examples:,} examples in {len(split.shards):,} files:"
        f" {spread(seconds, '.2f', ' s')}"
    )
    return record_set


def measure_starts(record_set: RecordSet, rounds: int) -> None:
    """Prints the time from the opened record set to the first batch."""
    from resnet.config.phases import Phase
    from resnet.data import batches, record_files
    from resnet.data.input_pipeline import Reading
    from resnet.data.record_files import shard_of_rank

    num_examples = record_set.manifest.splits["train"].num_examples
    num_steps = 90 * num_examples // BATCH_SIZE
    phase = Phase(name="measured", num_steps=num_steps, image_size=IMAGE_SIZE)

    def first_batch(step: int) -> None:
        records = record_files.open_split(record_set, "train")
        shard = shard_of_rank(records, [tuple(range(len(records.paths)))], 0)
        reading = Reading(
            shard=shard,
            phases=[phase],
            local_batch_size=BATCH_SIZE,
            num_parallel_calls=1,
        )
        next(batches.train_batches(reading, step))

    first_batch(0)  # Warm-up: TensorFlow starts its threads.
    steps_per_epoch = num_examples // BATCH_SIZE
    for title, step in (
        ("first epoch", 0),
        ("last epoch", 89 * steps_per_epoch),
        ("in the middle", 45 * steps_per_epoch + steps_per_epoch // 3),
    ):
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            first_batch(step)
            seconds.append(time.perf_counter() - start)
        print(
            f"from the opened record set to the first batch of {BATCH_SIZE},"
            f" {title} (step {step:,}): {spread(seconds, '.2f', ' s')}"
        )


def _peak_memory(pid: int) -> int:
    """Returns the peak memory of a process in bytes; 0 if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line[:6] == "VmHWM:"]
    return 1024 * int(peaks[0]) if peaks else 0


if __name__ == "__main__":
    sys.exit(program.run(main))
