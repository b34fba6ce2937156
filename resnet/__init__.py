"""Image classifiers for CPUs: networks with or without weights, used from Python.

    import resnet

    network = resnet.load("MODEL")  # The folder of a run, or one of its checkpoints.
    records = resnet.open_records("RECORDS")
    print(network.evaluate(records))
    for best in network.predict(["cat.jpg", "dog.png"]):
        print(best[0].class_name, best[0].probability)

`resnet.build` makes a network by name, from random weights or those of a file; all is
in `resnet.api`. Mistakes raise `resnet.UserError`. TensorFlow is imported with the
first use of a network.
"""

import importlib
from typing import TYPE_CHECKING, Any

from resnet.base import VERSION as __version__

if TYPE_CHECKING:  # For editors; `__getattr__` imports them.
    from resnet.api import (
        Network,
        Prediction,
        Records,
        build,
        load,
        network_names,
        open_records,
    )
    from resnet.base.errors import UserError

__all__ = [
    "Network",
    "Prediction",
    "Records",
    "UserError",
    "__version__",
    "build",
    "load",
    "network_names",
    "open_records",
]


def __getattr__(name: str) -> Any:
    """Returns a name of `resnet.api`, which is imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("resnet.api"), name)


def __dir__() -> list[str]:
    """Returns the names, for completion in editors and notebooks."""
    return sorted({*globals(), *__all__})
