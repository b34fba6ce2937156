"""Logs the steps and evaluations of a run, on all ranks."""

import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from data_prep.records import manifest
from resnet.config import phases
from resnet.config.config import Config
from resnet.config.phases import StepSettings
from resnet.distributed import digests
from resnet.distributed.communicator import Communicator
from resnet.exchange.account import ExchangeAccount
from resnet.hardware import cpu_features, host
from resnet.metrics import jsonl, provenance, record_log
from resnet.metrics.metrics_log import MetricsLog
from resnet.metrics.progress import Progress
from resnet.metrics.record_log import RecordLog
from resnet.metrics.slow_hosts import SlowHosts
from resnet.metrics.step_costs import StepCosts
from resnet.optim import optimizer
from resnet.optim.train_state import TrainState
from resnet.watchdog import history

_DIGEST_SHARE = 0.005  # Of the time from line to line, for the digest of the state.


class RunLog:
    """Metrics, progress lines, costs of steps and record log of a run."""

    def __init__(
        self, config: Config, state: TrainState, communicator: Communicator
    ) -> None:
        """Opens or continues the files of a run; all ranks raise an AgreedError."""
        self._config = config
        self._state = state
        self._communicator = communicator
        self._num_skipped = 0
        self._penalty = 0.0
        self._results: dict[str, str] = {}  # The newest of each kind, as it is shown.
        self._started_at = self._line_at = time.monotonic()
        self._digest_seconds = 0.0
        rank, num_ranks = communicator.rank, communicator.num_ranks
        model_dir = Path(config.model_dir)
        communicator.report_status("opening the logs", is_timed=False)
        with communicator.collective_errors():
            if rank == 0:
                events, _ = history.read(model_dir)
                is_first = all(event["event"] != "start" for event in events)
                record_log.prepare(config.record_log, state.step, is_first)
        with communicator.collective_errors():
            self._records = RecordLog(config.record_log, state.step, rank, num_ranks)
            self._metrics = MetricsLog(
                model_dir,
                state.step,
                rank,
                state.best_value is not None,
                state.num_log_lines,
            )
            state.num_log_lines = self._metrics.num_lines
        local_batch_size = config.global_batch_size // num_ranks
        self.costs = StepCosts(communicator, local_batch_size)
        self._slow_hosts = SlowHosts(communicator, model_dir)
        self.progress = Progress(config, state.step, rank)

    def training_starts(self) -> None:
        """Logs the length of the training and the step; notes machine and software."""
        config = self._config
        logging.info(
            f"{config.model} by the recipe {config.recipe}:"
            f" {config.num_train_examples:,} images of {config.num_classes:,} classes,"
            f"{' several labels an image,' * config.multi_label}"
            f" {config.global_batch_size:,} per step"
        )
        logging.info(
            "Training for %d steps (%.2f epochs in total). Current step %d.",
            config.train_steps,
            config.epoch(config.train_steps),
            self._state.step,
        )
        process_start = round(time.time() - host.process_age_seconds(), 3)
        hosts = self._communicator.gather_objects(platform.node())
        facts: dict[str, Any] = {}
        if not config.is_async:  # There the coordinator is alone here.
            facts["num_ranks"] = self._communicator.num_ranks
            facts["hosts"] = Counter(hosts or [])
        if self._communicator.rank == 0:
            facts |= provenance.describe()
        cpu, cores = cpu_features.model_name(), os.cpu_count()
        self._note("start", **facts, cpu=cpu, cores=cores, process_start=process_start)

    def _note(self, event: str, **facts: Any) -> None:
        if self._communicator.rank == 0:
            folder = Path(self._config.model_dir)
            with self._communicator.writing(history.FILE):
                history.append(folder, event, step=self._state.step, **facts)

    def training_ended(self, target_is_reached: bool) -> None:
        """Logs the end of the training, or that it has reached `stop_at`."""
        reason = "is done"
        if self._state.step < self._config.train_steps:
            reason = f"stops after --stop_after_steps={self._config.stop_after_steps}"
            reason += "; without that flag, the same command resumes it"
            if target_is_reached:
                reason = f"has reached --stop_at={self._config.stop_at:g}"
            logging.info("The training %s.", reason)
        self._note("end", reason=f"the training {reason}")
        logging.info(
            "Finished training up to step %d. Elapsed seconds %d.",
            self._state.step,
            time.monotonic() - self._started_at,
        )
        if not logging.level_info() and self._communicator.rank == 0:  # With --quiet.
            print(*self._results.values(), sep="\n", file=sys.stderr)

    def examples_read(self, step: int, examples: np.ndarray, mask: np.ndarray) -> None:
        """Logs the examples of a batch, int64 `[local_batch]`; intact ones by mask."""
        if self._config.record_log:
            with self._communicator.writing(f"the record log of step {step + 1}"):
                self._records.write(step, examples, mask)
        self._num_skipped += int(np.count_nonzero(~mask))

    def step_begins(self) -> None:
        """Notes the weight penalty, if a line is due after the step, before it.

        So it is that of the weights of which the step's cross-entropy is.
        """
        if self._is_due_after(self._state.step + 1):
            self._penalty = self._weight_penalty()

    def _is_due_after(self, step: int) -> bool:
        config = self._config
        return step == config.last_step or step % config.log_step_count_steps == 0

    def step_done(self, settings: StepSettings, account: ExchangeAccount) -> None:
        """Counts a step, and logs it where a line is due."""
        self.costs.step_done(account)
        self.count_step(settings)

    def count_step(self, settings: StepSettings) -> None:
        """Counts a step whose costs are counted, and logs it where a line is due."""
        config, state = self._config, self._state
        self.progress.step_done()
        if not self._is_due_after(state.step):
            self.progress.show_if_silent()
            return
        cross_entropy = math.fsum(state.losses) / len(state.losses)
        state.losses.clear()
        numbers: dict[str, Any] = {
            "loss": cross_entropy + self._penalty,
            "cross_entropy": cross_entropy,
            "weight_penalty": self._penalty,
            "learning_rate": settings.learning_rate,
        }
        numbers["images_per_second"] = self.progress.show(numbers)
        numbers |= self._measured()
        if config.on_bad_record == "skip":
            (total,) = self._communicator.allreduce_sum(np.array([self._num_skipped]))
            numbers["skipped_records"] = int(total)
            self._num_skipped = 0
        self._write("train", numbers | self._state_digest())

    def _measured(self) -> dict[str, Any]:
        """Returns what was measured since the last line, by the metrics' names."""
        numbers = self.costs.report()
        step = self._state.step
        phase = phases.at(self._config.phases, step - 1)
        self._slow_hosts.update(step, phase, self.costs.num_images, self.costs.seconds)
        return numbers

    def _state_digest(self) -> dict[str, int]:
        """Returns the digest of rank 0's state, if it costs under 0.5 % of the time.

        By the duration of the last one, so that the first line always has one.
        """
        began_at = time.monotonic()
        since_line, self._line_at = began_at - self._line_at, began_at
        if (
            self._communicator.rank != 0
            or self._config.is_async
            or not self._state.is_synchronized
            or self._digest_seconds > _DIGEST_SHARE * since_line
        ):
            return {}
        digest = digests.digest_of_state(
            {name: value.read_value() for name, value in self._state.tensors().items()}
        )
        self._digest_seconds = time.monotonic() - began_at
        return {jsonl.STATE_DIGEST: digest}

    def _weight_penalty(self) -> float:
        """Returns the mean over ranks, whose weights differ in a round of local SGD."""
        step = self._state.step + 1  # That begins now, with the decay of its phase.
        own = optimizer.weight_penalty(self._state.model, self._config, step)
        if self._state.is_synchronized:
            return own
        (total,) = self._communicator.allreduce_sum(np.array([own]))
        return float(total) / self._communicator.num_ranks

    def evaluated(
        self, kind: str, numbers: Mapping[str, float], seconds: float, text: str
    ) -> None:
        """Logs and shows the result of an evaluation of `METRICS_KINDS`."""
        self._write(kind, {**numbers, "seconds": seconds})
        what = {"eval_ema": ", EMA weights", "eval_train": ", training images"}
        self._results[kind] = f"step {self._state.step}{what.get(kind, '')}: {text}"
        self.progress.say(self._results[kind])
        if kind == "eval_train":
            self.progress.say(f"The data set has {manifest.NO_VALIDATION}.")

    def receipt(
        self, gradient_digests: Sequence[int] = (), num_intra_threads: int = 0
    ) -> None:
        """Logs the digests by which the run can be verified, after it was saved.

        The gradients are those of all ranks in the step that follows, none at the end;
        their bits depend on the number of threads.
        """
        numbers: dict[str, Any] = {
            jsonl.STATE_DIGEST: self._state.saved_digest,
            "log_digest": self._metrics.digest,
        }
        if gradient_digests:
            numbers["num_intra_threads"] = num_intra_threads
            numbers["gradient_digests"] = list(gradient_digests)
        self._write(jsonl.RECEIPT, numbers)

    def _write(self, kind: str, numbers: Mapping[str, Any]) -> None:
        step = self._state.step
        timed = {**numbers, jsonl.TIME: time.time()}
        with self._writing_metrics():
            self._metrics.write(kind, step, self._config.epoch(step), timed)
        self._state.num_log_lines = self._metrics.num_lines

    def sync(self) -> None:
        """Flushes the metrics so far to disk, so that they survive a crash."""
        with self._writing_metrics():
            self._metrics.sync()

    def _writing_metrics(self) -> AbstractContextManager[None]:
        if self._communicator.rank != 0:
            return nullcontext()
        return self._communicator.writing(f"the metrics of step {self._state.step}")

    def close(self) -> None:
        """Closes the files."""
        self._records.close()
        self.progress.close()
        self._metrics.close()
