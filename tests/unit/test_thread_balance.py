import numpy as np
import pytest
import tensorflow as tf

from eval.lab import thread_balance
from eval.lab.thread_balance import OpCall
from resnet import native


def test_each_thread_takes_the_next_task_when_it_has_finished_one():
    # Thread 1: 4, then 2. Thread 2: 1, 3 and, before thread 1 is done with 4, 1.
    assert thread_balance.makespan([4, 1, 3, 1, 2], 1) == 11
    assert thread_balance.makespan([4, 1, 3, 1, 2], 2) == 6
    assert thread_balance.makespan([4, 1, 3, 1, 2], 8) == 4
    assert thread_balance.makespan([], 3) == 0


def test_records_are_read():
    text = "0 A -1 0 0.5\n0 A 0 0 1\n0 A 0 1 2e-1\n0 A 1 0 3\n1 B -1 0 0.25\n"
    first, second = thread_balance.parse(text)
    assert first == OpCall("A", 0.5, ((1.0, 0.2), (3.0,)))
    assert second == OpCall("B", 0.25, ())
    assert first.work == pytest.approx(4.7)
    assert first.span(2) == pytest.approx(0.5 + 1.0 + 3.0)


def test_the_median_of_steps_is_taken_task_by_task():
    steps = [
        [OpCall("B", 9, ()), OpCall("A", serial, ((task, 1.0),))]
        for serial, task in ((1, 7.0), (5, 3.0), (2, 4.0))
    ]
    steps[1].reverse()  # Ops that don't depend on each other run in any order.
    assert thread_balance.median_calls(steps) == (
        OpCall("A", 2, ((4.0, 1.0),)),
        OpCall("B", 9, ()),
    )
    steps[0].append(OpCall("C", 0, ()))
    with pytest.raises(ValueError, match="differently"):
        thread_balance.median_calls(steps)


@pytest.mark.needs_cpu("avx2", "fma")
def test_the_tasks_of_an_op_are_recorded(tmp_path):
    images = tf.random.normal([4, 16, 16, 64])
    kernel = tf.random.normal([3, 3, 64, 64])

    def convolve() -> tf.Tensor:
        return native.ops().resnet_conv2d(images, kernel, [], [], [], stride=1)

    before = convolve()
    with thread_balance.recorded(tmp_path / "tasks") as calls:
        during = convolve()
    convolve()  # After the recording.
    np.testing.assert_array_equal(before, during)
    (call,) = calls
    assert call.op == "ResnetConv2D"
    assert call.serial >= 0
    assert len(call.regions) >= 1
    assert 0 < sum(map(sum, call.regions)) <= call.work
    with thread_balance.recorded(tmp_path / "none") as nothing:
        pass
    assert nothing == []
    with (
        pytest.raises(OSError, match="can't be written"),
        thread_balance.recorded(tmp_path / "no" / "folder"),
    ):
        pass


def test_the_table_has_the_serial_share_and_the_efficiency():
    alone = thread_balance.StepWork(1, (OpCall("A", 1.0, ((8.0,),)),), 10.0)
    divided = thread_balance.StepWork(4, (OpCall("A", 1.0, ((2.0,) * 4,)),), 99.0)
    lines = thread_balance.table(alone, [alone, divided]).splitlines()
    assert lines[0].startswith(
        "processor time of a step with one thread: 10.00 s, 10.0%"
    )
    # Of 10 s, 1 s is outside the ops and 1 s serial in them. On 4 cores the ops take
    # 1 + 2 s and the rest 1 s: 10 / (4 * 4).
    assert lines[3].split() == ["1", "1", "20.00%", "11.11%", "9.000s", "100.0%"]
    assert lines[4].split() == ["4", "4", "20.00%", "11.11%", "3.000s", "62.5%"]
