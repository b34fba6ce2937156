"""The training program, of which each rank counts what it exchanges through MPI.

counted_main.py FOLDER [flags of resnet_main.py]

When a rank has ended its training, it writes `FOLDER/<rank>.json`: the calls and
received bytes of each collective operation. Horovod's operations are not among them.
"""

import functools
import json
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from resnet import resnet_main
from resnet.base import program
from resnet.distributed.communicator import Communicator
from resnet.runtime import launcher_death, preemption

# Of those with arrays, the number of the argument that is received.
_ARRAYS = {"Allreduce": 1, "Alltoall": 1, "Bcast": 0, "Gather": 1, "Scatter": 1}
_OBJECTS = ("allgather", "bcast", "gather")


class CountedWorld:
    """`COMM_WORLD`, whose calls and received bytes are counted by name."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.calls: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._world, name)
        if name not in _ARRAYS and name not in _OBJECTS:
            return operation

        def call(*values: Any, **keywords: Any) -> Any:
            result = operation(*values, **keywords)
            received = values[_ARRAYS[name]] if name in _ARRAYS else result
            self.calls[name] += 1
            size = getattr(received, "nbytes", None)
            if size is None:
                size = 0 if received is None else len(pickle.dumps(received))
            self.received_bytes[name] += size
            return result

        return call


def patch(folder: Path) -> None:
    """Makes each communicator count, and write its counts where a job ends."""
    make, deregister = Communicator.__init__, Communicator.deregister

    def make_counted(self: Any, *values: Any, **keywords: Any) -> None:
        make(self, *values, **keywords)
        self._world = self._world and CountedWorld(self._world)

    def write(self: Any) -> None:
        counts = {
            "calls": self._world.calls,
            "received_bytes": self._world.received_bytes,
        }
        (folder / f"{self.rank}.json").write_text(json.dumps(counts))
        deregister(self)

    Communicator.__init__ = make_counted  # type: ignore[method-assign]
    Communicator.deregister = write  # type: ignore[method-assign]


if __name__ == "__main__":
    signals = preemption.StopSignals(launcher_death.fork_rank())
    patch(Path(sys.argv.pop(1)))
    main = functools.partial(resnet_main.main, signals=signals)
    sys.exit(program.run(main))
