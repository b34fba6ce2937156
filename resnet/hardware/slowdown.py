"""What the kernel tells of a host on which a process computes slower than usual."""

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from resnet.base import limits

SCAN_SECONDS = 0.3  # CPU time is counted in hundredths of a second.
_FEW_CPUS = 4  # Each read of a frequency interrupts its processor.
# What is named: at least so much more than while the speed was usual.
_MORE_OF_TIME = 0.03
_MORE_WAITING = 0.1  # Threads, in the mean.
_MORE_SWAPPING = 1.0  # MB/s.
_OF_FREQUENCY = 0.9
_OF_CORE = 0.1  # The least of a core that another process takes.


class Rates(NamedTuple):
    """What happened between two readings; zeros where the kernel doesn't tell."""

    stolen: float = 0.0  # The part of the time of this process's processors.
    throttled: float = 0.0  # The part of the periods of the CPU quota.
    overheated: int = 0  # How often its processors were slowed down.
    swapped: float = 0.0  # MB/s from and to the disk.
    waiting: float = 0.0  # Threads of it that wait for a processor, in the mean.
    frequency: float = 0.0  # GHz, of some of its processors, at the second reading.


class Kernel:
    """Readings of what slows this process down, from the files below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cpus = sorted(os.sched_getaffinity(0))
        self._before = self._counts()

    def rates(self) -> Rates:
        """Returns the rates since the last call, or the start."""
        before, after = self._before, self._counts()
        self._before = after
        counted = {name: after[name] - before.get(name, 0) for name in after}
        seconds = counted["seconds"]
        return Rates(
            stolen=_part(counted["stolen"], counted["ticks"]),
            throttled=_part(counted["throttled"], counted["periods"]),
            overheated=round(counted["overheated"]),
            swapped=_part(counted["pages"] * os.sysconf("SC_PAGE_SIZE"), seconds * 1e6),
            waiting=_part(counted["waited"] / 1e9, seconds),
            frequency=self._frequency(),
        )

    def _counts(self) -> dict[str, float]:
        """Returns counters that only grow.

        Sources: proc_stat(5) (the eighth number of a processor is its stolen time),
        /proc/vmstat, Documentation/scheduler/sched-stats of Linux (the second number of
        a task is its time on a run queue, in ns), and cgroup-v2 (`cpu.stat`).
        """
        counts = {"seconds": time.monotonic(), "stolen": 0.0, "ticks": 0.0}
        own = {f"cpu{cpu}" for cpu in self._cpus}
        for name, words in self._lines("proc/stat"):
            if name in own and len(words) >= 8:
                ticks = [int(word) for word in words[:8]]
                counts["stolen"] += ticks[7]
                counts["ticks"] += sum(ticks)
        swapping = dict(self._lines("proc/vmstat"))
        pages = (swapping.get(name, ["0"]) for name in ("pswpin", "pswpout"))
        counts["pages"] = sum(int(words[0]) for words in pages)
        tasks = (self._root / "proc/self/task").glob("*/schedstat")
        waited = [limits.read(task).split()[1:2] for task in tasks]
        counts["waited"] = sum(int(words[0]) for words in waited if words)
        counts["periods"] = counts["throttled"] = 0
        for folder in limits.cgroups(self._root, "cpu"):
            quota = dict(
                line.split() for line in limits.read(folder / "cpu.stat").splitlines()
            )
            if int(quota.get("nr_throttled", 0)) > counts["throttled"]:
                counts["throttled"] = int(quota["nr_throttled"])
                counts["periods"] = int(quota["nr_periods"])
        heat = (
            limits.read(self._folder(cpu) / "thermal_throttle" / f"{of}_throttle_count")
            for cpu in self._cpus
            for of in ("core", "package")
        )
        counts["overheated"] = sum(int(count) for count in heat if count)
        return counts

    def _lines(self, path: str) -> Iterator[tuple[str, list[str]]]:
        for line in limits.read(self._root / path).splitlines():
            name, *words = line.split()
            yield name, words

    def _folder(self, cpu: int) -> Path:
        return self._root / f"sys/devices/system/cpu/cpu{cpu}"

    def _frequency(self) -> float:
        files = (
            self._folder(cpu) / "cpufreq/scaling_cur_freq"
            for cpu in self._cpus[:: max(1, len(self._cpus) // _FEW_CPUS)]
        )
        khz = [int(text) for text in map(limits.read, files) if text]
        return _part(sum(khz) / 1e6, len(khz))


def _part(number: float, whole: float) -> float:
    return number / whole if whole > 0 else 0.0


def causes(rates: Rates, usual: Rates) -> list[str]:
    """Returns what may have slowed a process down, by its rates now and before."""
    found = []
    if rates.stolen - usual.stolen > _MORE_OF_TIME:
        found.append(
            f"the hypervisor takes {100 * rates.stolen:.0f} % of its processors' time"
        )
    if rates.throttled - usual.throttled > _MORE_OF_TIME:
        found.append(
            f"its CPU quota stops it in {100 * rates.throttled:.0f} % of the periods"
        )
    if rates.overheated > usual.overheated:
        found.append(f"its processors were slowed by heat {rates.overheated} times")
    if 0 < rates.frequency < _OF_FREQUENCY * usual.frequency:
        found.append(
            f"its processors run at {rates.frequency:.2f} GHz, usually at"
            f" {usual.frequency:.2f} GHz"
        )
    if rates.swapped - usual.swapped > _MORE_SWAPPING:
        found.append(f"the host swaps {rates.swapped:.0f} MB/s")
    if rates.waiting - usual.waiting > _MORE_WAITING:
        found.append(
            f"{rates.waiting:.1f} of its threads wait for a processor in the mean,"
            f" usually {usual.waiting:.1f}"
        )
    return found


def other_process(job: Collection[int], seconds: float = SCAN_SECONDS) -> str:
    """Returns which other process takes the most of this process's processors.

    It measures for some seconds. `job` are the processes of this job. Returns an empty
    text if no other process takes a tenth of a core, and does not see processes of
    other containers.
    """
    before, began = _cpu_seconds(job), time.monotonic()
    time.sleep(seconds)
    after, taken = _cpu_seconds(job), time.monotonic() - began
    used = {
        pid: (after[pid][0] - before[pid][0]) / taken for pid in after if pid in before
    }
    most = max(used, key=lambda pid: used[pid], default=0)
    if not used or used[most] < _OF_CORE:
        return ""
    name, percent = after[most][1], 100 * used[most]
    return f"process {most} ({name}) takes {percent:.0f} % of a processor"


def _cpu_seconds(job: Collection[int]) -> dict[int, tuple[float, str]]:
    """Returns CPU time and name of each process that is not of the job."""
    cpus = os.sched_getaffinity(0)
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid not in job and process.cpu_num() in cpus:
                times = process.cpu_times()
                found[process.pid] = times.user + times.system, process.name()
        except psutil.Error:
            continue
    return found
