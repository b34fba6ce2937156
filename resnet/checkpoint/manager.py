"""Decides when a run saves a checkpoint, checks the state, and takes the snapshot."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from resnet.base import intervals
from resnet.checkpoint.async_writer import CheckpointWriter
from resnet.checkpoint.tensors import ALONE, RANK_BATCH_NORM, Checkpoint
from resnet.config import phases, rounds
from resnet.config.config import Config
from resnet.distributed.communicator import AgreedError, AgreedFailure, Communicator
from resnet.optim.train_state import TrainState, averaged_over_ranks, flatten
from resnet.runtime import divergence, versions
from resnet.runtime.preemption import Preempted
from resnet.runtime.run_lock import RunLock

_SECONDS_OF_OTHERS = 3.0  # What the other ranks have to fail, too.


class CheckpointManager:
    """Saves the checkpoints of one run as often as its settings say."""

    def __init__(
        self,
        config: Config,
        state: TrainState,
        communicator: Communicator,
        lock: RunLock | None = None,
        verify_records: Callable[[Communicator], None] = lambda _: None,
    ) -> None:
        """Starts the intervals between checkpoints at the present state.

        Rank 0 writes the checkpoint; each rank with `rank_variables` writes those
        itself. `lock` and `verify_records` are those of `job.Run`.
        """
        self._config = config
        self._verify_records = verify_records
        self._lock = lock
        self._state = state
        self._communicator = communicator
        self._interval = intervals.parse(config.checkpoint_every, "--checkpoint_every")
        self._saved_step = state.step
        self._saved_at = time.monotonic()
        self._installation = versions.describe()
        # If ranks have no state of their own, rank 0 writes alone and needs no others.
        ranks = communicator.duplicate() if state.rank_variables else ALONE
        self._writer = CheckpointWriter(
            Path(config.model_dir), config.keep_checkpoints, ranks=ranks
        )
        self._failing = communicator.duplicate()

    @property
    def wanted(self) -> bool:
        """Whether rank 0 wants a checkpoint: by its clock, or because a save failed."""
        if self._communicator.rank != 0:
            return False
        seconds = self._interval.seconds
        is_time = seconds and time.monotonic() - self._saved_at >= seconds
        return bool(is_time) or self._writer.wants_another

    @property
    def is_due(self) -> bool:
        """Whether the settings ask for a checkpoint after the step just done."""
        config, step = self._config, self._state.step
        is_end = phases.ended_by(config.phases, step) is not None
        return is_end or rounds.ends_interval(config, self._interval, step)

    def save(self, evaluated: Mapping[str, Mapping[str, float]]) -> None:
        """Saves the state in the background, unless it is saved already.

        The metrics are those of the evaluations of this very state, by their keys in
        the metadata; empty if it was not evaluated. On all ranks it raises AgreedError
        if the run's folder is no longer there, or another job's, or the records have
        changed, and AgreedFailure as `take_snapshot`.
        """
        if self._saved_step == self._state.step and not evaluated:
            return
        self._communicator.report_status(
            f"saving step {self._state.step}", waits_for_others=True
        )
        with self._communicator.collective_errors():
            self._require_folder()
        self._verify_records(self._communicator)
        metadata: dict[str, Any] = {
            "config": dataclasses.asdict(self._config),
            "installation": self._installation,
        }
        metadata.update(evaluated)
        ended = phases.ended_by(self._config.phases, self._state.step)
        if ended is not None:
            metadata["ends_phase"] = ended.name
        snapshot = take_snapshot(self._state, metadata, self._communicator)
        if snapshot is not None:
            self._writer.submit(snapshot)
            if ended is not None:  # Always kept: no newer snapshot may replace it.
                self._communicator.report_status(
                    f"waiting for the checkpoint of step {self._state.step}",
                    is_timed=False,
                )
                self._writer.try_to_finish()
        self._saved_step, self._saved_at = self._state.step, time.monotonic()

    def finish(self) -> None:
        """Waits until the newest snapshot is written; AgreedError if it can't be."""
        self._communicator.report_status(
            "waiting for the last checkpoint", is_timed=False
        )
        with self._communicator.collective_errors():
            self._writer.finish()
            self._require_folder()

    @contextlib.contextmanager
    def saved_if_failed(self, save: Callable[[], None]) -> Iterator[None]:
        """Saves the state, by a function, if the block fails on all ranks.

        A rank that fails alone saves nothing: the others wait for it within the next
        step. Neither does one whose state is not whole. What all ranks raise on purpose
        leaves nothing to save.
        """
        try:
            yield
        except (AgreedError, AgreedFailure, Preempted):
            raise
        except Exception:
            step = self._state.step if self._state.is_whole else -1
            steps = self._failing.allgather_within(_SECONDS_OF_OTHERS, step)
            if steps and min(steps) == max(steps) > 0:
                self._save_after_failure(save)
            raise

    def _save_after_failure(self, save: Callable[[], None]) -> None:
        status, step = self._communicator.status, self._state.step
        try:
            save()
            self.finish()
        except Exception as error:  # The first one is the one to report.
            logging.error("The state after step %d can't be saved: %s", step, error)
        else:
            logging.info("The state after step %d is saved.", step)
        self._communicator.report_status(*status)

    def _require_folder(self) -> None:
        if self._lock is not None:
            self._lock.require()

    def close(self) -> None:
        """Waits for the background writer; also when the run fails."""
        status, _, waits_for_others = self._communicator.status
        self._communicator.report_status(status, False, waits_for_others)
        self._writer.close()


def take_snapshot(
    state: TrainState, metadata: Mapping[str, Any], communicator: Communicator
) -> Checkpoint | None:
    """Returns the part of a checkpoint that this rank writes; None if it writes none.

    Rank 0 writes everything except the other ranks' own state. In a round of local SGD
    the network has the mean over ranks of the weights, and each rank's own weights are
    among its own state. The tensors are those of the variables themselves, not copies:
    the next update of a variable allocates a new tensor and leaves this one unchanged.
    All ranks must call it; the metadata are JSON values.

    Raises AgreedFailure, on all ranks, if anything that is saved is not finite, or
    differs between ranks that must have the same.
    """
    own = flatten(state.batch_norm_averages)
    rank_averages = None
    if communicator.num_ranks > 1 and len(own):  # Some networks have no BatchNorm.
        rank_averages = communicator.gather(own)
    own_averages = _values(state.named_averages)
    apart = [] if state.is_synchronized else state.trainable_variables
    with (
        averaged_over_ranks(state.batch_norm_averages, communicator),
        averaged_over_ranks(apart, communicator),
    ):
        tensors = _values(state.tensors())
    own_tensors = _values(state.own_variables)
    digest = divergence.check_state(
        state.step, tensors, own_averages | own_tensors, communicator
    )
    state.saved_digest = digest if state.is_synchronized else None
    if communicator.rank != 0:
        if not own_tensors:
            return None
        tensors = {}
    if rank_averages is not None:
        tensors[RANK_BATCH_NORM] = rank_averages
    metadata = {
        **metadata,
        "num_ranks": communicator.num_ranks,
        "losses": list(state.losses),
        "num_log_lines": state.num_log_lines,
        "state_digest": state.saved_digest,
    }
    return Checkpoint(state.step, tensors, metadata, own_tensors)


def _values(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {name: variable.read_value() for name, variable in variables.items()}
