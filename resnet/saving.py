"""When a run saves, and what all ranks make sure of before."""

import dataclasses
import platform
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from resnet import installation, intervals, phases
from resnet.checkpoint_writer import CheckpointWriter
from resnet.config import Config
from resnet.distributed import AgreedFailure, Communicator
from resnet.train_state import TrainState, take_snapshot


class Saving:
    """The checkpoints of one run, as often as its settings say."""

    def __init__(
        self, config: Config, state: TrainState, communicator: Communicator
    ) -> None:
        """Begins a run, or goes on with one.

        Args:
            config: The run's settings.
            state: What is saved.
            communicator: The ranks; rank 0 writes.
        """
        self._config = config
        self._state = state
        self._communicator = communicator
        self._interval = intervals.parse(config.checkpoint_every, "--checkpoint_every")
        self._saved_step = state.step
        self._saved_at = time.monotonic()
        self._installation = installation.describe()
        self._writer = CheckpointWriter(Path(config.model_dir), config.keep_checkpoints)

    @property
    def wanted(self) -> bool:
        """Whether rank 0 asks for one: by its clock, or because a save failed."""
        if self._communicator.rank != 0:
            return False
        seconds = self._interval.seconds
        is_time = seconds and time.monotonic() - self._saved_at >= seconds
        return bool(is_time) or self._writer.wants_another

    @property
    def is_due(self) -> bool:
        """Whether the settings ask for one after the step just done."""
        config, step = self._config, self._state.step
        is_end = phases.ended_by(config.phases, step) is not None
        return is_end or self._interval.ends_at(
            step, config.num_train_examples, config.global_batch_size
        )

    def save(self, evaluated: Mapping[str, Mapping[str, float]]) -> None:
        """Has the state written in the background, if it isn't already.

        Args:
            evaluated: What evaluating this very state found, if it was, by the name of
                the checkpoint's fact.

        Raises:
            AgreedFailure: If the ranks' weights are no numbers, or not the same.
        """
        if self._saved_step == self._state.step and not evaluated:
            return
        self._communicator.doing(
            f"saving step {self._state.step}", waits_for_others=True
        )
        check_weights(self._state, self._communicator)
        facts: dict[str, Any] = {
            "config": dataclasses.asdict(self._config),
            "installation": self._installation,
        }
        facts.update(evaluated)
        ended = phases.ended_by(self._config.phases, self._state.step)
        if ended is not None:
            facts["ends_phase"] = ended.name
        snapshot = take_snapshot(self._state, facts, self._communicator)
        if snapshot is not None:
            self._writer.submit(snapshot)
            if ended is not None:  # Kept: a later one must not take its place.
                self._writer.close()
        self._saved_step, self._saved_at = self._state.step, time.monotonic()

    def finish(self) -> None:
        """Waits until what was to be saved is.

        Raises:
            UserError: On all ranks, if it can't be.
        """
        self._communicator.doing("waiting for the last checkpoint", is_timed=False)
        with self._communicator.together():
            self._writer.finish()

    def close(self) -> None:
        """Waits until what is being written is; also when the run fails meanwhile."""
        self._writer.close()


def check_weights(state: TrainState, communicator: Communicator) -> None:
    """Makes sure that all ranks have the same weights, and that these are numbers.

    A digest of a rank's trainable variables travels, not they themselves: the CRC-32C
    of all their bits, which is as fast as memory is read.

    Raises:
        AgreedFailure: On all ranks, naming those that differ from most.
    """
    digest, is_finite = 0, True
    for variable in state.trainable_variables:
        values = np.asarray(memoryview(variable.read_value())).ravel()  # No copy.
        values.flags.writeable = False  # As CRC-32C asks for.
        digest = google_crc32c.extend(digest, values)
        is_finite = is_finite and bool(np.isfinite(np.sum(values)))
    seen = communicator.gather((digest, is_finite, platform.node()))
    if not all(finite for _, finite, _ in seen):
        raise AgreedFailure(
            f"the weights after step {state.step} are no longer numbers: the training"
            " has diverged. Lower --peak_learning_rate or lengthen the warm-up."
        )
    digests = [one for one, _, _ in seen]
    # Of two opinions held by as many, rank 0's.
    counts = Counter(digests)
    usual = max(counts, key=lambda one: (counts[one], one == digests[0]))
    drifted = [
        f"rank {rank} on {host}"
        for rank, (one, _, host) in enumerate(seen)
        if one != usual
    ]
    if drifted:
        raise AgreedFailure(
            f"the weights after step {state.step} must be the same on all ranks;"
            f" {', '.join(drifted)} differs from the others. Memory or the network of"
            " that host may be faulty: leave it out and start again."
        )
