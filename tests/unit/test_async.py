"""Rank 0 finds an address at which each server of an asynchronous job answers."""

import dataclasses
import itertools
import math
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.records import manifest
from resnet import resnet_main
from resnet.base import intervals
from resnet.base.errors import UserError
from resnet.config import phases, rounds, rules
from resnet.config.config import Config, differences
from resnet.config.recipes import digits, imagenet
from resnet.config.resolve import resolve
from resnet.data import record_files
from resnet.evaluation.evaluations import is_due_after
from resnet.hardware.placement import Threads
from resnet.training.parameter_servers import roles, serving
from resnet.training.parameter_servers.closures import (
    Closures,
    Result,
    StalenessBound,
    StalenessLog,
    _hosts_that_answer,
)
from resnet.training.parameter_servers.private_ports import Guard
from resnet.training.parameter_servers.roles import (
    COORDINATOR,
    SERVER,
    WORKER,
    Endpoint,
    Workers,
)
from resnet.training.parameter_servers.serving import MOST_RESTARTS, Restarts
from resnet.training.parameter_servers.training import AsyncTraining, end_of_segment
from resnet.watchdog import client
from tests.in_process import assert_refused, run


@given(num_servers=st.integers(1, 20), num_workers=st.integers(1, 20))
def test_rank_0_coordinates_and_the_next_ones_serve(num_servers, num_workers):
    num_ranks = 1 + num_servers + num_workers
    assert rules.num_workers(num_ranks, num_servers) == num_workers
    found = [roles.of_rank(rank, num_servers) for rank in range(num_ranks)]
    sizes = {COORDINATOR: 1, SERVER: num_servers, WORKER: num_workers}
    expected = [(job, index) for job, size in sizes.items() for index in range(size)]
    assert [(role.job, role.index) for role in found] == expected


@pytest.fixture
def ports(monkeypatch) -> Iterator[list[int]]:
    """Yields two ports of 127.0.0.1, as of another host, on which something listens."""
    monkeypatch.setattr(client, "own_addresses", lambda: ["10.0.0.1"])
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        yield [one.getsockname()[1], other.getsockname()[1]]


def test_the_first_address_that_answers_is_taken(ports):
    endpoints = [
        Endpoint("ps", 0, ["127.0.0.1"], ports[0], b""),
        Endpoint("worker", 0, ["127.0.0.2", "127.0.0.1"], ports[1], b""),
    ]
    assert _hosts_that_answer(endpoints) == {
        "ps": {0: f"127.0.0.1:{ports[0]}"},
        "worker": {0: f"127.0.0.1:{ports[1]}"},
    }


def test_a_server_that_does_not_answer_is_named(ports):
    endpoints = [
        Endpoint("worker", 0, ["127.0.0.1"], ports[0], b""),
        Endpoint("worker", 1, ["127.0.0.2", "127.0.0.3"], ports[1], b""),
    ]
    words = f"worker 1 must be reachable .* 127.0.0.2, 127.0.0.3, port {ports[1]}"
    with pytest.raises(UserError, match=words):
        _hosts_that_answer(endpoints)


def test_a_server_that_does_not_start_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(serving, "_START", "raise SystemExit(7)")
    role = roles.Role(roles.SERVER, 1)
    child = serving.Child(role, Threads((0,), 1, 1), Guard("", "", 0, True))
    with pytest.raises(UserError, match="server of ps 1 must start; it ended with 7"):
        child.await_start(role)
    child.kill()


@given(waits=st.lists(st.floats(0, 1000), max_size=60), stall_seconds=st.floats(1, 900))
def test_restarts_are_numbered_and_too_many_in_a_span_of_time_refused(
    waits, stall_seconds
):
    restarts, span = Restarts(stall_seconds), MOST_RESTARTS * (stall_seconds + 120)
    times: list[float] = []
    for now in itertools.accumulate(waits):
        is_allowed = sum(now - time < span for time in times) < MOST_RESTARTS
        assert restarts.next(now) == (len(times) + 1 if is_allowed else 0)
        times += [now] if is_allowed else []


LOST = "Additional GRPC error information from remote target /job:worker/task:1"
OF_SERVER = "Additional GRPC error information from remote target /job:ps/task:0"
FORGOTTEN = "Unable to find the relevant tensor remote_handle: Op ID: 3"


class Value:
    def __init__(self, found: object) -> None:
        self._found = found

    def fetch(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class Coordinator:
    """A coordinator whose closures end as told, one after the other."""

    def __init__(self, *ends: object) -> None:
        self._ends = list(ends)
        self.scheduled: list[tuple] = []

    def schedule(self, function, args):
        self.scheduled.append((function, args))
        return Value(self._ends.pop(0))


def closures_of(coordinator: Coordinator) -> Closures:
    return Closures(coordinator, num_workers=1, max_staleness=0)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError(None, None, LOST),
        tf.errors.AbortedError(None, None, LOST),
        tf.errors.InvalidArgumentError(None, None, FORGOTTEN),
    ],
)
def test_a_result_that_is_lost_with_its_worker_is_computed_again(error):
    coordinator = Coordinator(error, 7.0)
    closures = closures_of(coordinator)
    closures.start(3, print, "a", "b")
    assert closures.next_result(60) is None
    assert closures.running == {3}
    assert not closures.may_start()  # Its second execution may be as stale.
    assert closures.next_result(60) == Result(3, 7.0)
    assert closures.running == set()
    assert closures.may_start()
    assert coordinator.scheduled == [(print, ("a", "b"))] * 2
    closures.close()


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError(None, None, OF_SERVER),
        tf.errors.InvalidArgumentError(None, None, "assertion failed"),
        tf.errors.DataLossError(None, None, LOST),
    ],
)
def test_a_closure_that_fails_is_not_executed_again(error):
    coordinator = Coordinator(error)
    closures = closures_of(coordinator)
    closures.start(0, print)
    with pytest.raises(type(error)):
        closures.next_result(60)
    assert len(coordinator.scheduled) == 1
    closures.close()


BOUNDS = st.integers(0, 6)
# Of each moment: whether to start a closure if one may start, and which of the running
# ones goes on if not.
SCHEDULES = st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=120)


class Simulation:
    """Closures that start, update and finish in any order.

    The staleness of a closure whose update is done is that of updates by others since
    it started, the earliest time at which it can have read the weights.
    """

    def __init__(self, max_staleness: int) -> None:
        self.bound = StalenessBound(max_staleness)
        self.started = 0
        self.waiting: dict[int, int] = {}  # Of running ones the updates before them.
        self.updated: list[int] = []  # Running ones without a result yet.
        self.done: list[int] = []
        self.staleness: dict[int, int] = {}

    def start(self) -> None:
        self.bound.start(self.started)
        self.waiting[self.started] = len(self.staleness)
        self.started += 1

    def advance(self, choice: int) -> None:
        """Lets one of the running closures update, or finish if it has updated."""
        running = [*self.waiting, *self.updated]
        number = running[choice % len(running)]
        if number in self.waiting:
            before = self.waiting.pop(number)
            self.staleness[number] = len(self.staleness) - before
            self.updated.append(number)
        else:
            self.updated.remove(number)
            self.done.append(number)
            self.bound.finish(number)


@settings(max_examples=60)
@given(BOUNDS, SCHEDULES)
def test_no_update_is_staler_than_the_bound(bound, schedule):
    simulation = Simulation(bound)
    for starts, choice in schedule:
        if starts and simulation.bound.may_start():
            # It waits for all closures before it except the last ones.
            assert set(range(simulation.started - bound)) <= set(simulation.done)
            simulation.start()
        elif simulation.waiting or simulation.updated:
            simulation.advance(choice)
    while simulation.waiting or simulation.updated:
        simulation.advance(-1)
    assert simulation.bound.may_start()
    assert max(simulation.staleness.values(), default=0) <= bound


def test_as_many_may_run_as_can_be_within_the_bound():
    bound = StalenessBound(2)
    for number in range(3):
        assert bound.may_start()
        bound.start(number)
    # Any of them may update last, after the two others.
    for number in (2, 1, 0):  # 2 and 1 have updated, perhaps before 0.
        assert not bound.may_start()
        bound.finish(number)
    assert bound.may_start()
    boundless = StalenessBound(-1)
    for number in range(50):
        assert boundless.may_start()
        boundless.start(number)


def test_a_report_is_of_the_updates_since_the_last_one_and_the_histogram_of_all():
    log = StalenessLog()
    assert log.describe() == ""
    for staleness in (10, 0, 2, 0):
        log.add(staleness)
    assert log.report() == {"staleness_mean": 3.0, "staleness_max": 10.0}
    assert log.report() == {"staleness_mean": 0.0, "staleness_max": 0.0}
    log.add(2)
    log.add(-1)  # Applied before: no update.
    assert log.report() == {"staleness_mean": 2.0, "staleness_max": 2.0}
    assert log.describe() == "0: 2, 2: 2, 10: 1"


COLLAPSE = imagenet.COLLAPSE_72EP_4K


def found_step_by_step(config, step: int) -> int:
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    while True:
        step += 1
        if (
            step >= config.last_step
            or phases.ended_by(config.phases, step) is not None
            or rounds.ends_interval(config, every, step)
            or is_due_after(config, step)
        ):
            return step


@settings(max_examples=60)
@given(
    checkpoint_every=st.sampled_from(["1epoch", "7steps", "3epochs", "10minutes"]),
    eval_every=st.sampled_from(["", "5steps", "2epochs"]),
    num_examples=st.integers(40, 90),
    stop_after_steps=st.sampled_from([0, 50]),
    done=st.floats(0, 1, exclude_max=True),
)
def test_a_segment_ends_at_the_first_step_that_is_due(
    checkpoint_every, eval_every, num_examples, stop_after_steps, done
):
    given_settings = {
        "global_batch_size": 32,
        "checkpoint_every": checkpoint_every,
        "eval_every": eval_every,
        "stop_after_steps": stop_after_steps,
    }
    config = resolve(COLLAPSE, given_settings, num_examples, ("a", "b"))
    step = int(done * config.last_step)
    assert end_of_segment(config, step) == found_step_by_step(config, step)


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_change_of_the_rate_counts_once_in_a_step(num_workers):
    config = resolve(COLLAPSE, {"global_batch_size": 64}, 6400, ("a", "b"))
    assert config.learning_rate_in_velocity
    step = config.train_steps - 2  # The rate falls to a quarter.
    of_step = config.settings_at(step)
    first = step * num_workers
    factors = [
        phases.velocity_factor_of_part(of_step, number, num_workers)
        for number in range(first, first + num_workers)
    ]
    momentum = config.phases[-1].momentum
    rates = [phases.learning_rate(config.phases, one) for one in (step - 1, step)]
    assert rates[0] > 1.5 * rates[1] > 0
    expected = momentum**num_workers * rates[0] / rates[1]
    assert math.prod(factors) == pytest.approx(expected)


def test_a_failed_closure_names_the_corrupt_record_wherever_its_error_is_raised(
    numbered_set,
):
    record_set = manifest.load(str(numbered_set), "train")
    records = record_files.open_split(record_set, "train")
    index = records.index.copy()
    index["offset"][2] = 10**6
    training = object.__new__(AsyncTraining)
    training._records = dataclasses.replace(records, index=index)
    training._examples = {0: tf.constant([0, 1]), 1: tf.constant([2, 3])}

    def fail(*args: object) -> None:
        raise tf.errors.DataLossError(None, None, "a record is corrupt")

    training._state = None
    training._closures = SimpleNamespace(start=fail, next_result=fail)
    with pytest.raises(UserError, match="byte 1000000"):
        training._await_result()
    settings = {"learning_rate": 0.1, "velocity_factor": 0.9, "nesterov_momentum": 0.9}
    of_step = SimpleNamespace(**settings)
    training._config = SimpleNamespace(seed=0, settings_at=lambda step: of_step)
    training._workers = Workers(2, 1, 1.0)
    what = SimpleNamespace(examples=tf.constant([4, 5]))
    with pytest.raises(UserError, match="byte 1000000"):
        training._start(4, fail, what)


@pytest.mark.parametrize(
    ("steps", "stall_seconds", "silence"),
    [
        ((4, 4, 1000, 4, 4, 4), 10, 12),  # It was suspended with its rank.
        (6 * (0.39,), 1, 2),  # It gives a sign every second.
    ],
)
def test_a_child_is_lost_the_stall_time_after_its_next_sign_was_due(
    monkeypatch, steps, stall_seconds, silence
):
    program = "import os, time; os.write(1, b'.'); time.sleep(60)"
    monkeypatch.setattr(serving, "_START", program)
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(serving, "time", clock)
    role = roles.Role(roles.SERVER, 0)
    server = serving.Child(role, Threads((0,), 1, 1), Guard("", "", 0, True))
    try:
        server.await_start(role)
        found = []
        for seconds in steps:
            now[0] += seconds
            found.append(server.why_lost(stall_seconds))
    finally:
        server.kill()
    assert found == ["", "", "", "", "", f"has been silent for {silence} s"]


EXPLAIN = ("--recipe=digits", "--sync_mode=async", "--explain")


def resolved(**given) -> Config:
    return resolve(digits.DIGITS, given, 1000, ("ant", "bee"))


def test_only_the_number_of_servers_may_change_when_a_run_resumes():
    asynchronous = resolved(sync_mode="async")
    assert differences(asynchronous, resolved(sync_mode="async", num_ps=3)) == []
    for other in (
        resolved(),
        resolved(sync_mode="async", max_staleness=2),
        resolved(sync_mode="async", staleness_rate="inverse"),
    ):
        assert differences(asynchronous, other)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num_ranks=2",), "got num_ranks=2, --num_ps=1. Start at least 3 ranks"),
        (("--num_ranks=4", "--num_ps=3"), "Start at least 5 ranks, as by mpirun -np 5"),
        # 7 ranks of which 5 work.
        (
            ("--num_ranks=7", "--train_batch_size=64"),
            "the number of workers; got train_batch_size=64, 5 workers. Use 60 or",
        ),
    ],
)
def test_the_ranks_must_suffice_and_the_workers_share_a_batch(flags, words):
    assert_refused(run(resnet_main, *EXPLAIN, *flags), words)


def test_only_workers_share_a_batch():
    done = run(resnet_main, *EXPLAIN, "--num_ranks=7", "--train_batch_size=65")
    assert done.returncode == 0, done.stderr
