"""What a host says of itself before a job: software, data, processors, free space.

The host gathers it by `launch/plan.py --probe --print=host`, as JSON.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.nodes import probe, topology
from launch.nodes.topology import Topology
from resnet.base.errors import UserError
from resnet.hardware import boot_id
from resnet.runtime import versions

BUSY_SECONDS = 1.0  # For which the processors are watched.
_BUSY = 0.5  # The part of this time from which on a processor counts as busy.
_IDLE_COLUMNS = (3, 4)  # Columns of /proc/stat: idle, and waiting for a disk.


@dataclass(frozen=True)
class HostReport:
    """What a host says of itself.

    Attributes:
        topology: Its processors, memory and network.
        boot_id: What two hosts share only if they are one machine.
        versions: The versions and digests of the software, by their descriptions.
        data: The SHA-256 of the data set's manifest; empty without a data set.
        data_problem: Why the data set can't be read; empty if it can.
        records_bytes: The size of all records of the data set.
        staged_bytes: The size of those that are where they will be copied to, already.
        busy_cpus: The usable logical processors that other programs keep busy.
        free_memory_bytes: The memory that is available; 0 if it isn't known.
        scratch_dir: The folder of temporary files.
        scratch_bytes: The free space there.
        data_bytes: The free space where the records are or will be.
    """

    topology: Topology
    boot_id: str
    versions: Mapping[str, str]
    data: str
    data_problem: str
    records_bytes: int
    staged_bytes: int
    busy_cpus: tuple[int, ...]
    free_memory_bytes: int
    scratch_dir: str
    scratch_bytes: int
    data_bytes: int


def gather(data_dir: str, manifest_dir: str, root: Path = Path("/")) -> HostReport:
    """Returns the report of this machine, after watching it for a second.

    Args:
        data_dir: The folder of the records; empty for none.
        manifest_dir: The folder whose manifest is compared: that of the records, or the
            one that they will be copied from.
        root: The folder that stands for `/` of /proc and /sys.
    """
    node = probe.probe(root)
    before = _times(root)
    time.sleep(BUSY_SECONDS)
    cpus = [cpu for core in node.cores for cpu in core.cpus]
    data, problem, records_bytes, staged_bytes = _data(manifest_dir, data_dir)
    available = _available_memory(root)
    scratch = tempfile.gettempdir()
    return HostReport(
        topology=node,
        boot_id=boot_id.read(root),
        versions=versions.describe(),
        data=data,
        data_problem=problem,
        records_bytes=records_bytes,
        staged_bytes=staged_bytes,
        busy_cpus=tuple(_busy(cpus, before, _times(root))),
        free_memory_bytes=min(available, node.memory_bytes or available),
        scratch_dir=scratch,
        scratch_bytes=_free_space(Path(scratch)),
        data_bytes=_free_space(Path(data_dir)) if data_dir else 0,
    )


def to_json(report: HostReport) -> str:
    """Returns a report as a JSON text in one line, which `from_json` reads."""
    return json.dumps(dataclasses.asdict(report))


def from_json(text: str, host: str) -> HostReport:
    """Returns the report in the last line of a text.

    Args:
        text: What the host has printed.
        host: The name of the host, for the sentence of an error.

    Raises:
        UserError: If it is something else.
    """
    try:
        values: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        node = topology.from_json(json.dumps(values["topology"]), f"{host}'s topology")
        busy = tuple(values["busy_cpus"])
        return HostReport(**(values | {"topology": node, "busy_cpus": busy}))
    except (ValueError, TypeError, KeyError, IndexError) as error:
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
    cpus: list[int],
    before: Mapping[int, tuple[int, int]],
    after: Mapping[int, tuple[int, int]],
) -> Iterator[int]:
    """Yields the processors that were busy for most of the time between."""
    for cpu in cpus:
        if cpu in before and cpu in after:
            busy, idle = (b - a for a, b in zip(before[cpu], after[cpu], strict=True))
            if busy > _BUSY * (busy + idle):
                yield cpu


def _available_memory(root: Path) -> int:
    """Returns the memory that programs can have without swapping, in bytes."""
    with contextlib.suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        if match := re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.M):
            return 1024 * int(match[1])
    return 0


def _free_space(folder: Path) -> int:
    """Returns the free space of a folder's disk, in bytes; it may not be there yet."""
    folder = Path(os.path.abspath(folder))
    while not folder.exists():
        folder = folder.parent
    try:
        space = os.statvfs(folder)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize


def _data(folder: str, data_dir: str) -> tuple[str, str, int, int]:
    """Returns what the manifest of a data set says.

    Args:
        folder: The folder of the manifest; empty for none.
        data_dir: The folder of the records.

    Returns:
        Its digest, why there is none, and the bytes of all records and of those that
        are in `data_dir`.
    """
    if not folder:
        return "", "", 0, 0
    try:
        from data_prep.records import manifest  # It needs NumPy.

        found = manifest.find(folder)
    except (UserError, ImportError) as error:
        return "", str(error), 0, 0
    if found is None:
        return "", f"{folder} has no manifest", 0, 0
    contents = dataclasses.replace(found.manifest, source={})  # It may differ.
    sizes = {
        shard.path: shard.num_bytes
        for split in contents.splits.values()
        for shard in split.shards
    }
    present = [
        size for path, size in sizes.items() if _has_size(Path(data_dir, path), size)
    ]
    digest = hashlib.sha256(repr(contents).encode()).hexdigest()
    return digest, "", sum(sizes.values()), sum(present)


def _has_size(path: Path, num_bytes: int) -> bool:
    """Returns whether there is a file of a size."""
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False
