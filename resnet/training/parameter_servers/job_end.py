"""How an asynchronous job ends: what rank 0 tells the other ranks."""

from dataclasses import dataclass

from resnet.distributed.communicator import AgreedError, AgreedFailure
from resnet.runtime.preemption import Preempted

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (AgreedError, AgreedFailure, Preempted)
}


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Attributes:
        kind: The name of the exception that all ranks raise; empty if training is done.
        sentence: Its message.
    """

    kind: str = ""
    sentence: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Ending":
        """Returns the ending by an exception that all ranks are to raise."""
        kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
        return cls(kind, str(error))

    def raise_on_rank(self) -> None:
        """Raises the exception, if there is one."""
        if self.kind:
            raise _KINDS[self.kind](self.sentence)
