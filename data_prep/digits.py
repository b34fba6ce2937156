"""Writes scikit-learn's handwritten digits as class folders of image files.

python data_prep/digits.py --digits_dir DIR

They are real images that need no download: 1,797 digits of the UCI set "Optical
Recognition of Handwritten Digits". DIR is then a `--raw_data_dir` of
imagenet_to_tfrecords.py.
"""

import os
import pathlib
import secrets
import shutil
import sys

import numpy as np
from absl import flags
from PIL import Image

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from data_prep import errors
from data_prep.records import tfrecord_format

FLAGS = flags.FLAGS
flags.DEFINE_string("digits_dir", None, "New folder for the images.")

NUM_VALIDATION = 360  # A fifth.
IMAGE_SIZE = 32  # Pixels a side; the originals' 8 are too few for a convolutional net.
JPEG_QUALITY = 95
_BRIGHTEST = 16  # Of the originals' pixels; the darkest is 0.


def main() -> None:
    """Writes the images to the flag's folder, or raises `errors.UserError`."""
    if not FLAGS.digits_dir:
        raise errors.UserError(f"--digits_dir is needed: {FLAGS['digits_dir'].help}")
    try:
        num_train, num_validation = write_digits(FLAGS.digits_dir)
    except OSError as error:
        raise errors.UserError(f"writing {FLAGS.digits_dir} failed: {error}") from error
    print(f"train: {num_train:,} images, validation: {num_validation:,} images")
    print(
        "next:  python data_prep/imagenet_to_tfrecords.py"
        f" --raw_data_dir={FLAGS.digits_dir} --local_scratch_dir=RECORDS"
    )


def run() -> None:
    """Runs the program."""
    errors.run(main)


def write_digits(digits_dir: str | os.PathLike[str]) -> tuple[int, int]:
    """Writes the digits to `train/<digit>/<index>.jpg` and `validation/<digit>/...`.

    The images are grey, 32x32. Which are held out for validation never changes; they
    are in the same proportions as the rest. The index is that of scikit-learn's array.

    Args:
        digits_dir: A folder that is empty or does not exist. It appears whole.

    Returns:
        Number of train and of validation images.

    Raises:
        errors.UserError: If the folder isn't empty.
    """
    from sklearn import datasets, model_selection  # Takes a second; only needed here.

    folder = pathlib.Path(os.path.abspath(digits_dir))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.UserError(
            f"digits_dir must be an empty folder or a new one; {folder} is not."
            " Remove it or give another."
        )
    digits = datasets.load_digits()
    train, validation = model_selection.train_test_split(
        np.arange(len(digits.target)),
        test_size=NUM_VALIDATION,
        random_state=0,
        stratify=digits.target,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    splits = {tfrecord_format.TRAIN: train, tfrecord_format.VALIDATION: validation}
    try:
        for split, indices in splits.items():
            for index in indices:
                class_folder = partial / split / str(digits.target[index])
                class_folder.mkdir(parents=True, exist_ok=True)
                _to_image(digits.images[index]).save(
                    class_folder / f"{index:04d}.jpg", quality=JPEG_QUALITY
                )
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return len(train), len(validation)


def _to_image(pixels: np.ndarray) -> Image.Image:
    grey = np.round(pixels * (255 / _BRIGHTEST)).astype(np.uint8)
    size = (IMAGE_SIZE, IMAGE_SIZE)
    return Image.fromarray(grey).resize(size, Image.Resampling.BICUBIC)


if __name__ == "__main__":
    run()
