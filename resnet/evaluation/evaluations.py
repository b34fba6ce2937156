"""The evaluations of a run: when they are due, and of which weights."""

import time
from typing import Protocol

from resnet.base import intervals
from resnet.checkpoint.retention import best_top1
from resnet.config import rounds
from resnet.config.config import Config
from resnet.data.example_shard import ExampleShard
from resnet.distributed.communicator import Communicator
from resnet.evaluation import evaluated_weights
from resnet.evaluation.evaluator import Evaluator, Result
from resnet.evaluation.precise_bn import PreciseBN
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState, averaged_batch_norm
from resnet.runtime.preemption import SeenSignals


class Evaluates(Protocol):
    """What evaluates a network on a split."""

    def evaluate(self, penalty: float = 0.0) -> Result:
        """Returns the result on all examples; the penalty is added to the loss."""


class Evaluations:
    """Evaluates the weights of a run, and their moving average, while it trains."""

    def __init__(
        self,
        config: Config,
        state: TrainState,
        train_shard: ExampleShard,
        eval_shard: ExampleShard | None,
        communicator: Communicator,
        num_parallel_calls: int,
        signals: SeenSignals | None = None,
        evaluator: Evaluates | None = None,
    ) -> None:
        """Prepares the evaluations.

        Args:
            config: The settings of the run.
            state: The state of the run.
            train_shard: The training examples, from which batch normalization's
                statistics are computed if the settings ask for it.
            eval_shard: The examples to evaluate on; None for a run without evaluation.
            communicator: The ranks.
            num_parallel_calls: The number of images that a rank decodes in parallel.
            signals: The stop requests of this rank.
            evaluator: What evaluates instead of this rank with the others; the
                arguments that only these need are then not used.
        """
        self._config = config
        self._state = state
        self._communicator = communicator
        self._evaluator = evaluator
        self._precise_bn: PreciseBN | None = None
        if eval_shard is None or evaluator is not None:
            return
        self._evaluator = Evaluator(
            *(state.model, eval_shard, config, communicator, num_parallel_calls),
            views=config.eval_views,
            signals=signals,
        )
        if config.recalibration_batches:
            self._precise_bn = PreciseBN(
                *(state.model, train_shard, config, communicator, num_parallel_calls),
                signals,
            )

    @property
    def is_due(self) -> bool:
        """Whether the present state is to be evaluated, and has not been."""
        return (
            self._evaluator is not None
            and self._state.top1 is None
            and is_due_after(self._config, self._state.step)
        )

    @property
    def target_is_reached(self) -> bool:
        """Whether the top-1 of the present state has reached `stop_at_top1`."""
        return 0 < self._config.stop_at_top1 <= (self._state.top1 or 0.0)

    def run(self, log: RunLog) -> dict[str, dict[str, float]]:
        """Evaluates and logs the results; sets `state.top1`.

        All ranks evaluate with the mean of their batch normalization averages, and keep
        their own afterwards.

        Returns:
            The metrics by name, by the kind of their metrics line.
        """
        assert self._evaluator is not None  # noqa: S101 - `is_due` has checked it.
        state, results = self._state, {}
        weights_of_run = evaluated_weights.all_of(state)
        with log.progress.paused(), averaged_batch_norm(state, self._communicator):
            for weights in evaluated_weights.each(
                state, weights_of_run, self._precise_bn, self._communicator.num_ranks
            ):
                kind = evaluated_weights.METRICS_KINDS[weights]
                began = time.monotonic()
                result = self._evaluator.evaluate(state.weight_penalty())
                results[kind] = result.as_dict()
                seconds = time.monotonic() - began
                log.evaluated(kind, results[kind], seconds, str(result))
        state.top1 = best_top1(results)
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
