"""Exact evaluation by the workers: each example counts once, on any number of them."""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from resnet.data import input_pipeline
from resnet.data.corrupt_records import Replacements
from resnet.data.input_pipeline import ToRead
from resnet.evaluation.evaluator import Result, no_sums, result_of, sums_of_batch
from resnet.runtime.job import Job, Run
from resnet.runtime.preemption import Preempted, stop_requested
from resnet.training.parameter_servers.closures import Closures, naming_corrupt_records
from resnet.training.parameter_servers.roles import Workers
from resnet.training.parameter_servers.servers import ServerVariables

_POLL_SECONDS = 0.5


class WorkerEvaluator:
    """Evaluates the weights on the servers, any number of times."""

    def __init__(
        self,
        run: Run,
        job: Job,
        model: keras.Model,
        variables: ServerVariables,
        closures: Closures,
        workers: Workers,
    ) -> None:
        """Prepares the evaluation of all examples that the run evaluates.

        `eval_batch_size` is the number of images that all workers process at a time.
        """
        shard = run.evaluated
        assert shard is not None  # noqa: S101 - Else nothing is evaluated.
        self._config = run.config
        self._model = model
        self._variables = variables
        self._records = shard.records
        self._closures = closures
        self._num_parallel_calls = workers.num_parallel_calls
        self._signals = job.signals
        self._communicator = job.communicator
        of_worker = -(-run.config.eval_batch_size // workers.num_workers)
        self._batch_size = min(of_worker, self._records.num_examples)
        none = Replacements.of(set(), self._records.num_examples)
        self._to_read = input_pipeline.eval_to_read(shard, self._batch_size, none)
        self._sums_of_batch = tf.function(self._evaluate_batch, autograph=False)

    def evaluate(self, penalty: float = 0.0) -> Result:
        """Returns the result on all examples.

        Raises:
            Preempted: If the run was asked to stop.
            UserError: If a record is corrupt.
            RuntimeError: If not every example was counted once.
        """
        self._communicator.report_status("evaluating the first batch", is_timed=False)
        num_examples = self._records.num_examples
        firsts = deque(range(0, num_examples, self._batch_size))
        sums = no_sums(self._config.num_classes)
        while firsts or self._closures.running:
            if stop_requested(self._signals):
                firsts.clear()
            if firsts and self._closures.may_start():
                first = firsts.popleft()
                batch = tf.constant(first // self._batch_size, tf.int64)
                with self._naming_corrupt_records(first):
                    what = self._to_read(batch)
                    self._closures.start(first, self._sums_of_batch, what)
                continue
            with self._naming_corrupt_records():
                result = self._closures.next_result(_POLL_SECONDS)
            if result is not None:
                sums += result.value
                self._communicator.report_status(
                    f"evaluating the batch from example {result.number}", is_timed=False
                )
        if stop_requested(self._signals):
            raise Preempted(
                "stopped during an evaluation",
                "Rerun the same command to start the evaluation over",
            )
        of_all = result_of(sums.tolist(), 0, num_examples, penalty)
        return replace(of_all, num_classes=self._config.num_classes)

    def _naming_corrupt_records(self, *starting: int) -> AbstractContextManager[None]:
        """Returns `naming_corrupt_records` for batches, by their first examples."""
        running = sorted({*self._closures.running, *starting})
        end = self._records.num_examples

        def examples_read() -> np.ndarray:
            ends = [min(first + self._batch_size, end) for first in running]
            return np.concatenate(list(map(np.arange, running, ends)))

        return naming_corrupt_records(self._records, examples_read)

    def _evaluate_batch(self, what: ToRead) -> tf.Tensor:
        config, size = self._config, self._batch_size
        batch = input_pipeline.read_eval_batch(
            what, self._records, config, size, self._num_parallel_calls
        )
        with tf.control_dependencies(list(batch)):
            weights = self._variables.read_weights()
            averages = self._variables.read_averages()
        model = self._model
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        pairs = zip(variables, [*weights, *averages], strict=True)
        with keras.StatelessScope(list(pairs)):
            logits = model(batch.images, training=False)
        return sums_of_batch(logits, batch.labels, batch.mask, config.phases[-1])
