"""The log of an asynchronous run, which its coordinator writes."""

from collections.abc import Callable
from typing import Any

from absl import logging

from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.distributed.communicator import Communicator
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState
from resnet.training.parameter_servers.staleness import StalenessLog
from resnet.training.parameter_servers.worker_step import Done


class AsyncLog(RunLog):
    """Metrics and progress lines of a run whose closures end in any order.

    A step is done whenever as many closures have ended as a global batch has parts.
    """

    def __init__(
        self,
        config: Config,
        state: TrainState,
        communicator: Communicator,
        pull_weights: Callable[[], None],
    ) -> None:
        """Opens the files of a run, or continues those of an earlier start.

        Args:
            state: The state of the run on the coordinator.
            pull_weights: A function that reads the weights from the servers, whose
                weight penalty a line needs.
        """
        super().__init__(config, state, communicator)
        self._pull_weights = pull_weights
        self._staleness = StalenessLog()
        self._reading_seconds = self._seconds = 0.0

    def closure_done(self, done: Done) -> None:
        """Counts a closure."""
        self._staleness.add(int(done.staleness))
        self._reading_seconds += float(done.reading_seconds)
        self._seconds += float(done.seconds)

    def parts_done(self, settings: StepSettings) -> None:
        """Counts a step, and logs it where a line is due."""
        self._count_step(settings)

    def _measured(self) -> dict[str, Any]:
        share = self._reading_seconds / self._seconds if self._seconds else 0.0
        self._reading_seconds = self._seconds = 0.0
        return {"input_wait_share": share, **self._staleness.report()}

    def _weight_penalty(self) -> float:
        self._pull_weights()
        return super()._weight_penalty()

    def training_ended(self, target_is_reached: bool) -> None:
        """Logs the end of the training and the distribution of the staleness."""
        super().training_ended(target_is_reached)
        logging.info("Updates by their staleness: %s", self._staleness.describe())
