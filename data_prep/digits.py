r"""Writes scikit-learn's handwritten digits as class folders of image files.

python data_prep/digits.py --digits_dir DIR
python data_prep/digits.py --digits_dir=/tmp/digits && \
    python data_prep/imagenet_to_tfrecords.py --raw_data_dir=/tmp/digits \
    --local_scratch_dir=/tmp/records

The set has 1,797 real images and needs no download: it is the UCI set "Optical
Recognition of Handwritten Digits".
"""

import os
import pathlib
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before the imports that may fail.

# isort: split

import numpy as np
from PIL import Image

from data_prep.records import manifest
from resnet.base import cli, commands
from resnet.base.errors import UserError
from resnet.base.settings import setting


@dataclass(frozen=True)
class Settings:
    """The flags of the program."""

    digits_dir: str | None = setting(
        None, "Output folder for the images; must be new or empty.", unset="required"
    )


FLAGS: cli.Groups = (Settings,)

NUM_VALIDATION = 360  # A fifth of the images.
IMAGE_SIZE = 32  # Pixels per side; the original 8 are too few for a ResNet.
JPEG_QUALITY = 95
_MAX_PIXEL = 16  # Largest pixel value of the original images; the smallest is 0.


def main(argv: Sequence[str]) -> int:
    """Writes the images to --digits_dir, and returns the exit code."""
    digits_dir = cli.parse(argv, __doc__, FLAGS).of(Settings).digits_dir
    if not digits_dir:
        raise UserError("--digits_dir is required: a new or empty output folder")
    try:
        num_train, num_validation = write_digits(digits_dir)
    except OSError as error:
        raise UserError(f"writing {digits_dir} failed: {error}") from error
    print(f"train: {num_train:,} images, validation: {num_validation:,} images")
    command = commands.command(
        "imagenet-to-tfrecords",
        f"--raw_data_dir={digits_dir}",
        f"--local_scratch_dir={pathlib.Path(digits_dir)}-records",
    )
    print(f"next:  {command}")
    return 0


def write_digits(digits_dir: str | os.PathLike[str]) -> tuple[int, int]:
    """Writes the digits to `train/<digit>/<index>.jpg` and `validation/<digit>/...`.

    The validation images are a fixed, stratified sample. The folder, which must be new
    or empty, appears only when it is complete. Returns the numbers of images.
    """
    folder = pathlib.Path(os.path.abspath(digits_dir))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"digits_dir must be a new or empty folder; {folder} is neither"
        )
    from sklearn import datasets, model_selection  # Slow import, needed only here.

    digits = datasets.load_digits()
    train, validation = model_selection.train_test_split(
        np.arange(len(digits.target)),
        test_size=NUM_VALIDATION,
        random_state=0,
        stratify=digits.target,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    splits = {manifest.TRAIN: train, manifest.VALIDATION: validation}
    try:
        for split, indices in splits.items():
            for index in indices:
                class_folder = partial / split / str(digits.target[index])
                class_folder.mkdir(parents=True, exist_ok=True)
                pixels = digits.images[index] * (255 / _MAX_PIXEL)
                image = Image.fromarray(np.round(pixels).astype(np.uint8))
                image.resize((IMAGE_SIZE,) * 2, Image.Resampling.BICUBIC).save(
                    class_folder / f"{index:04d}.jpg", quality=JPEG_QUALITY
                )
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return len(train), len(validation)


if __name__ == "__main__":
    sys.exit(program.run(main))
