"""Evaluates checkpoints of a run on all ranks: each, their mean, or their ensemble."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from data_prep.errors import UserError
from eval.evaluation_report import Evaluated, EvaluationReport
from resnet.checkpoint import (
    integrity,
    restore,
    retention,
    step_dirs,
    tensors,
    weight_averaging,
)
from resnet.checkpoint.integrity import DamagedCheckpoint
from resnet.checkpoint.tensors import Checkpoint
from resnet.checkpoint.watch import CheckpointWatch
from resnet.distributed.communicator import Communicator
from resnet.evaluation import evaluated_weights
from resnet.evaluation.evaluator import Evaluator
from resnet.evaluation.precise_bn import PreciseBN
from resnet.train_state import TrainState

_REPORTS = 10  # Lines of progress in one evaluation.


class CheckpointEvaluation:
    """The network of a run, which takes one checkpoint after the other."""

    def __init__(
        self,
        model_dir: Path,
        state: TrainState,
        evaluator: Evaluator,
        precise_bn: PreciseBN | None,
        weights: Sequence[str],
        report: EvaluationReport,
        communicator: Communicator,
    ) -> None:
        """Begins before the first checkpoint.

        Args:
            model_dir: Folder of the run; rank 0 reads it.
            state: Of the run: what the evaluator's network belongs to.
            evaluator: Evaluates it.
            precise_bn: Recomputes the statistics of batch normalization first, if any.
            weights: Names of `evaluated_weights` to evaluate.
            report: Tells the results.
            communicator: The ranks.
        """
        self._model_dir = model_dir
        self._state = state
        self._evaluator = evaluator
        self._precise_bn = precise_bn
        self._weights = weights
        self._report = report
        self._communicator = communicator
        self._metadata: dict[str, Any] = {}  # Of the checkpoint that was taken.

    def newest(self) -> None:
        """Evaluates the newest checkpoint that is whole.

        Raises:
            AgreedError: On all ranks, if there is none.
        """
        self._take("the newest checkpoint", self._load_newest)
        self._evaluate([self._state.step])

    def each_of(self, steps: Sequence[int]) -> None:
        """Evaluates the checkpoints of some steps, one by one.

        Raises:
            AgreedError: On all ranks, if one isn't there or isn't whole.
        """
        for step in steps:
            self._take_step(step)
            self._evaluate([step])

    def mean_weights_of(self, steps: Sequence[int]) -> None:
        """Evaluates the network whose weights are the mean of those of some steps."""

        def load() -> Checkpoint:
            return weight_averaging.mean_of_weights(
                tensors.load(self._model_dir, step) for step in steps
            )

        self._take("the checkpoints", load)
        self._evaluate(steps, "weights")

    def mean_predictions_of(self, steps: Sequence[int]) -> None:
        """Evaluates the mean of what the networks of some steps say, as probabilities.

        Each is evaluated once; what they say is kept in memory.
        """
        ensembles = {name: self._evaluator.new_ensemble() for name in self._weights}
        for step in steps:
            self._take_step(step)
            for name in self._weights_in_turn():
                self._evaluator.add_to(
                    ensembles[name], self._state.weight_penalty(), self._log_progress
                )
        for name, ensemble in ensembles.items():
            result = self._evaluator.evaluate_ensemble(ensemble)
            self._tell(Evaluated(steps, name, "predictions"), result)

    def all_that_come(self, watch: CheckpointWatch) -> None:
        """Evaluates each checkpoint as it appears, up to the run's last one."""
        while (step := watch.next_step(self._has_ended)) is not None:
            what = f"the checkpoint of step {step}"
            if self._take(what, lambda: self._load_from(watch, step)):
                self._evaluate([step])
                watch.evaluated(step)

    def _take_step(self, step: int) -> None:
        self._take(
            f"the checkpoint of step {step}",
            lambda: tensors.load(self._model_dir, step),
        )

    def _take(self, what: str, load: Callable[[], Checkpoint | None]) -> bool:
        """Gives all ranks what rank 0 loads; returns whether that is anything."""
        state, communicator = self._state, self._communicator
        communicator.report_status(f"reading {what}", is_timed=False)
        metadata = None
        with communicator.collective_errors():
            if communicator.rank == 0 and (saved := load()) is not None:
                restore.restore(state, saved)
                metadata = dict(saved.metadata)
        state.step, metadata = communicator.broadcast((state.step, metadata))
        if metadata is None:
            return False
        self._metadata = metadata
        communicator.broadcast_variables(list(state.tensors().values()))
        return True

    def _load_newest(self) -> Checkpoint:
        newest = tensors.load_newest(self._model_dir)
        if newest is None:
            raise UserError(
                f"expected a checkpoint in {self._model_dir}; there is none"
            )
        return newest

    def _load_from(self, watch: CheckpointWatch, step: int) -> Checkpoint | None:
        """Returns a checkpoint, or None if the run has removed it or it is damaged."""
        try:
            # One of a later format is no accident: it is told.
            integrity.read_contents(step_dirs.of_step(self._model_dir, step))
        except DamagedCheckpoint as error:
            watch.skip(step, str(error))
            return None
        try:
            return tensors.load(self._model_dir, step)
        except UserError as error:
            watch.skip(step, str(error))
            return None

    def _has_ended(self) -> bool:
        """Returns whether the run ends with the checkpoint that was taken last.

        Its metadata are read again: it is saved before the run evaluates it, and once
        more with what that has found.
        """
        return retention.ends_run(
            self._model_dir, self._state.step, self._state.config.train_steps
        )

    def _weights_in_turn(self) -> Iterator[str]:
        return evaluated_weights.each(
            self._state,
            self._weights,
            self._precise_bn,
            self._metadata.get("num_ranks", 1),
        )

    def _evaluate(self, steps: Sequence[int], combine: str = "none") -> None:
        for name in self._weights_in_turn():
            result = self._evaluator.evaluate(
                self._state.weight_penalty(), self._log_progress
            )
            self._tell(Evaluated(steps, name, combine), result)

    def _tell(self, what: Evaluated, result: Any) -> None:
        with self._communicator.collective_errors():
            self._report.add(what, result)

    def _log_progress(self, done: int) -> None:
        num_batches = self._evaluator.num_batches
        if done % max(1, num_batches // _REPORTS) == 0 or done == num_batches:
            logging.info("Evaluation [%d/%d]", done, num_batches)
