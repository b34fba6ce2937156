"""The cluster as rank 0 sees it: connects, schedules closures, collects results."""

import contextlib
import logging
import queue
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging as absl_logging

from resnet.base.errors import UserError
from resnet.data.corrupt_records import CorruptRecords
from resnet.data.record_files import RecordFiles
from resnet.training.parameter_servers import private_ports
from resnet.training.parameter_servers.private_ports import Guard
from resnet.training.parameter_servers.roles import SERVER, WORKER, Endpoint

_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 64
_WAITING_PER_WORKER = 1  # So that a worker never waits for the coordinator.


def connect(
    endpoints: Sequence[Endpoint],
) -> tf.distribute.coordinator.ClusterCoordinator:
    """Returns the coordinator of these servers and workers.

    Raises UserError if one can't be reached.
    """
    Guard.of(None, endpoints).install()
    cluster = tf.train.ClusterSpec(_hosts_that_answer(endpoints))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, rpc_layer="grpc"
    )
    # A lost worker isn't an error: its rank tells of it in a sentence.
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.WARNING)  # At INFO, it prints its settings.
    try:
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        return tf.distribute.coordinator.ClusterCoordinator(strategy)
    finally:
        absl_logging.set_verbosity(verbosity)


def _hosts_that_answer(endpoints: Sequence[Endpoint]) -> dict[str, dict[int, str]]:
    """Returns host and port of each server, by job and index; errors as `connect`."""
    hosts: dict[str, dict[int, str]] = {SERVER: {}, WORKER: {}}
    # At the same time: an address that doesn't answer takes seconds.
    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        for server, address in zip(
            endpoints, pool.map(_reachable, endpoints), strict=True
        ):
            hosts[server.job][server.index] = address
    return hosts


def _reachable(server: Endpoint) -> str:
    """Returns the first of a host's addresses at which its server answers."""
    for address in private_ports.addresses_from_here(server):
        with contextlib.suppress(OSError):
            socket.create_connection((address, server.port), _CONNECT_SECONDS).close()
            return f"{address}:{server.port}"
    raise UserError(
        f"{server.job} {server.index} must be reachable from rank 0 by TCP; it is not,"
        f" at {', '.join(server.addresses)}, port {server.port}. Open the ports between"
        " the hosts."
    )


class Result(NamedTuple):
    """The number of a closure that has ended, and what its function has returned."""

    number: int
    value: Any


class Closures:
    """The closures that workers execute now, or are about to.

    Any worker executes any closure. That of a worker that is lost is executed by
    another one; also if its worker is lost between its end and the fetching of its
    result, which the runtime leaves to its user: servers ignore its second update.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
        max_staleness: int,
    ) -> None:
        self._coordinator = coordinator
        self._most = num_workers * (1 + _WAITING_PER_WORKER)
        self._bound = StalenessBound(max_staleness)
        self._ended = queue.SimpleQueue[tuple[int, Any, Exception | None]]()
        self._waiters = ThreadPoolExecutor(self._most, "closure")
        self._calls: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.running: set[int] = set()

    def may_start(self) -> bool:
        """Returns whether another closure may be scheduled now."""
        return len(self.running) < self._most and self._bound.may_start()

    def start(self, number: int, function: Callable[..., Any], *args: Any) -> None:
        """Schedules a closure, by a `tf.function`."""
        self.running.add(number)
        self._bound.start(number)
        self._calls[number] = function, args
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        function, args = self._calls[number]
        value = self._coordinator.schedule(function, args=args)
        self._waiters.submit(self._wait, number, value)

    def _wait(self, number: int, value: Any) -> None:
        try:
            result = tf.nest.map_structure(lambda remote: remote.fetch(), value)
        except Exception as error:
            self._ended.put((number, None, error))
        else:
            self._ended.put((number, result, None))

    def next_result(self, seconds: float) -> Result | None:
        """Returns the next result; None after some seconds, or if one was lost.

        Raises:
            tf.errors.OpError: If the closure has failed, or a server is lost.
        """
        try:
            number, result, error = self._ended.get(timeout=seconds)
        except queue.Empty:
            return None
        if error is not None and _is_of_lost_worker(error):
            self._schedule(number)
            return None
        self.running.remove(number)
        self._bound.finish(number)
        del self._calls[number]
        if error is not None:
            raise error
        return Result(number, result)

    def close(self) -> None:
        """Ends the threads that wait for results."""
        self._waiters.shutdown(wait=False, cancel_futures=True)


def _is_of_lost_worker(error: Exception) -> bool:
    """Returns whether a result could not be fetched because its worker was lost.

    Other errors of lost workers don't come out of the runtime.
    """
    if "remote target /job:ps" in str(error):
        return False
    if isinstance(error, tf.errors.InvalidArgumentError):  # It was restarted already.
        return "Unable to find the relevant tensor remote_handle" in str(error)
    return isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))


@contextlib.contextmanager
def naming_corrupt_records(
    records: RecordFiles, examples_read: Callable[[], np.ndarray]
) -> Iterator[None]:
    """Looks for corrupt records in what the workers read now, if a closure has failed.

    Its error is raised where the next one is started, or where a result is awaited.

    Raises:
        UserError: If there are any, with their files and offsets.
    """
    try:
        yield
    except tf.errors.OpError:
        CorruptRecords(records, "fail").detect(examples_read())
        raise


class StalenessBound:
    """Decides when a closure may start so that no update gets staler than a bound.

    Between the reading and the update of a closure there can only be the updates of
    closures that were running when it started, or that started since. So a closure
    waits until its start would bring no running one, nor itself, above the bound, which
    implies the condition of stale synchronous parallel training. Below 0 it is none.

    Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server".
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._largest: dict[int, int] = {}  # Possible staleness of running closures.

    def may_start(self) -> bool:
        """Returns whether another closure may start now."""
        bound, largest = self._max_staleness, self._largest.values()
        is_within = len(largest) <= bound and all(value < bound for value in largest)
        return bound < 0 or is_within

    def start(self, number: int) -> None:
        """Notes that a closure starts, by its number."""
        for other in self._largest:
            self._largest[other] += 1
        self._largest[number] = len(self._largest)

    def finish(self, number: int) -> None:
        """Notes that a closure is done."""
        del self._largest[number]


class StalenessLog:
    """Counts the staleness of updates."""

    def __init__(self) -> None:
        self.histogram = Counter[int]()
        self._recent: list[int] = []

    def add(self, staleness: int) -> None:
        """Counts an update; a negative number stands for one applied before."""
        if staleness < 0:
            return
        self.histogram[staleness] += 1
        self._recent.append(staleness)

    def report(self) -> dict[str, float]:
        """Returns mean and maximum since the last report, by the metrics' names."""
        recent, self._recent = self._recent or [0], []
        return {
            "staleness_mean": sum(recent) / len(recent),
            "staleness_max": float(max(recent)),
        }

    def describe(self) -> str:
        """Returns the histogram in one line, such as `0: 374, 1: 165, 2: 1`."""
        return ", ".join(
            f"{key}: {self.histogram[key]}" for key in sorted(self.histogram)
        )
