"""Collective operations on tensors inside the graph. The only importer of Horovod."""

import importlib
from collections.abc import Sequence
from typing import Any


class Collectives:
    """Collective operations of all ranks; on one rank each is the identity."""

    def __init__(self) -> None:
        self._horovod: Any = None

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self._horovod.size() if self._horovod else 1

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._horovod.rank() if self._horovod else 0

    def start(self, library: str) -> None:
        """Starts Horovod, which imports TensorFlow; to be called on all ranks.

        The library is the name of one of those beside its Python files.
        """
        # With this ending, Horovod makes the name of the library that it loads.
        ending = library.removeprefix("mpi_lib")
        util: Any = importlib.import_module("horovod.common.util")
        util.get_ext_suffix = lambda: ending
        self._horovod = importlib.import_module("horovod.tensorflow")
        self._horovod.init()

    def allreduce_mean(self, tensors: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Returns the mean over ranks of each tensor; to be called inside the graph.

        Each dense float32 tensor is an all-reduce of its own, which starts as soon as
        it is computed and overlaps with the rest of the backward pass. A grouped
        all-reduce would wait for the last one. Horovod matches tensors of different
        ranks by name, so their order doesn't matter.
        """
        if self._horovod is None:
            return list(tensors)
        return [
            self._horovod.allreduce(tensor, op=self._horovod.Average, name=name)
            for tensor, name in zip(tensors, names, strict=True)
        ]

    def allgather(self, tensor: Any, name: str) -> Any:
        """Returns the tensors of all ranks, one behind the other in their order.

        To be called inside the graph. They are `[n]`, of any dtype; n may differ
        between ranks, and the name may not.
        """
        if self._horovod is None:
            return tensor
        if tensor.dtype.name != "bfloat16":  # Which Horovod's all-gather doesn't take.
            return self._horovod.allgather(tensor, name=name)
        tf: Any = importlib.import_module("tensorflow")
        gathered = self._horovod.allgather(tf.bitcast(tensor, tf.uint16), name=name)
        return tf.bitcast(gathered, tf.bfloat16)

    def alltoall(self, tensor: Any, lengths: Any, name: str) -> Any:
        """Sends a part of a tensor to each rank, and returns what this rank receives.

        To be called inside the graph. The tensor is `[n]`, of any dtype but bfloat16:
        the parts for all ranks in their order, whose lengths are `[num_ranks]` int32.
        The result likewise has those of all ranks.
        """
        if self._horovod is None:
            return tensor
        received, _ = self._horovod.alltoall(tensor, splits=lengths, name=name)
        return received
