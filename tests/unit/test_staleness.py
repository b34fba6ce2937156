from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.training.parameter_servers.closures import StalenessBound, StalenessLog

BOUNDS = st.integers(0, 6)
# Of each moment: whether to start a closure if one may start, and which of the running
# ones goes on if not.
SCHEDULES = st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=120)


class Simulation:
    """Closures that start, update and finish in any order.

    Attributes:
        started: The number of closures that have started.
        updated: The running closures whose update is done but not yet their result.
        waiting: The running closures whose update is not done.
        done: The closures that have finished, in the order of their ends.
        staleness: Of each closure whose update is done, the updates by others since it
            started, the earliest time at which it can have read the weights.
    """

    def __init__(self, max_staleness: int) -> None:
        self.bound = StalenessBound(max_staleness)
        self.started = 0
        self.updated: list[int] = []
        self.waiting: list[int] = []
        self.done: list[int] = []
        self.staleness: dict[int, int] = {}
        self._updates_at_start: dict[int, int] = {}

    @property
    def num_running(self) -> int:
        return len(self.waiting) + len(self.updated)

    def start(self) -> None:
        self.bound.start(self.started)
        self._updates_at_start[self.started] = len(self.staleness)
        self.waiting.append(self.started)
        self.started += 1

    def advance(self, choice: int) -> None:
        """Lets one of the running closures update, or finish if it has updated."""
        number = [*self.waiting, *self.updated][choice % self.num_running]
        if number in self.waiting:
            self.waiting.remove(number)
            self.updated.append(number)
            count = len(self.staleness)
            self.staleness[number] = count - self._updates_at_start[number]
        else:
            self.updated.remove(number)
            self.done.append(number)
            self.bound.finish(number)

    def run(self, schedule: list[tuple[bool, int]]) -> None:
        for starts, choice in schedule:
            if starts and self.bound.may_start():
                self.start()
            elif self.num_running:
                self.advance(choice)


@settings(max_examples=100)
@given(BOUNDS, SCHEDULES)
def test_no_update_is_staler_than_the_bound(max_staleness, schedule):
    simulation = Simulation(max_staleness)
    simulation.run(schedule)
    while simulation.num_running:
        simulation.advance(-1)
    assert max(simulation.staleness.values(), default=0) <= max_staleness


@settings(max_examples=100)
@given(BOUNDS, SCHEDULES)
def test_a_closure_waits_for_all_before_it_except_the_last_ones(
    max_staleness, schedule
):
    simulation = Simulation(max_staleness)
    for moment in schedule:
        before = simulation.started
        simulation.run([moment])
        if simulation.started > before:
            assert set(range(before - max_staleness)) <= set(simulation.done)


@settings(max_examples=50)
@given(SCHEDULES)
def test_with_a_bound_of_zero_they_run_one_at_a_time_in_their_order(schedule):
    simulation = Simulation(0)
    for moment in schedule:
        simulation.run([moment])
        assert simulation.num_running <= 1
        assert simulation.bound.may_start() == (simulation.num_running == 0)
    assert simulation.done == sorted(simulation.done)
    assert not any(simulation.staleness.values())


@settings(max_examples=50)
@given(BOUNDS, SCHEDULES)
def test_when_nothing_runs_a_closure_may_start(max_staleness, schedule):
    simulation = Simulation(max_staleness)
    simulation.run(schedule)
    while simulation.num_running:
        simulation.advance(0)
    assert simulation.bound.may_start()


def test_as_many_may_run_as_can_be_within_the_bound():
    simulation = Simulation(2)
    for _ in range(3):
        assert simulation.bound.may_start()
        simulation.start()
    # Any of them may update last, after the two others.
    assert not simulation.bound.may_start()
    for number in (2, 1):
        simulation.bound.finish(number)
    assert not simulation.bound.may_start()  # 2 and 1 have updated, perhaps before 0.
    simulation.bound.finish(0)
    assert simulation.bound.may_start()


def test_without_a_bound_any_number_may_start():
    simulation = Simulation(-1)
    for _ in range(50):
        assert simulation.bound.may_start()
        simulation.start()


def test_a_report_is_of_the_updates_since_the_last_one():
    log = StalenessLog()
    for staleness in (0, 3, 1, 0):
        log.add(staleness)
    assert log.report() == {"staleness_mean": 1.0, "staleness_max": 3.0}
    log.add(2)
    log.add(1)
    assert log.report() == {"staleness_mean": 1.5, "staleness_max": 2.0}
    assert log.report() == {"staleness_mean": 0.0, "staleness_max": 0.0}


def test_the_histogram_is_of_all_updates_in_the_order_of_staleness():
    log = StalenessLog()
    assert log.describe() == ""
    for staleness in (10, 0, 2, 0):
        log.add(staleness)
    log.report()
    log.add(2)
    log.add(-1)  # Applied before: no update.
    assert log.report() == {"staleness_mean": 2.0, "staleness_max": 2.0}
    assert log.describe() == "0: 2, 2: 2, 10: 1"
