"""Who computes, and what: the two values that travel through a training."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.records.manifest import RecordSet
from resnet.config.command_line import JobSettings
from resnet.config.config import Config
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import Threads
from resnet.runtime.preemption import SeenSignals
from resnet.runtime.run_lock import RunLock

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.data.record_files import ExampleShard


_MOST_TRAINING_IMAGES = 10_000  # That are evaluated; more take longer than they tell.


@dataclass(frozen=True)
class PreparedRun:
    """What is settled, and the same on all ranks, before TensorFlow is imported.

    `shards_of_ranks` has for each split that the run reads the shards of each rank;
    `lock` is that of the run's folder on rank 0, and None on other ranks.
    """

    config: Config
    settings: JobSettings
    record_set: RecordSet
    shards_of_ranks: Mapping[str, list[tuple[int, ...]]]
    lock: RunLock | None

    def opened(self, config: Config, shards: "Mapping[str, ExampleShard]") -> "Run":
        """Returns the run of final settings, with this rank's part of each split."""
        verify = functools.partial(
            record_sets.verify_changed, self.record_set, self.shards_of_ranks
        )
        return Run(config, shards["train"], shards.get("validation"), self.lock, verify)


@dataclass(frozen=True)
class Job:
    """Who computes: the ranks, and the threads and processors of this rank.

    `signals` are the stop requests that this rank knows of; None ignores them.
    """

    communicator: Communicator
    threads: Threads
    signals: SeenSignals | None = None

    def num_parallel_calls(self, config: Config) -> int:
        """Returns the number of images that this rank decodes at the same time."""
        return config.num_parallel_calls or len(self.threads.cpus)


@dataclass(frozen=True)
class Run:
    """What is trained, and on which examples this rank reads.

    In the settings, neither the precision nor the exchange is "auto". `validation` is
    None for a run without evaluation, and `lock` on all ranks but rank 0. Before they
    save, all ranks call `verify_records`, of `record_sets.verify_changed`.
    """

    config: Config
    train: "ExampleShard"
    validation: "ExampleShard | None" = None
    lock: RunLock | None = None
    verify_records: Callable[[Communicator], None] = lambda _: None

    @property
    def evaluated(self) -> "ExampleShard | None":
        """The examples whose accuracy is measured; a sample to train on, if need be."""
        if self.config.mode == "train":
            return None
        return self.validation or self.train.sample(_MOST_TRAINING_IMAGES)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.config.model_dir)
