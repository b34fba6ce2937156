"""The start-up sequence of every program that trains or evaluates on all ranks.

The functions stand in the order in which a program calls them: it parses its flags,
joins the job, opens the record set (`record_sets.open_record_set`), resolves its
settings, checks them and the shards on all ranks, starts TensorFlow on its own cores,
opens the shards, and chooses the precision (`precision.choose`). What a user can get
wrong is refused before TensorFlow is imported, on all ranks and with exit code 2.
"""

import contextlib
import dataclasses
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from data_prep.records.manifest import RecordSet
from resnet.base import environment, limits, output
from resnet.base.errors import UserError
from resnet.base.text import counted
from resnet.config.command_line import JobSettings
from resnet.data import record_sets
from resnet.distributed.communicator import Communicator
from resnet.hardware import cpu_features, physical_cores, placement
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.runtime import versions
from resnet.watchdog import scratch_dir

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.data.record_files import ExampleShard

# Keras imports them where they are installed, for wrappers and plots of its own, and
# TensorFlow's own Keras for sparse matrices: a third of the time and an eighth of the
# memory of importing TensorFlow.
_UNUSED_BY_KERAS = ("matplotlib", "sklearn", "scipy")
_KERAS_DEFAULTS = {
    "backend": "tensorflow",
    "floatx": "float32",
    "epsilon": 1e-7,
    "image_data_format": "channels_last",
}


def join_job(
    process: ProcessInfo,
    communicator: Communicator,
    stall_seconds: float,
    model_dir: str | None = None,
    outlives_launcher: bool = False,
) -> None:
    """Starts the watchdog, and checks that all ranks run the same installation.

    Raises:
        AgreedError: On all ranks, if the installations differ, or one is hidden.
    """
    communicator.start_watchdog(process, stall_seconds, model_dir, outlives_launcher)
    with communicator.collective_errors():
        versions.check_origins()
    shared = {"Horovod variables": environment.of_all_ranks(os.environ)}
    for what, value in {**versions.describe(), **shared}.items():
        communicator.assert_equal_across_ranks(what, value)


def check_same_settings(
    what: str, record_set: RecordSet | None, settings: Any, communicator: Communicator
) -> None:
    """Refuses ranks that have different data sets (apart from the source) or settings.

    Raises:
        AgreedError: On all ranks, if they differ, saying what.
    """
    contents = dataclasses.replace(record_set.manifest, source={}) if record_set else ""
    communicator.assert_equal_across_ranks(what, repr((contents, settings)))


def check_shards(
    record_set: RecordSet,
    split_names: Sequence[str],
    shard_by: str,
    communicator: Communicator,
    on_bad_record: str = "skip",
) -> dict[str, list[tuple[int, ...]]]:
    """Checks the shards of some splits; returns which shards each rank reads of each.

    By "example" each rank reads all shards, by "file" those on its node.

    Raises:
        AgreedError: On all ranks, if a shard is missing, truncated, changed, or not on
            the nodes where `shard_by` requires it; unless bad records are skipped, also
            if one of a file that is verified now is corrupt.
    """
    splits = record_set.manifest.splits
    shards = {
        name: record_sets.check_split(record_set, splits[name], shard_by, communicator)
        for name in split_names
    }
    accepts_corrupt = on_bad_record == "skip"
    record_sets.verify_changed(record_set, shards, communicator, accepts_corrupt)
    return shards


def start_on_own_cores(
    process: ProcessInfo, communicator: Communicator, settings: JobSettings
) -> Threads:
    """Binds this rank to its cores, then starts TensorFlow; returns the threads."""
    threads = settle_placement(process, communicator, settings)
    start_tensorflow(communicator)  # It reads the environment that is set now.
    return threads


def start_alone() -> None:
    """Starts TensorFlow on the cores of a process by itself."""
    process = ProcessInfo()
    start_on_own_cores(process, Communicator(process), JobSettings())


def settle_placement(
    process: ProcessInfo,
    communicator: Communicator,
    settings: JobSettings,
    shares_cores: bool = False,
) -> Threads:
    """Binds this rank to its cores and sets its environment; returns its threads.

    To be called before TensorFlow is imported. `shares_cores` says that this rank
    computes so little that it may run on all cores that it may use, which the other
    ranks divide among themselves.
    """
    own = (physical_cores.usable(), shares_cores)
    of_ranks = communicator.allgather_on_node(own)
    num_on_machine = max(len(of_ranks), process.num_local_ranks)
    if len(of_ranks) != process.num_local_ranks:  # Simulated hosts on one machine.
        of_ranks = [own] * process.num_local_ranks
    cores, _ = own
    cpu_quota = limits.cpu_quota()
    if not shares_cores:
        dividing = [cores for cores, shares in of_ranks if not shares]
        cpu_quota /= len(dividing)
        index = sum(not shares for _, shares in of_ranks[: process.local_rank])
        cores = physical_cores.of_rank(index, dividing)
    threads = placement.choose_threads(
        cores, settings.num_intra_threads, settings.num_inter_threads, cpu_quota
    )
    hidden = cpu_features.amx_is_hidden(cpu_features.flags())
    variables = placement.environment(
        threads, settings.kmp_blocktime, hidden, os.environ, num_on_machine
    )
    if ignored := placement.apply(threads, variables):
        logging.warning("%s", ignored)
    if 0 < cpu_quota < len(cores):
        logging.info("a cgroup allows this rank the time of %g processors", cpu_quota)
    num_usable_cores = len({core for cores, _ in of_ranks for core in cores})
    _log_placement(process, threads, len(cores), num_usable_cores)
    if hidden:
        logging.warning(
            "this CPU or virtual machine advertises AMX but not the CPUID leaf that"
            " describes its tiles: oneDNN is limited to AVX512_CORE_BF16, since it"
            " would crash in bfloat16 otherwise"
        )
    return threads


def _log_placement(
    process: ProcessInfo, threads: Threads, num_cores: int, num_usable_cores: int
) -> None:
    """Logs the cores and threads of a rank, and warns where they cost speed.

    The rank has `num_cores`; all ranks of the node may use `num_usable_cores`.
    """
    cores_of_node = len(physical_cores.group_by_core(range(os.cpu_count() or 1)))
    num_ranks, num_threads = process.num_local_ranks, threads.num_intra_threads
    here = f", {num_ranks} on this node" if num_ranks < process.num_ranks else ""
    logging.info(
        f"{counted(process.num_ranks, 'rank')}{here}: {num_cores} of"
        f" {counted(num_usable_cores, 'core')} each, {num_threads} intra-op and"
        f" {counted(threads.num_inter_threads, 'inter-op thread')}"
    )
    if num_ranks > num_usable_cores or num_threads > num_cores:
        logging.warning(
            f"more threads than cores on this node: {counted(num_ranks, 'rank')} of"
            f" {num_threads}, cores {num_usable_cores}. The threads will compete: start"
            " fewer ranks, or give a smaller --num_intra_threads."
        )
    if num_usable_cores < cores_of_node and process.num_ranks > 1:
        logging.warning(
            f"the launcher binds the ranks to only {num_usable_cores} of this node's"
            f" {cores_of_node} cores. If this is not intended, turn the binding off"
            " (such as mpirun --bind-to none)"
        )


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    """Makes the import of packages fail inside the block, unless they are loaded."""
    missing = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def start_tensorflow(communicator: Communicator) -> None:
    """Imports TensorFlow and starts Horovod.

    From then on the temporary files of this process are in its `scratch_dir`.
    """
    limits.allow_open_files()
    scratch_dir.make()
    import_tensorflow()
    communicator.start_horovod()
    if not placement.openmp_is_loaded():
        logging.debug(
            "KMP_* and OMP_* (--kmp_blocktime among them) have no effect in this"
            " TensorFlow, whose oneDNN runs on TensorFlow's own threads:"
            " --num_intra_threads and --num_inter_threads set those"
        )


def import_tensorflow() -> None:
    """Imports TensorFlow without its notes.

    Also outside ranks, the environment is that of `environment.changes`.

    Raises:
        UserError: If another installation hides this one, a limit is too low, or Keras
            was imported before with other settings.
    """
    if "tensorflow" not in sys.modules:
        versions.check_origins()
        if shortage := limits.describe_shortage():
            raise UserError(shortage)
        changed = environment.changes(os.environ)
        if ignored := environment.settle(os.environ, changed):
            logging.warning("%s", ignored)
    with output.without_startup_notes(), _without_garbage_collection():
        with _hidden(_UNUSED_BY_KERAS):
            tensorflow = importlib.import_module("tensorflow")
        tensorflow.config.list_physical_devices()  # Searches for GPUs and logs it.
        # This optimization regroups sums of several tensors, in an order that differs
        # between processes: so would the rounding of repeated and resumed runs.
        tensorflow.config.optimizer.set_experimental_options(
            {"arithmetic_optimization": False}
        )
    _check_keras()


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Doesn't look for garbage in the block, nor later among what exists at its end.

    TensorFlow makes 0.4 million objects that stay: to search them time and again takes
    a sixth of its import, and to search them once 0.2 s, also in the middle of a step.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _check_keras() -> None:
    """Refuses other defaults of Keras: networks would silently be other ones."""
    config = importlib.import_module("keras").config
    for name, value in _KERAS_DEFAULTS.items():
        if (other := getattr(config, name)()) != value:
            raise UserError(
                f"Keras must have {name} {value}; it has {other}, since it was imported"
                f" before. Import resnet first, or call keras.config.set_{name}."
            )


def open_shards(
    record_set: RecordSet,
    shards: Mapping[str, list[tuple[int, ...]]],
    communicator: Communicator,
    class_names: tuple[str, ...] = (),
) -> dict[str, "ExampleShard"]:
    """Returns the part that this rank reads of each split of `check_shards`.

    The class names are those of the run, if the set may have others (`open_split`).

    Raises:
        AgreedError: On all ranks, if the index of a shard can't be read.
    """
    from resnet.data import record_files

    shards_of_rank = {}
    with communicator.collective_errors():
        for name, of_ranks in shards.items():
            split = record_files.open_split(record_set, name, class_names)
            part = record_files.shard_of_rank(split, of_ranks, communicator.rank)
            shards_of_rank[name] = part
    return shards_of_rank
