"""What a host says of itself before a job: processors, software, data, load.

The host gathers it by `launch/plan.py --probe --print=host`, as JSON.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import probe
from launch.topology import Topology
from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.hardware import host
from resnet.runtime import versions

BUSY_SECONDS = 1.0  # For which the processors are watched.
_BUSY = 0.5  # The part of this time from which on a processor counts as busy.
_IDLE_COLUMNS = (3, 4)  # Columns of /proc/stat: idle, and waiting for a disk.


@dataclass(frozen=True)
class HostReport:
    """What a host says of itself."""

    topology: Topology
    boot_id: str  # What two hosts share only if they are one machine.
    versions: dict[str, str]  # Of the software, and digests, by their descriptions.
    data: str  # The SHA-256 of the data set's manifest; empty without a data set.
    data_problem: str  # Why the data set can't be read; empty if it can.
    busy_cpus: tuple[int, ...]  # That other programs keep busy.


def gather(manifest_dir: str, root: Path = Path("/")) -> HostReport:
    """Returns the report of this machine, after watching it for a second.

    Args:
        manifest_dir: The folder whose manifest is compared: that of the records, or the
            one that they will be copied from; empty for none.
        root: The folder that stands for `/` of /proc and /sys.
    """
    node = probe.probe(root)
    before = _times(root)
    time.sleep(BUSY_SECONDS)
    cpus = [cpu for core in node.cores for cpu in core.cpus]
    data, problem = _data(manifest_dir)
    return HostReport(
        topology=node,
        boot_id=host.boot_id(root),
        versions=versions.describe(),
        data=data,
        data_problem=problem,
        busy_cpus=tuple(_busy(cpus, before, _times(root))),
    )


def to_json(report: HostReport) -> str:
    """Returns a report as a JSON text in one line, which `from_json` reads."""
    return json.dumps(dataclasses.asdict(report))


def from_json(text: str, host: str) -> HostReport:
    """Returns the report in the last line of what a host has printed.

    Raises:
        UserError: If it is something else.
    """
    try:
        last = text.strip().rpartition("\n")[2]
        return json_file.parse(last, HostReport, "its answer", "a report of the host")
    except UserError as error:
        raise UserError(
            f"{host} must answer with a report of itself; it has answered"
            f" {text.strip()[-80:]!r}. Is this clone at the same path there?"
        ) from error


def _times(root: Path) -> dict[int, tuple[int, int]]:
    """Returns the busy and the idle time of each processor, in ticks of the clock."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/stat").read_text().splitlines():
            if match := re.match(r"cpu(\d+) (.*)", line):
                times = [int(word) for word in match[2].split()[:8]]  # Then guests'.
                idle = sum(times[column] for column in _IDLE_COLUMNS)
                found[int(match[1])] = (sum(times) - idle, idle)
    return found


def _busy(
    cpus: Sequence[int],
    before: Mapping[int, tuple[int, int]],
    after: Mapping[int, tuple[int, int]],
) -> Iterator[int]:
    """Yields the processors that were busy for most of the time between."""
    for cpu in cpus:
        if cpu in before and cpu in after:
            busy, idle = (b - a for a, b in zip(before[cpu], after[cpu], strict=True))
            if busy > _BUSY * (busy + idle):
                yield cpu


def _data(folder: str) -> tuple[str, str]:
    """Returns the digest of the manifest in a folder, and why there is none."""
    if not folder:
        return "", ""
    try:
        from data_prep.records import manifest  # It needs NumPy.

        record_set = manifest.find(folder)
    except (UserError, ImportError) as error:
        return "", str(error)
    if record_set is None:
        return "", f"{folder} has no manifest"
    contents = dataclasses.replace(record_set.manifest, source={})  # It may differ.
    return hashlib.sha256(repr(contents).encode()).hexdigest(), ""
