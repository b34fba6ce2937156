"""A small record set, made as a user makes one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]


def make(folder: Path, images_per_class: int = 8) -> None:
    """Draws images of 3 classes into `raw`, 24 and 11, and converts to `records`."""
    random = np.random.default_rng(0)
    train = (images_per_class,) * 3
    for split, counts in (("train", train), ("validation", (4, 4, 3))):
        for label, count in enumerate(counts):
            class_folder = folder / "raw" / split / f"class{label}"
            class_folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 120, (40, 36, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(class_folder / f"{number}.jpg", quality=95)
    convert(folder / "raw", folder / "records", "--train_shards=3")


def make_digits(folder: Path) -> None:
    """Converts scikit-learn's digits, 1,437 and 360 images, into `records`."""
    program = REPOSITORY / "data_prep" / "digits.py"
    words = [sys.executable, program, f"--digits_dir={folder / 'raw'}"]
    subprocess.run(words, check=True, capture_output=True)
    convert(folder / "raw", folder / "records")


def convert(raw: Path, records: Path, *flags: str) -> None:
    """Converts a raw folder with the converter's program."""
    subprocess.run(
        [
            *(sys.executable, REPOSITORY / "data_prep" / "imagenet_to_tfrecords.py"),
            *(f"--raw_data_dir={raw}", f"--local_scratch_dir={records}", *flags),
        ],
        check=True,
        capture_output=True,
    )
