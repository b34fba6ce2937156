"""Few blocks and channels, connected as those of the real networks."""

import contextlib
from collections.abc import Iterator

import pytest

from resnet.models import alexnet, inception, resnet

BLOCKS = (1, 2, 1, 1)  # Two blocks of one kind, in the second stage.
INCEPTION_MODULES = (
    inception.Module("3a", 8, (6, 8), (6, 10), "avg", 4),
    inception.Module("3b", 0, (8, 12), (8, 6), "max", 0),
    inception.Module("3c", 8, (6, 8), (6, 10), "max", 7),
)
SMALL_INCEPTION_MODULES = inception.SMALL_MODULES[1:4]
NARROW = {
    (resnet, "STAGE_FILTERS"): (16, 16, 32, 32),
    (resnet, "DEPTHS"): {18: (BLOCKS, False), 50: (BLOCKS, True)},
    (alexnet, "DENSE_UNITS"): 64,
    (inception, "MODULES"): INCEPTION_MODULES,
    (inception, "SMALL_MODULES"): SMALL_INCEPTION_MODULES,
}
WHOLE = {(module, name): getattr(module, name) for module, name in NARROW}


@contextlib.contextmanager
def having(values: dict) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in values.items():
            patch.setattr(module, name, value)
        yield
