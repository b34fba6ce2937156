"""The usual size of the images of a record set, from some of its records."""

import itertools
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from data_prep.images import jpeg_header
from data_prep.images.png_data import SIGNATURE
from data_prep.records import tf_example

_NUM_FILES, _NUM_IMAGES = 10, 100  # The first ones, and the first ones of each.


def median_side(root: pathlib.Path, paths: Sequence[str], image_key: str) -> int:
    """Returns the median of images' shorter sides in pixels; 0 if none is known.

    `paths` are those of record files in `root`, over which images are shuffled.
    """
    images = [
        tf_example.scan_file(
            root / path, lambda features: tf_example.bytes_of(features, image_key)
        )
        for path in paths[:_NUM_FILES]
    ]
    return median_side_of((image for _, _, image in of_file) for of_file in images)


def median_side_of(images_of_files: Iterable[Iterable[bytes]]) -> int:
    """Returns `median_side` of encoded images, by their record files."""
    sides: list[int] = []
    for images in itertools.islice(images_of_files, _NUM_FILES):
        first = itertools.islice(images, _NUM_IMAGES)
        sides += filter(None, map(_shorter_side, first))
    return statistics.median_low(sides) if sides else 0


def _shorter_side(image: bytes) -> int:
    """Returns the shorter side of an encoded image; 0 if its header doesn't tell it."""
    if image.startswith(SIGNATURE):
        sides = image[16:20], image[20:24]  # The first fields of the first chunk.
        return min(int.from_bytes(side, "big") for side in sides)
    try:
        header = jpeg_header.parse(image)
    except ValueError:
        return 0
    return min(header.height, header.width)
