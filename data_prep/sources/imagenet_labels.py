"""ImageNet's 1,000 classes and the classes of its 50,000 validation images.

They are those of ILSVRC 2012, in the published label order. The decompressed content
of `imagenet_labels.xz` is

    50,000 bytes    lower byte of each validation image's class index, in the order of
                    the image numbers
    50,000 bytes    upper byte of each class index (separate bytes compress better)
    the rest        one line per class, "n01440764 tench, Tinca tinca", in UTF-8
"""

import functools
import lzma
import pathlib
import re

NUM_CLASSES = 1_000
NUM_TRAIN = 1_281_167  # Images.
NUM_VALIDATION = 50_000

_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_([0-9]{8})\.JPEG")
_FILE = pathlib.Path(__file__).with_name("imagenet_labels.xz")


def synsets() -> tuple[str, ...]:
    """Returns the synset of each class, such as "n01440764", in label order."""
    return _unpack()[0]


def words() -> tuple[str, ...]:
    """Returns the words of each class, such as "tench, Tinca tinca", in label order."""
    return _unpack()[1]


def validation_synsets() -> tuple[str, ...]:
    """Returns the synset of each validation image, in the order of their numbers."""
    return _unpack()[2]


def validation_synset(filename: str) -> str | None:
    """Returns the synset of an image such as ILSVRC2012_val_00000001.JPEG, or None."""
    match = _VALIDATION_NAME.fullmatch(filename)
    if match is None or not 1 <= int(match[1]) <= NUM_VALIDATION:
        return None
    return validation_synsets()[int(match[1]) - 1]


def describe(class_names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of each class, or () if a class isn't an ImageNet synset."""
    descriptions = dict(zip(synsets(), words(), strict=True))
    known = tuple(descriptions[name] for name in class_names if name in descriptions)
    return known if len(known) == len(class_names) else ()


@functools.cache
def _unpack() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    data = lzma.decompress(_FILE.read_bytes())
    lower = data[:NUM_VALIDATION]
    upper = data[NUM_VALIDATION : 2 * NUM_VALIDATION]
    lines = data[2 * NUM_VALIDATION :].decode("utf-8").splitlines()
    names, descriptions = zip(*(line.split(" ", 1) for line in lines), strict=True)
    labels = tuple(names[a | b << 8] for a, b in zip(lower, upper, strict=True))
    return names, descriptions, labels
