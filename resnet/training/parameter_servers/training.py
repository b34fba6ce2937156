"""The loop of an asynchronous run on its coordinator, rank 0."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from resnet.base import intervals
from resnet.checkpoint.manager import CheckpointManager
from resnet.checkpoint.restore import restore_newest
from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.recipe import NO_BOUND
from resnet.data import example_order, input_pipeline
from resnet.data.corrupt_records import Replacements
from resnet.data.input_pipeline import Reading, ToRead
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.evaluation.evaluations import Evaluations
from resnet.metrics.run_log import RunLog
from resnet.optim.train_state import TrainState
from resnet.runtime.divergence import check_loss
from resnet.runtime.job import Job, Run
from resnet.runtime.preemption import RESUME, START_AGAIN, Preempted, stop_requested
from resnet.training.loop import evaluate_and_save, save
from resnet.training.parameter_servers import worker_step
from resnet.training.parameter_servers.closures import (
    Closures,
    StalenessLog,
    naming_corrupt_records,
)
from resnet.training.parameter_servers.roles import Workers
from resnet.training.parameter_servers.servers import MOST_APART, ServerVariables
from resnet.training.parameter_servers.serving import START_SECONDS
from resnet.training.parameter_servers.worker_evaluation import WorkerEvaluator
from resnet.training.parameter_servers.worker_step import Done
from resnet.training.train_step import DROPOUT_STREAM

_POLL_SECONDS = 0.5
_SECONDS_OF_OTHERS = 5.0  # For the rank of a lost server to end the job.


class AsyncTraining:
    """An asynchronous run: its state, its servers and its workers.

    A closure is the part of a global batch that one of as many synchronous ranks as
    there are workers would take. It has the number step * num_workers + part, and the
    hyperparameters of its step.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        workers: Workers,
    ) -> None:
        """Restores the newest checkpoint, and puts its variables on the servers."""
        self._run, self._config = run, run.config
        self._workers = workers
        self._records = run.train.records
        # A closure has a micro-batch of the one rank that the workers are together.
        self._reading = dataclasses.replace(
            Reading.of_run(run.config, run.train, 1, workers.num_parallel_calls),
            accumulation_steps=workers.num_workers,
        )
        self._signals = job.signals
        self._communicator = job.communicator
        self._ended_at = self._polled_at = time.monotonic()  # The last closure.
        self._state = TrainState(run.config)
        restore_newest(self._state, run.folder, job.communicator)
        self._variables = ServerVariables(self._state, run.config.num_ps)
        self._closures = Closures(
            coordinator, workers.num_workers, run.config.max_staleness
        )
        evaluator = None
        if run.evaluated is not None:
            evaluator = WorkerEvaluator(
                run,
                job,
                self._state.model,
                self._variables,
                Closures(coordinator, workers.num_workers, NO_BOUND),
                workers,
            )
        self._evaluations = Evaluations(run, self._state, job, evaluator)
        self._log = AsyncLog(run.config, self._state, job.communicator, self._variables)
        self._manager = CheckpointManager(
            run.config, self._state, job.communicator, run.lock, run.verify_records
        )
        self._num_closures = 0  # Closures since this start of the run.
        self._examples: dict[int, tf.Tensor] = {}  # By the numbers of running closures.
        self._traced_phase: Phase | None = None
        self._losses: list[float] = []  # Losses of an incomplete step's closures.

    def run(self) -> bool:
        """Trains to the last step; returns and raises as `loop.train_and_evaluate`."""
        try:
            return self._train()
        except tf.errors.OpError:
            time.sleep(_SECONDS_OF_OTHERS)
            raise

    def _train(self) -> bool:
        config, state = self._config, self._state
        self._log.training_starts()
        logging.info(
            "The asynchrony of workers (%d) acts like an additional momentum of %.2f"
            " (arXiv:1605.09774), and the mean staleness is about %d: a lower"
            " --momentum, or a small --max_staleness, may train better"
            " (docs/async.md).",
            self._workers.num_workers,
            1 - 1 / self._workers.num_workers,
            self._workers.num_workers - 1,
        )
        with closing(self._closures), closing(self._log), closing(self._manager):
            while True:
                evaluate_and_save(self._evaluations, self._manager, self._log)
                is_reached = self._evaluations.target_is_reached
                if state.step >= config.last_step or is_reached:
                    break
                if stop_requested(self._signals):
                    self._manager.finish()
                    advice = RESUME if state.step else START_AGAIN
                    raise Preempted(
                        f"stopped before step {state.step + 1}", advice, state.step
                    )
                self._train_to(end_of_segment(config, state.step))
                self._variables.pull()
                save(self._manager, self._log)
                if stop_requested(self._signals):
                    self._manager.finish()
                    raise Preempted(
                        f"stopped after step {state.step}, which is saved",
                        step=state.step,
                    )
            self._manager.finish()
        self._log.training_ended(is_reached)
        return state.step >= config.train_steps or is_reached

    def _train_to(self, end: int) -> None:
        """Trains to a step of the present phase, or to an earlier one on a request."""
        config, state = self._config, self._state
        # Untimed, as what follows: `_require_progress` limits the wait for a result.
        self._communicator.report_status(
            f"coordinating the workers from step {state.step + 1:,}", is_timed=False
        )
        phase = phases.at(config.phases, state.step)
        if state.step in phases.first_steps(config.phases):
            state.begin_step()
            self._variables.push()
        function = self._closure_of(phase)
        first = state.step * self._workers.num_workers
        number, end_number = first, end * self._workers.num_workers
        to_read = self._parts_from(first)
        state.best_value = None
        self._ended_at = self._polled_at = time.monotonic()
        while number < end_number or self._closures.running:
            is_between = number % self._workers.num_workers == 0
            if is_between and (stop_requested(self._signals) or self._manager.wanted):
                end_number = min(end_number, number)
            oldest = min(self._closures.running, default=number)
            may_start = self._closures.may_start() and number - oldest < MOST_APART
            if number < end_number and may_start:
                self._start(number, function, next(to_read))
                number += 1
            else:
                self._await_result()
        self._num_closures += number - first
        self._variables.require_updates(self._num_closures)

    def _closure_of(self, phase: Phase) -> Callable[..., Done]:
        """Returns the function of the closures of a phase, made once."""
        if phase is not self._traced_phase:
            self._traced_phase = phase
            self._function = worker_step.make(
                self._state, self._variables, self._reading
            )
        return self._function

    def _start(
        self, number: int, function: Callable[..., object], what: ToRead
    ) -> None:
        step = number // self._workers.num_workers
        settings = self._config.settings_at(step)
        key = example_order.mix_seed(self._config.seed, DROPOUT_STREAM, step)
        changing = (
            settings.learning_rate,
            phases.velocity_factor_of_part(settings, number, self._workers.num_workers),
            settings.nesterov_momentum,
        )
        self._examples[number] = what.examples
        with self._naming_corrupt_records():
            self._closures.start(
                number,
                function,
                tf.constant(number, tf.int64),
                what,
                tf.constant(key, tf.int64),
                tf.constant(changing, tf.float32),
            )

    def _await_result(self) -> None:
        state = self._state
        with self._naming_corrupt_records():
            result = self._closures.next_result(_POLL_SECONDS)
        if result is None:
            self._require_progress()
            return
        self._ended_at = self._polled_at = time.monotonic()
        loss = float(result.value.loss)
        step = result.number // self._workers.num_workers
        self._communicator.report_status(
            f"coordinating the workers, part {result.number:,} done", is_timed=False
        )
        examples = self._examples.pop(result.number).numpy()
        folder, ranks = self._run.folder, self._communicator
        check_loss((loss, loss), step + 1, examples, folder, ranks)
        self._log.closure_done(result.value)
        self._losses.append(loss)
        if len(self._losses) == self._workers.num_workers:
            self._log.step_begins()  # The workers are at any of the steps beside it.
            state.step += 1
            state.losses.append(sum(self._losses) / self._workers.num_workers)
            self._losses.clear()
            self._log.count_step(self._config.settings_at(state.step - 1))

    def _naming_corrupt_records(self) -> AbstractContextManager[None]:
        return naming_corrupt_records(
            self._records,
            lambda: np.concatenate([part.numpy() for part in self._examples.values()]),
        )

    def _require_progress(self) -> None:
        """Ends the run if no worker has finished a closure for too long.

        The ranks of the workers restart those that are lost: the runtime waits forever.
        """
        now = time.monotonic()
        if now - self._polled_at > self._workers.stall_seconds:
            self._ended_at = now  # The job was suspended meanwhile.
        self._polled_at = now
        silence = now - self._ended_at
        if silence > 3 * self._workers.stall_seconds + START_SECONDS:
            raise AgreedFailure(
                f"no worker has finished anything for {silence:.0f} s. The same command"
                " resumes from the last checkpoint."
            )

    def _parts_from(self, first: int) -> Iterator[ToRead]:
        """Yields what to read for each closure, from a number on."""
        replacements = Replacements.of(set(), self._records.num_examples)
        of_part = input_pipeline.to_read(self._reading, replacements)
        end = self._config.train_steps * self._workers.num_workers
        return iter(tf.data.Dataset.range(first, end).map(of_part).prefetch(2))


def end_of_segment(config: Config, step: int) -> int:
    """Returns the next step after which the workers wait; not for local SGD.

    It is that of a checkpoint, an evaluation, the end of a phase or of the run,
    whichever comes first after `step` steps, which are fewer than `config.last_step`.
    """
    every = [intervals.parse(config.checkpoint_every, "--checkpoint_every")]
    if config.eval_every:
        every.append(intervals.parse(config.eval_every, "--eval_every"))
    sizes = config.num_train_examples, config.global_batch_size
    ends = [
        interval.next_end(step, *sizes)
        for interval in every
        if interval.unit != "minute"
    ]
    ends += [first for first in phases.first_steps(config.phases) if first > step]
    return min([*ends, config.last_step])


class AsyncLog(RunLog):
    """Metrics and progress lines of a run whose closures end in any order.

    A step is done whenever as many closures have ended as a global batch has parts. A
    line needs the weights of the servers, for its weight penalty.
    """

    def __init__(
        self,
        config: Config,
        state: TrainState,
        communicator: Communicator,
        variables: ServerVariables,
    ) -> None:
        super().__init__(config, state, communicator)
        self._variables = variables
        self._staleness = StalenessLog()
        self._reading_seconds = self._seconds = 0.0

    def closure_done(self, done: Done) -> None:
        """Counts a closure."""
        self._staleness.add(int(done.staleness))
        self._reading_seconds += float(done.reading_seconds)
        self._seconds += float(done.seconds)

    def _measured(self) -> dict[str, Any]:
        share = self._reading_seconds / self._seconds if self._seconds else 0.0
        self._reading_seconds = self._seconds = 0.0
        return {"input_wait_share": share, **self._staleness.report()}

    def _weight_penalty(self) -> float:
        self._variables.pull(only_weights=True)
        return super()._weight_penalty()

    def training_ended(self, target_is_reached: bool) -> None:
        """Logs the end of the training and the distribution of the staleness."""
        super().training_ended(target_is_reached)
        logging.info("Updates by their staleness: %s", self._staleness.describe())
