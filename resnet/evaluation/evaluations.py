"""The evaluations of a run: when they are due, and of which weights."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from resnet.base import intervals
from resnet.checkpoint.retention import best_value
from resnet.config import rounds
from resnet.config.config import Config
from resnet.evaluation.evaluator import Evaluator, Result, naming
from resnet.evaluation.precise_bn import PreciseBN
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState, averaged_over_ranks
from resnet.runtime.job import Job, Run

# The weights that may be evaluated, and the kind of the metrics line of each.
METRICS_KINDS = {"raw": "eval", "ema": "eval_ema"}
ON_TRAINING_IMAGES = "eval_train"  # That of a data set without validation.


class Evaluates(Protocol):
    """What evaluates a network on a split."""

    def evaluate(self, penalty: float = 0.0) -> Result:
        """Returns the result on all examples; the penalty is added to the loss."""


class Evaluations:
    """Evaluates the weights of a run, and their moving average, while it trains."""

    def __init__(
        self, run: Run, state: TrainState, job: Job, evaluator: Evaluates | None = None
    ) -> None:
        self._config = config = run.config
        self._state = state
        self._communicator = job.communicator
        self._evaluator = evaluator
        self._precise_bn: PreciseBN | None = None
        self._has_validation = run.validation is not None
        if run.evaluated is None or evaluator is not None:
            return
        self._evaluator = Evaluator(state.model, run.evaluated, config, job)
        if config.recalibration_batches:
            self._precise_bn = PreciseBN(state.model, run.train, config, job)

    @property
    def is_due(self) -> bool:
        """Whether the present state is to be evaluated, and has not been."""
        return (
            self._evaluator is not None
            and self._state.best_value is None
            and is_due_after(self._config, self._state.step)
        )

    @property
    def target_is_reached(self) -> bool:
        """Whether the best metric of the present state has reached `stop_at`."""
        return 0 < self._config.stop_at <= (self._state.best_value or 0.0)

    def run(self, log: RunLog) -> dict[str, dict[str, float]]:
        """Evaluates and logs the results; sets `state.best_value`.

        Without a validation split, the last weights are evaluated on training images,
        which sets nothing. All ranks evaluate with the mean of their batch
        normalization averages, and keep their own afterwards. Returns the metrics by
        name, by the kind of their metrics line. Raises AgreedFailure, on all ranks, if
        the network predicts NaN.
        """
        assert self._evaluator is not None  # noqa: S101 - `is_due` has checked it.
        state, results = self._state, {}
        num_ranks = self._communicator.num_ranks
        averages = state.batch_norm_averages
        with log.progress.paused(), averaged_over_ranks(averages, self._communicator):
            names = weights_of(state)
            kinds = METRICS_KINDS
            if not self._has_validation:
                names, kinds = names[-1:], dict.fromkeys(names, ON_TRAINING_IMAGES)
            for name in weights_in_turn(state, names, self._precise_bn, num_ranks):
                kind = kinds[name]
                began = time.monotonic()
                with naming(f"the {name} weights after step {state.step}"):
                    result = self._evaluator.evaluate(state.weight_penalty())
                results[kind] = result.as_dict()
                seconds = time.monotonic() - began
                log.evaluated(kind, results[kind], seconds, str(result))
        if not self._has_validation:
            return {}
        state.best_value = best_value(results, self._config.best_metric)
        return results


def is_due_after(config: Config, step: int) -> bool:
    """Returns whether an evaluation is due after `step` steps.

    One that falls into a round of local SGD is due at its end (`rounds.ends_interval`).
    """
    if step == config.train_steps:
        return True
    if not config.eval_every or step == 0:
        return False
    interval = intervals.parse(config.eval_every, "--eval_every")
    return rounds.ends_interval(config, interval, step)


def weights_of(state: TrainState) -> list[str]:
    """Returns the names of the weights that a run has: "raw" and maybe "ema"."""
    return ["raw", "ema"] if state.ema else ["raw"]


def weights_in_turn(
    state: TrainState,
    names: Sequence[str],
    precise_bn: PreciseBN | None,
    num_ranks: int,
) -> Iterator[str]:
    """Yields each name after setting the network to the weights of that name.

    After the last one, the network gets its raw weights back. With `precise_bn`, it
    keeps the batch normalization statistics that were computed last, for a run that was
    trained on `num_ranks` ranks; without, the moving averages.
    """
    for name in names:
        with state.averaged_weights() if name == "ema" else contextlib.nullcontext():
            if precise_bn is not None:
                precise_bn.apply(state.step, num_ranks)
            yield name
