"""Measures how many images per second an exported SavedModel classifies.

python eval/lab/saved_model.py EXPORT --batch_size=16

It needs TensorFlow only, as a user of the export does. It runs the signature
decoded_images on random images, in one process on all cores. The last line is a JSON
object, which --vs of eval/benchmark.py reads.
"""

import argparse
import json
import pathlib
import statistics
import time

import numpy as np
import tensorflow as tf


def step_seconds(
    export: str, batch_size: int, warmup_steps: int, steps: int
) -> list[float]:
    """Returns the seconds of each timed batch."""
    loaded = tf.saved_model.load(export)
    classify = loaded.signatures["decoded_images"]
    contents = pathlib.Path(export) / "assets.extra" / "contents.json"
    side = json.loads(contents.read_text(encoding="utf-8"))["image_size"]
    shape = (batch_size, side, side, 3)
    images = tf.constant(np.random.default_rng(0).uniform(0, 255, shape), tf.float32)
    seconds = []
    for _ in range(warmup_steps + steps):
        start = time.perf_counter()
        classify(images=images)["classes"].numpy()
        seconds.append(time.perf_counter() - start)
    return seconds[warmup_steps:]


def main() -> None:
    """Parses the arguments, measures, and prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--warmup_steps", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    seconds = step_seconds(args.export, args.batch_size, args.warmup_steps, args.steps)
    rates = [args.batch_size / of_batch for of_batch in seconds]
    figures = {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}
    print(json.dumps({"images_per_second": figures}))


if __name__ == "__main__":
    main()
