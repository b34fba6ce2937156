"""Evaluates checkpoints on all ranks: single ones, their mean, or their ensemble."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from eval.evaluation_report import Evaluated
from resnet.base.errors import UserError
from resnet.checkpoint import restore, retention, step_dirs, tensors
from resnet.checkpoint.integrity import CorruptCheckpoint
from resnet.checkpoint.tensors import Checkpoint
from resnet.checkpoint.watch import CheckpointWatch
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation import evaluations, prediction_file, top_classes
from resnet.evaluation.evaluator import Evaluator, Result, naming
from resnet.evaluation.precise_bn import PreciseBN
from resnet.evaluation.prediction_file import Predictions
from resnet.evaluation.top_classes import TopClasses
from resnet.optim.train_state import TrainState

_NUM_LOG_LINES = 10  # About as many lines of progress per evaluation.


class Evaluation(NamedTuple):
    """What was evaluated, and the result of all ranks."""

    what: Evaluated
    result: Result
    top: TopClasses | None  # The predictions of this rank, if they are kept.


class CheckpointEvaluation:
    """Loads checkpoints of a run into its network, and yields their evaluations.

    Every rank must take them all. On all ranks, a checkpoint that is missing or corrupt
    raises AgreedError, and one whose network predicts NaN or infinity AgreedFailure.
    """

    def __init__(
        self,
        state: TrainState,
        evaluator: Evaluator,
        precise_bn: PreciseBN | None,
        weights: Sequence[str],
        keeps_predictions: bool,
        communicator: Communicator,
    ) -> None:
        """Takes a state to load checkpoints into, whose settings name their folder.

        Only rank 0 reads it. Before each evaluation, `precise_bn` recomputes the
        statistics of batch normalization; None takes the saved ones.
        """
        self._model_dir = Path(state.config.model_dir)
        self._state = state
        self._evaluator = evaluator
        self._precise_bn = precise_bn
        self._weights = weights
        self._keeps_predictions = keeps_predictions
        self._communicator = communicator
        self._metadata: dict[str, Any] = {}  # Metadata of the loaded checkpoint.

    def newest(self) -> Iterator[Evaluation]:
        """Evaluates the newest checkpoint that is intact."""
        load = functools.partial(tensors.load_from, self._model_dir)
        self._load_on_all_ranks("the newest checkpoint", load)
        yield from self._evaluate([self._state.step])

    def each_of(self, steps: Sequence[int]) -> Iterator[Evaluation]:
        """Evaluates the checkpoints of the given steps, one by one."""
        for step in steps:
            self._load_step(step)
            yield from self._evaluate([step])

    def mean_weights_of(self, steps: Sequence[int]) -> Iterator[Evaluation]:
        """Evaluates the mean of the weights of the checkpoints of the given steps."""
        loaded = (tensors.load(self._model_dir, step) for step in steps)
        self._load_on_all_ranks(
            "the checkpoints", lambda: tensors.mean_of_weights(loaded)
        )
        yield from self._evaluate(steps, "weights")

    def mean_predictions_of(self, steps: Sequence[int]) -> Iterator[Evaluation]:
        """Evaluates the mean of the class probabilities of the given checkpoints.

        Each of them is evaluated once; the sum of the predictions is kept in memory.
        """
        ensembles = {name: self._evaluator.new_ensemble() for name in self._weights}
        for step in steps:
            self._load_step(step)
            for name in self._weights_in_turn():
                penalty = self._state.weight_penalty()
                self._evaluator.add_to(ensembles[name], penalty, self._log_progress)
        for name, ensemble in ensembles.items():
            top, what = self._new_top(), Evaluated(steps, name, "predictions")
            with naming(str(what)):
                result = self._evaluator.evaluate_ensemble(ensemble, top)
            yield Evaluation(what, result, top)

    def each_from(self, watch: CheckpointWatch) -> Iterator[Evaluation]:
        """Evaluates each checkpoint once it is saved, up to the last one of the run."""
        folder, state = self._model_dir, self._state

        def has_ended() -> bool:  # Metadata change with the result of an evaluation.
            return retention.ends_run(folder, state.step, state.config.last_step)

        while (step := watch.next_step(has_ended)) is not None:
            what = f"the checkpoint of step {step}"
            if self._load_on_all_ranks(what, lambda: self._load_from(watch, step)):
                yield from self._evaluate([step])
                watch.evaluated(step)

    def store(
        self,
        what: Evaluated,
        top: TopClasses,
        records: RecordFiles,
        class_descriptions: Sequence[str],
    ) -> None:
        """Writes the predictions of an evaluation to the run's folder, by rank 0."""
        config, communicator = self._state.config, self._communicator
        own, whole = top.of_rank(), top.of_all(communicator)
        images = top_classes.wrong_images(own, whole, records, communicator)
        with communicator.collective_errors():
            if communicator.rank != 0:
                return
            predictions = Predictions(
                evaluated=str(what),
                step=what.steps[-1],
                views=config.eval_views,
                records_sha256=config.validation_records_sha256,
                class_names=config.class_names,
                class_descriptions=tuple(class_descriptions),
                examples=whole.examples,
                labels=whole.labels,
                top_classes=whole.classes,
                top_probabilities=whole.probabilities,
                wrong_images=tuple(images),
            )
            with communicator.writing("the predictions"):
                name = what.file_name
                path = prediction_file.write(self._model_dir, name, predictions)
            logging.info("The predictions are in %s", path)

    def _new_top(self) -> TopClasses | None:
        return TopClasses() if self._keeps_predictions else None

    def _load_step(self, step: int) -> None:
        what = f"the checkpoint of step {step}"
        self._load_on_all_ranks(what, lambda: tensors.load(self._model_dir, step))

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

    def _load_from(self, watch: CheckpointWatch, step: int) -> Checkpoint | None:
        """Returns a checkpoint; None if it is corrupt, deleted, or written again."""
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

    def _weights_in_turn(self) -> Iterator[str]:
        num_ranks = self._metadata.get("num_ranks", 1)
        return evaluations.weights_in_turn(
            self._state, self._weights, self._precise_bn, num_ranks
        )

    def _evaluate(
        self, steps: Sequence[int], combine: str = "none"
    ) -> Iterator[Evaluation]:
        for name in self._weights_in_turn():
            top, what = self._new_top(), Evaluated(steps, name, combine)
            penalty = self._state.weight_penalty()
            with naming(str(what)):
                result = self._evaluator.evaluate(penalty, self._log_progress, top)
            yield Evaluation(what, result, top)

    def _log_progress(self, done: int) -> None:
        num_batches = self._evaluator.num_batches
        if done % max(1, num_batches // _NUM_LOG_LINES) == 0 or done == num_batches:
            logging.info("Evaluation [%d/%d]", done, num_batches)
