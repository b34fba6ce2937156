"""ImageNet's 1,000 classes and the classes of its 50,000 validation images.

They are those of ILSVRC 2012, in the order of the published labels, and lie in
`imagenet_labels.xz`. Unpacked, that file is

    50,000 bytes    lower byte of each validation image's class index, in the order of
                    the images' numbers
    50,000 bytes    upper byte of it (apart, since it packs so much better)
    the rest        a line "n01440764 tench, Tinca tinca" for each class, in UTF-8
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
    """Returns each class's synset, such as "n01440764", in the order of the labels."""
    return _unpack()[0]


def words() -> tuple[str, ...]:
    """Returns each class's words, such as "tench, Tinca tinca", as `synsets` does."""
    return _unpack()[1]


def validation_synsets() -> tuple[str, ...]:
    """Returns the synset of each validation image, the one numbered 1 first."""
    return _unpack()[2]


def validation_synset(filename: str) -> str | None:
    """Returns the synset of a validation image by the number in its name.

    Args:
        filename: Such as "ILSVRC2012_val_00000001.JPEG".

    Returns:
        None if that is no name of one of the images.
    """
    match = _VALIDATION_NAME.fullmatch(filename)
    if match is None or not 1 <= int(match[1]) <= NUM_VALIDATION:
        return None
    return validation_synsets()[int(match[1]) - 1]


def describe(class_names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words of each class, or nothing if one of them is no synset here."""
    descriptions = dict(zip(synsets(), words(), strict=True))
    if not all(name in descriptions for name in class_names):
        return ()
    return tuple(descriptions[name] for name in class_names)


@functools.cache
def _unpack() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    data = lzma.decompress(_FILE.read_bytes())
    lower = data[:NUM_VALIDATION]
    upper = data[NUM_VALIDATION : 2 * NUM_VALIDATION]
    lines = data[2 * NUM_VALIDATION :].decode("utf-8").splitlines()
    names, descriptions = zip(*(line.split(" ", 1) for line in lines), strict=True)
    labels = tuple(names[a | b << 8] for a, b in zip(lower, upper, strict=True))
    return names, descriptions, labels
