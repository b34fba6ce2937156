"""Samples of 16 bits: those of a PNG or TIFF file, and what they become in 8 bits."""

import functools
import io
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

NUM_VALUES = 2**16
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


@functools.lru_cache
def table(window: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Returns the 8 bits that each sample of 16 bits becomes, `[65536]`.

    `window` is (low, high): `low` and less become 0, `high` and more 255, and the
    values between them follow a straight line, rounded half up. Without a window, ()
    the upper 8 bits are kept.
    """
    values = np.arange(NUM_VALUES)
    if not window:
        return (values >> 8).astype(np.uint8)
    low, high = window
    span = high - low
    scaled = (510 * (np.clip(values, low, high) - low) + span) // (2 * span)
    return scaled.astype(np.uint8)


def samples(image: Image.Image, file: bytes) -> list[npt.NDArray[np.uint16]]:
    """Returns the samples of a file of 16 bits: those of gray or RGB, and of alpha.

    Both are `[height, width, channels]`; of alpha, there may be no channel. `image` is
    the file as Pillow decodes it, which keeps only the upper bytes of colors. The lower
    ones are what it keeps if it takes the other byte of each sample for the upper one.
    """
    upper = np.asarray(image)
    if upper.dtype != np.uint8:  # Gray, of which Pillow keeps both bytes.
        return np.split(upper.astype(np.uint16)[..., np.newaxis], [1], axis=2)
    with Image.open(io.BytesIO(file), formats=[str(image.format)]) as swapped:
        is_gray = image.format == "PNG" and file[25] == 4  # With alpha.
        swapped.tile = [
            # Of gray, all four bytes: there is no decoder for the lower ones.
            tile._replace(args="RGBA" if is_gray else _in_other_order(tile.args))
            for tile in swapped.tile
        ]
        swapped.load()
        lower = np.asarray(swapped)
    if is_gray:
        upper, lower = lower[..., ::2], lower[..., 1::2]
    values = upper.astype(np.uint16)
    values <<= 8
    values |= lower
    return np.split(values, [3 if values.shape[2] > 2 else 1], axis=2)


def _in_other_order(args: Any) -> Any:
    """Returns the arguments of one of Pillow's decoders for the other byte order."""
    if isinstance(args, str):
        return args[:-1] + _OTHER_ORDER[args[-1]]
    return (_in_other_order(args[0]), *args[1:])


def to_8_bits(
    parts: Sequence[npt.NDArray[np.uint16]], window: tuple[int, ...]
) -> Image.Image:
    """Returns the image of `samples`; of alpha the upper 8 bits are kept."""
    colors, alpha = parts
    pixels = np.concatenate([table(window)[colors], table(())[alpha]], axis=2)
    return Image.fromarray(pixels if pixels.shape[2] > 1 else pixels[..., 0])
