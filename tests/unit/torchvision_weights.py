"""Weights of small ResNets by torchvision's names, the same on every machine.

They are written down apart from the code that is tested: the names and shapes are those
of torchvision.models.resnet, the network with fewer channels.
"""

import zlib
from collections.abc import Iterator

import keras
import numpy as np
import pytest

from resnet import models
from resnet.models import resnet

NUM_CLASSES = 5
IMAGE_SIZE = 64
BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
# The stem has 64 channels, which the first stage of ResNet-18 must have, too, for its
# identity shortcut, and whose fourth that of ResNet-50 must not have.
FILTERS = {18: (64, 16, 16, 24), 50: (8, 8, 16, 16)}
EXPANSION = {18: 1, 50: 4}


def build_small(depth: int, variant: str = "torchvision") -> keras.Model:
    """Returns our network with the channels of `FILTERS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "STAGE_FILTERS", FILTERS[depth])
        return models.build(
            *(f"resnet{depth}", NUM_CLASSES, IMAGE_SIZE), resnet_variant=variant
        )


def shapes(depth: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each array of the state dict, in torchvision's order."""
    return dict(_shapes(depth))


def _shapes(depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    def norm(name: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        for part in ("weight", "bias", "running_mean", "running_var"):
            yield f"{name}.{part}", (channels,)
        yield f"{name}.num_batches_tracked", ()

    expansion = EXPANSION[depth]
    kernels = (3, 3) if expansion == 1 else (1, 3, 1)
    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm("bn1", 64)
    channels = 64
    for stage, (filters, num_blocks) in enumerate(
        zip(FILTERS[depth], BLOCKS[depth], strict=True), start=1
    ):
        for block in range(num_blocks):
            name, before = f"layer{stage}.{block}", channels
            for number, size in enumerate(kernels, start=1):
                is_last = number == len(kernels)
                after = filters * expansion if is_last else filters
                yield f"{name}.conv{number}.weight", (after, before, size, size)
                yield from norm(f"{name}.bn{number}", after)
                before = after
            if block == 0 and (stage > 1 or channels != filters * expansion):
                yield f"{name}.downsample.0.weight", (before, channels, 1, 1)
                yield from norm(f"{name}.downsample.1", before)
            channels = before
    yield "fc.weight", (NUM_CLASSES, channels)
    yield "fc.bias", (NUM_CLASSES,)


def state_dict(depth: int) -> dict[str, np.ndarray]:
    """Returns the arrays: float32, and int64 of what PyTorch counts."""
    return {name: _values(name, shape) for name, shape in shapes(depth).items()}


def _values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    # NumPy promises the same numbers of this generator in all versions.
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if len(shape) > 1:
        values = random.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape)
    elif name.endswith(("running_var", "weight")):
        values = random.uniform(0.5, 1, shape)
    else:
        values = random.normal(0, 0.1, shape)
    return values.astype(np.float32)


def images() -> np.ndarray:
    """Returns two images, `[2, height, width, 3]` float32, from 0 on."""
    random = np.random.RandomState(0)
    return random.normal(0, 1, (2, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)
