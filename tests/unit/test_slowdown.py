"""What slows a process down, by files of a simulated kernel and by the real one."""

import os
import subprocess
import sys

import psutil
import pytest

from resnet.hardware import slowdown
from resnet.hardware.slowdown import Kernel, Rates, causes

CPU = min(os.sched_getaffinity(0))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that writes files below a root, and the kernel that is read there."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(slowdown.time, "monotonic", lambda: next(clock))

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / PATHS[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return tmp_path, write


PATHS = {
    "stat": "proc/stat",
    "vmstat": "proc/vmstat",
    "task": "proc/self/task/1/schedstat",
    "other_task": "proc/self/task/7/schedstat",
    "own_group": "proc/self/cgroup",
    "quota": "sys/fs/cgroup/job/cpu.stat",
    "heat": "sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count",
    "frequency": "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq",
}


def test_rates_are_those_between_two_readings_of_the_own_processors(kernel):
    root, write = kernel
    write(
        stat="cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 10 0 0 90 0 0 0 0 0 0\n"
        "cpu1 0 0 0 0 0 0 0 0 0 0\ncpu2 50 0 0 50 0 0 0 20 0 0\nintr 5\n",
        vmstat="nr_free_pages 7\npswpin 100\npswpout 1000\n",
        task="5000 1000000000 7",
        own_group="0::/job\n",
        quota="usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 1\n",
        heat="3",
        frequency="3500000",
    )
    read = Kernel(root)
    # 200 more ticks of the two processors, 50 of them stolen; processor 1 is not ours.
    write(
        stat="cpu0 60 0 0 120 0 0 0 20 0 0\ncpu1 9 9 9 9 9 9 9 900 0 0\n"
        "cpu2 110 0 0 60 0 0 0 50 0 0\n",
        vmstat="pswpin 1100\npswpout 2000\n",
        task="5000 6000000000 7",
        other_task="1 5000000000 1",
        quota="nr_periods 200\nnr_throttled 40\n",
        heat="5",
        frequency="1200000",
    )
    page = os.sysconf("SC_PAGE_SIZE")
    expected = Rates(
        stolen=50 / 200,
        throttled=30 / 100,
        overheated=2,
        swapped=2000 * page / 10 / 1e6,
        waiting=1.0,
        frequency=1.2,
    )
    assert tuple(read.rates()) == pytest.approx(tuple(expected))


def test_a_kernel_that_tells_nothing_gives_zeros(kernel):
    root, _ = kernel
    assert Kernel(root).rates() == Rates()


def test_each_cause_is_told_and_only_what_is_more_than_usual():
    usual = Rates(0.05, 0.0, 1, 0.5, 0.2, 3.5)
    assert causes(usual, usual) == []
    assert causes(Rates(0.3, 0.4, 9, 20, 3, 2.0), usual) == [
        "the hypervisor takes 30 % of its processors' time",
        "its CPU quota stops it in 40 % of the periods",
        "its processors were slowed by heat 9 times",
        "its processors run at 2.00 GHz, usually at 3.50 GHz",
        "the host swaps 20 MB/s",
        "3.0 of its threads wait for a processor in the mean, usually 0.2",
    ]
    assert causes(Rates(0.3), Rates()) == [
        "the hypervisor takes 30 % of its processors' time"
    ]


def test_the_process_that_takes_the_most_is_named_unless_it_is_of_the_job():
    script = f"import os\nos.sched_setaffinity(0, {{{CPU}}})\nwhile True: pass"
    job = set(psutil.pids())  # Whatever else runs here.
    with subprocess.Popen([sys.executable, "-c", script]) as spinning:
        try:
            named = slowdown.other_process(job, seconds=1.0)
            of_job = slowdown.other_process({*job, spinning.pid}, seconds=0.1)
        finally:
            spinning.kill()
    assert named.startswith(f"process {spinning.pid} (python")
    assert named.endswith(" % of a processor")
    assert f"process {spinning.pid} " not in of_job


def test_threads_that_share_a_processor_wait():
    script = f"""
import os, threading, time
from resnet.hardware.slowdown import Kernel
os.sched_setaffinity(0, {{{CPU}}})
kernel = Kernel()
children = [os.fork() for _ in range(2)]
end = time.monotonic() + 1
while time.monotonic() < end: pass
if all(children):
    print(kernel.rates().waiting)
    for child in children: os.waitpid(child, 0)
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert float(output) > 0.3  # It waits half of the time or more.
