"""Closures whose results are lost with their workers are executed again."""

import pytest
import tensorflow as tf

from resnet.training.parameter_servers.closures import Closures, Result

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
