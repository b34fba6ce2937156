"""An asynchronous job: each rank in its role, until rank 0 ends it.

It imports TensorFlow on rank 0 only, when the cores of all ranks are settled.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence

from resnet.base import limits
from resnet.base.errors import UserError
from resnet.config import explain
from resnet.config.config import Config
from resnet.distributed.communicator import (
    AgreedError,
    AgreedFailure,
    BackgroundCommunicator,
    Communicator,
)
from resnet.hardware.placement import ProcessInfo, Threads
from resnet.runtime import preemption, program, startup
from resnet.runtime.job import Job, PreparedRun
from resnet.runtime.preemption import Preempted, StopSignals
from resnet.training.parameter_servers import private_ports, roles, serving
from resnet.training.parameter_servers.roles import (
    COORDINATOR,
    WORKER,
    Endpoint,
    Role,
    Workers,
)

_THREADS = 128  # Of a TensorFlow server, most of them of gRPC.


class JobSignals:
    """The stop requests of all ranks, as rank 0 knows them."""

    def __init__(self, own: StopSignals, background: BackgroundCommunicator) -> None:
        self._own = own
        self._background = background

    @property
    def seen(self) -> str:
        """A description of the first request; empty before."""
        if self._own.seen:
            return self._own.seen
        return "a signal to another rank" if self._background.was_notified() else ""


def train(
    prepared: PreparedRun,
    process: ProcessInfo,
    communicator: Communicator,
    signals: StopSignals,
    save_settings: Callable[[Config, int, Communicator], None],
    export: Callable[[Config, Communicator], None],
) -> None:
    """Trains on parameter servers: rank 0 coordinates, the others serve or work.

    `save_settings` writes the settings of the run, given its number of workers, and
    `export` exports the network of a run that is complete.

    Raises:
        AgreedError, AgreedFailure, Preempted: On all ranks, as rank 0 raises it.
    """
    with communicator.collective_errors():
        ranks = process.num_local_ranks, process.local_rank
        if shortage := limits.describe_shortage(*ranks, _THREADS):
            raise UserError(shortage)
        private_ports.require_library()
    role = roles.of_rank(communicator.rank, prepared.config.num_ps)
    if role.job == COORDINATOR:
        # A lost worker isn't an error: its rank tells of it in a sentence.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    settings = prepared.settings
    threads = startup.settle_placement(
        process, communicator, settings, shares_cores=role.job != WORKER
    )
    fewest_cpus = _agree_for_workers(role, prepared, threads, communicator)
    if role.job != COORDINATOR:
        serving.serve(
            role,
            threads,
            process.has_all_ranks_on_node,
            communicator,
            settings.stall_seconds,
            signals,
        )
        return
    endpoints = communicator.allgather(None)[1:]
    with communicator.collective_errors():
        pass  # If a server doesn't start.
    background = communicator.duplicate()
    job = Job(communicator.alone(), threads, JobSignals(signals, background))
    workers = Workers(
        explain.num_parts(prepared.config, communicator.num_ranks),
        prepared.config.num_parallel_calls or fewest_cpus,
        settings.stall_seconds,
    )
    try:
        communicator.report_status("coordinating the workers", is_timed=False)
        config, is_complete = _coordinate(
            prepared, job, endpoints, workers, save_settings
        )
        if is_complete:
            export(config, job.communicator)
    except (AgreedFailure, Preempted) as error:
        background.allgather(error)
        raise
    except UserError as error:
        agreed = AgreedError(str(error))
        background.allgather(agreed)
        raise agreed from error
    background.allgather(None)


def _agree_for_workers(
    role: Role, prepared: PreparedRun, threads: Threads, communicator: Communicator
) -> int:
    """Returns the fewest processors of a worker, the same on all ranks.

    Raises:
        AgreedError: On all ranks, if the records, of which rank 0 tells the workers
            what to read, are not in the same folder.
    """
    communicator.assert_equal_across_ranks(
        "folder of records", str(prepared.record_set.records_dir)
    )
    of_ranks = communicator.allgather((role.job, len(threads.cpus)))
    return min(count for job, count in of_ranks if job == WORKER)


def _coordinate(
    prepared: PreparedRun,
    job: Job,
    endpoints: Sequence[Endpoint],
    workers: Workers,
    save_settings: Callable[[Config, int, Communicator], None],
) -> tuple[Config, bool]:
    """Trains as the coordinator; returns the settings, and whether the run is complete.

    `job` is rank 0 alone, with the stop requests of all ranks.
    """
    startup.start_tensorflow(job.communicator)
    program.require_exit_at_once()
    from resnet.runtime import precision
    from resnet.training.parameter_servers import closures
    from resnet.training.parameter_servers.training import AsyncTraining

    chosen = precision.choose(prepared.config.precision, job.communicator)
    config = dataclasses.replace(prepared.config, precision=chosen)
    of_rank_0 = {name: of[:1] for name, of in prepared.shards_of_ranks.items()}
    shards = startup.open_shards(prepared.record_set, of_rank_0, job.communicator)
    save_settings(config, workers.num_workers, job.communicator)
    run = prepared.opened(config, shards)
    connect = functools.partial(closures.connect, endpoints)
    coordinator = preemption.call_until_stopped(connect, job.signals)
    training = AsyncTraining(run, job, coordinator, workers)
    return config, training.run()
