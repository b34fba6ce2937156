"""Compares exports of a run with its evaluation, on every image of a data set.

python tests/compare_exports.py --model_dir=MODEL --data_dir=RECORDS --work_dir=EXPORTS

For each format and precision whose packages are installed, it prints the size, on how
many images the most probable class is another than that of the evaluation, the largest
difference of a probability, and the images per second relative to those of the
evaluation's network with TensorFlow's own ops (median, lowest and highest of rounds, in
each of which both take turns); also relative are the images per second of processor
time, which other programs on the machine disturb less.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from data_prep.records import manifest, record_index, tf_example, tfrecord
from resnet.base.errors import UserError
from resnet.config.command_line import JobSettings
from resnet.config.config import Config, load_config
from resnet.distributed.communicator import Communicator
from resnet.export import contents, formats
from resnet.export.formats import ExportedNetwork
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup

Compute = Callable[[Any], np.ndarray]
Run = Callable[[], int]  # Returns the number of images that it has classified.
_SECONDS = 3.0  # Of each measurement, at least.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model_dir", "data_dir", "work_dir"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--formats", nargs="*", default=list(formats.COMPUTED))
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_images", type=int, default=10**9)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    process = ProcessInfo()
    startup.start_on_own_cores(process, Communicator(process), JobSettings())
    from resnet import native
    from resnet.checkpoint import restore
    from resnet.data.augmentation import preprocessing
    from resnet.evaluation.predictor import Predictor, Preprocessor

    native.disable()
    config = load_config(str(given.model_dir))
    trained = restore.load_network(config, given.model_dir)
    files = list(encoded_images(given.data_dir))[: given.num_images]
    predictor = Predictor(trained.model, config)
    normalized = np.stack([predictor.preprocess(*file) for file in files])
    of_exports = Preprocessor(
        config.image_size,
        config.eval_crop_fraction,
        config.eval_crop,
        preprocessing.NOT_NORMALIZED,
    )
    images = np.stack([of_exports(*file) for file in files])
    expected = in_batches(predictor.probabilities, normalized, given.batch_size)
    print(f"{len(files)} images in batches of {given.batch_size}", flush=True)
    given.work_dir.mkdir(exist_ok=True)
    batch = slice(given.batch_size)
    for name, precision, path in exports(trained, config, given):
        compute = ExportedNetwork(path).load().probabilities
        found = in_batches(compute, images, given.batch_size)
        others = int((found.argmax(1) != expected.argmax(1)).sum())
        print(
            f"{name:11} {precision:8} {size_of(path) / 1e6:6.1f} MB, other top-1"
            f" {others:4}, largest difference {np.abs(found - expected).max():.1e}",
            flush=True,
        )
        print_speed(
            given.rounds,
            lambda compute=compute: len(compute(images[batch])),
            lambda: len(predictor.probabilities(normalized[batch])),
        )


def print_speed(rounds: int, ours: Run, evaluation: Run) -> None:
    """Prints how fast an export is, relative to evaluation, in alternating rounds."""
    pairs = [(rates(evaluation), rates(ours)) for _ in range(rounds)]
    shown = []
    for what in (0, 1):
        ratios = [after[what] / before[what] for before, after in pairs]
        median = statistics.median(ratios)
        shown.append(f"{median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    own = statistics.median(before[0] for before, _ in pairs)
    print(
        f"    speed {shown[0]}, by processor time {shown[1]}; n = {rounds}, evaluation"
        f" {own:.1f} images/s",
        flush=True,
    )


def encoded_images(data_dir: Path) -> Iterator[tuple[bytes, str]]:
    """Yields each validation image of a set and its format."""
    record_set = manifest.load(str(data_dir), "validation")
    found = record_set.manifest
    split = found.splits["validation"]
    offsets = record_index.read_index(record_set, split)["offset"]
    for shard, offset in zip(
        record_index.shard_of_example(split), offsets, strict=True
    ):
        path = record_set.records_dir / split.shards[shard].path
        features = tf_example.parse_example(tfrecord.read_at(path, int(offset)))
        yield tf_example.bytes_of(features, found.image_key), found.image_format


def exports(
    trained: Any, config: Config, given: argparse.Namespace
) -> Iterator[tuple[str, str, Path]]:
    """Yields format, precision and path of each export that can be computed."""
    for name in given.formats:
        kind = formats.COMPUTED[name]
        for precision in kind.precisions:
            suffix = kind.suffixes[0] if kind.suffixes else ""
            path = given.work_dir / f"{name}-{precision}{suffix}"
            if not path.exists():
                described = contents.of_run(
                    config, trained.step, trained.weights, precision
                )
                try:
                    formats.check(name, precision, True, path, config)
                    formats.write(name, trained, described, path)
                except UserError as error:
                    print(f"{name:11} {precision:8} {error}", flush=True)
                    continue
            yield name, precision, path


def in_batches(compute: Compute, images: np.ndarray, batch_size: int) -> np.ndarray:
    parts = range(0, len(images), batch_size)
    return np.concatenate([compute(images[i : i + batch_size]) for i in parts])


def rates(run: Run) -> tuple[float, float]:
    """Returns the images per second, and per second of processor time."""
    run()
    num_images, start, used = 0, time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - start) < _SECONDS:
        num_images += run()
    return num_images / seconds, num_images / (time.process_time() - used)


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    main()
