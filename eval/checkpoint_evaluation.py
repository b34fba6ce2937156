"""Evaluates checkpoints on all ranks: single ones, their mean, or their ensemble."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from eval.evaluation_report import Evaluated, EvaluationReport
from eval.prediction_store import PredictionStore
from resnet.base.errors import UserError
from resnet.checkpoint import (
    restore,
    retention,
    step_dirs,
    tensors,
)
from resnet.checkpoint.integrity import CorruptCheckpoint
from resnet.checkpoint.tensors import Checkpoint
from resnet.checkpoint.watch import CheckpointWatch
from resnet.distributed.communicator import Communicator
from resnet.evaluation import evaluated_weights
from resnet.evaluation.evaluator import Evaluator
from resnet.evaluation.precise_bn import PreciseBN
from resnet.evaluation.top_classes import TopClasses
from resnet.optim.train_state import TrainState

_NUM_LOG_LINES = 10  # About as many lines of progress per evaluation.


class CheckpointEvaluation:
    """Loads checkpoints into the network of a run and reports their evaluations."""

    def __init__(
        self,
        model_dir: Path,
        state: TrainState,
        evaluator: Evaluator,
        precise_bn: PreciseBN | None,
        weights: Sequence[str],
        report: EvaluationReport,
        communicator: Communicator,
        store: PredictionStore | None = None,
    ) -> None:
        """Prepares the evaluation; no checkpoint is loaded yet.

        Args:
            model_dir: The folder of the run, which only rank 0 reads.
            state: The state that the checkpoints are loaded into.
            evaluator: The evaluator of the network of `state`.
            precise_bn: The recomputation of the statistics of batch normalization
                before each evaluation; None for the saved statistics.
            weights: The names of the weights to evaluate, as in `evaluated_weights`.
            report: The report that each result is added to.
            communicator: The ranks that evaluate together.
            store: What stores the predictions of each evaluation; None for nothing.
        """
        self._store = store
        self._model_dir = model_dir
        self._state = state
        self._evaluator = evaluator
        self._precise_bn = precise_bn
        self._weights = weights
        self._report = report
        self._communicator = communicator
        self._metadata: dict[str, Any] = {}  # Metadata of the loaded checkpoint.

    def newest(self) -> None:
        """Evaluates the newest checkpoint that is intact.

        Raises:
            AgreedError: On all ranks, if the run has no intact checkpoint.
        """
        self._load_on_all_ranks("the newest checkpoint", self._load_newest)
        self._evaluate([self._state.step])

    def each_of(self, steps: Sequence[int]) -> None:
        """Evaluates the checkpoints of the given steps, one by one.

        Raises:
            AgreedError: On all ranks, if a checkpoint is missing or corrupt.
        """
        for step in steps:
            self._load_step(step)
            self._evaluate([step])

    def mean_weights_of(self, steps: Sequence[int]) -> None:
        """Evaluates the mean of the weights of the checkpoints of the given steps.

        Raises:
            AgreedError: On all ranks, if a checkpoint is missing or corrupt.
        """

        def load() -> Checkpoint:
            return tensors.mean_of_weights(
                tensors.load(self._model_dir, step) for step in steps
            )

        self._load_on_all_ranks("the checkpoints", load)
        self._evaluate(steps, "weights")

    def mean_predictions_of(self, steps: Sequence[int]) -> None:
        """Evaluates the ensemble of the checkpoints of the given steps.

        Its predictions are the mean of the checkpoints' class probabilities. Each
        checkpoint is evaluated once, and the sum of the predictions is kept in memory.
        """
        ensembles = {name: self._evaluator.new_ensemble() for name in self._weights}
        for step in steps:
            self._load_step(step)
            for name in self._weights_in_turn():
                self._evaluator.add_to(
                    ensembles[name], self._state.weight_penalty(), self._log_progress
                )
        for name, ensemble in ensembles.items():
            top = TopClasses() if self._store else None
            result = self._evaluator.evaluate_ensemble(ensemble, top)
            self._add_to_report(Evaluated(steps, name, "predictions"), result, top)

    def each_from(self, watch: CheckpointWatch) -> None:
        """Evaluates each checkpoint once it is saved, up to the last one of the run."""
        while (step := watch.next_step(self._has_ended)) is not None:
            what = f"the checkpoint of step {step}"
            if self._load_on_all_ranks(what, lambda: self._load_from(watch, step)):
                self._evaluate([step])
                watch.evaluated(step)

    def _load_step(self, step: int) -> None:
        self._load_on_all_ranks(
            f"the checkpoint of step {step}",
            lambda: tensors.load(self._model_dir, step),
        )

    def _load_on_all_ranks(
        self, what: str, load: Callable[[], Checkpoint | None]
    ) -> bool:
        """Broadcasts the checkpoint that rank 0 loads; returns False if it is None."""
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
            raise UserError(f"no checkpoint has been saved in {self._model_dir} yet.")
        return newest

    def _load_from(self, watch: CheckpointWatch, step: int) -> Checkpoint | None:
        """Returns a checkpoint; None if it is corrupt, was deleted, or written again.

        Raises:
            UserError: If it can't be read now, or is of a newer format.
        """
        folder = step_dirs.of_step(self._model_dir, step)
        before = step_dirs.version(folder)
        try:
            return tensors.load(self._model_dir, step)
        except UserError as error:
            is_same = before is not None and step_dirs.version(folder) == before
            if is_same and not isinstance(error, CorruptCheckpoint):
                raise
            watch.skip(step, str(error))
            return None

    def _has_ended(self) -> bool:
        """Returns whether the loaded checkpoint is the last one of the run.

        Its metadata are read again, because the run saves a checkpoint before it
        evaluates it, and updates the metadata with the result.
        """
        return retention.ends_run(
            self._model_dir, self._state.step, self._state.config.last_step
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
            top = TopClasses() if self._store else None
            result = self._evaluator.evaluate(
                self._state.weight_penalty(), self._log_progress, top
            )
            self._add_to_report(Evaluated(steps, name, combine), result, top)

    def _add_to_report(
        self, what: Evaluated, result: Any, top: TopClasses | None
    ) -> None:
        with self._communicator.collective_errors():
            self._report.add(what, result)
        if self._store and top:
            self._store.write(what, top)

    def _log_progress(self, done: int) -> None:
        num_batches = self._evaluator.num_batches
        if done % max(1, num_batches // _NUM_LOG_LINES) == 0 or done == num_batches:
            logging.info("Evaluation [%d/%d]", done, num_batches)
