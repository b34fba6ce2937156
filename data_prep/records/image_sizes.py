"""The usual size of the images of a record set, from some of its records."""

import itertools
import pathlib
import statistics
from collections.abc import Sequence

from data_prep.records import jpeg_header, tf_example
from data_prep.records.png_data import SIGNATURE

_MOST_FILES = 100  # As many files are read, from the first to the last,
_MOST_IMAGES = 1_000  # and about as many images, the first ones of each file.


def median_side(root: pathlib.Path, paths: Sequence[str], image_key: str) -> int:
    """Returns the median of the shorter sides of images in pixels; 0 if none is known.

    `paths` are those of record files in `root`.
    """
    chosen = [paths[i * len(paths) // _MOST_FILES] for i in range(_MOST_FILES)]
    chosen = list(dict.fromkeys(chosen))
    sides: list[int] = []
    for path in chosen:
        images = tf_example.scan_file(
            root / path, lambda features: tf_example.bytes_of(features, image_key)
        )
        some = itertools.islice(images, -(-_MOST_IMAGES // len(chosen)))
        sides += filter(None, (_shorter_side(image) for _, _, image in some))
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
