"""Measures how fast each rank computes, which shows slow ranks.

All ranks end a step together, since each waits for the gradients of the others. So the
time in which a rank waits is left out.
"""

from resnet.distributed.communicator import Communicator

_DIGITS = 4


class RankSpeed:
    """Averages the speed of this rank over steps."""

    def __init__(self, local_batch_size: int) -> None:
        """Begins without a step.

        Args:
            local_batch_size: The number of images of this rank in a step.
        """
        self._local_batch_size = local_batch_size
        self._num_steps = 0
        self._seconds = 0.0

    def step_done(
        self, seconds: float | None, waited_seconds: float, exposed_seconds: float
    ) -> None:
        """Counts a step.

        Args:
            seconds: Duration of the step; None if its time is not counted.
            waited_seconds: The part of it in which this rank waited for its input.
            exposed_seconds: The part of it that the exchange of gradients took.
        """
        if seconds is not None:
            self._num_steps += 1
            self._seconds += seconds - waited_seconds - exposed_seconds

    def report(self, communicator: Communicator) -> list[float]:
        """Returns the images per second of each rank since the last report.

        Each rank must call it. A rank without a timed step has 0. On one rank the list
        is empty, since its speed is that of the training.
        """
        speed = 0.0
        if self._num_steps and self._seconds > 0:
            speed = self._num_steps * self._local_batch_size / self._seconds
        self._num_steps, self._seconds = 0, 0.0
        if communicator.num_ranks == 1:
            return []
        return [float(f"{one:.{_DIGITS}g}") for one in communicator.allgather(speed)]
