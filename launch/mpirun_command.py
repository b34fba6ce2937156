"""Reads the hosts and ranks of an mpirun command, and removes hosts from it."""

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.hosts import read_file
from resnet.base.errors import UserError
from resnet.hardware.launchers import LAUNCHERS, HostOptions

PROBE_SECONDS = 20.0  # Timeout of `true` on a host; ssh's own timeout is minutes.


@dataclass(frozen=True)
class MpirunCommand:
    """A command `mpirun [options] program ...` of Hydra (MPICH, Intel MPI)."""

    words: tuple[str, ...]
    num_ranks: int  # Value of `-np`.
    ranks_per_host: int  # Value of `-ppn`; 0 without it.
    hosts: tuple[str, ...]  # As `host` or `host:ranks`.
    indices: dict[str, int]  # In `words`, of the value of each option.
    options: HostOptions

    def without(self, hosts: Sequence[str]) -> "MpirunCommand | None":
        """Returns the command without some hosts, or None if no host is left."""
        remaining = [host for host in self.hosts if host not in hosts]
        if not remaining:
            return None
        num_ranks = max(1, self.num_ranks * len(remaining) // len(self.hosts))
        if self.ranks_per_host:
            num_ranks = self.ranks_per_host * len(remaining)
        elif all(":" in host for host in remaining):
            num_ranks = sum(int(host.rpartition(":")[2]) for host in remaining)
        words = list(self.words)
        for name, index in self.indices.items():
            if name in (*self.options.hosts, *self.options.host_files):
                words[index] = ",".join(remaining)
            if name in self.options.host_files:
                words[index - 1] = self.options.hosts[0]
            if name in self.options.ranks:
                words[index] = str(num_ranks)
        return parse(words)

    def is_of_open_mpi(self) -> bool:
        """Returns whether the launcher is that of Open MPI, whose options differ."""
        return b"Open MPI" in _run([self.words[0], "--version"])[1]

    def find_unreachable_hosts(self) -> list[str]:
        """Returns the hosts, probed at once, on which the launcher runs no program."""
        with ThreadPoolExecutor(max_workers=max(len(self.hosts), 1)) as threads:
            codes = list(threads.map(lambda host: _run(self._on(host))[0], self.hosts))
        return [host for host, code in zip(self.hosts, codes, strict=True) if code]

    def _on(self, host: str) -> list[str]:
        words = [self.words[0]]
        for name in self.options.reaching:
            if name in self.indices:
                words += [name, self.words[self.indices[name]]]
        words += [self.options.hosts[0], host.partition(":")[0]]
        return [*words, self.options.ranks[0], "1", "true"]


def _run(words: Sequence[str]) -> tuple[int, bytes]:
    """Returns the exit code, -1 after `PROBE_SECONDS`, and the output of a command."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            start_new_session=True,  # Ctrl-C at the terminal must not reach it.
        )
    except subprocess.TimeoutExpired:
        return -1, b""
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"{words[0]} can't be run: {reason}.") from error
    return done.returncode, done.stdout


def flag_value(name: str, words: Sequence[str]) -> str | None:
    """Returns the last value of a program's flag in a command, or None."""
    values = re.findall(rf"^--?{name}[=\n](.*)$", "\n".join(words), re.M)
    return values[-1] if values else None


def parse(words: Sequence[str]) -> MpirunCommand | None:
    """Returns a parsed command, or None if it isn't a command of mpirun."""
    program = Path(words[0]).name if words else ""
    for launcher in LAUNCHERS.values():
        if launcher.host_options and program.startswith(launcher.processes):
            options = launcher.host_options
            break
    else:
        return None
    values: dict[str, str] = {}
    indices: dict[str, int] = {}
    index = 1
    while index < len(words) and words[index].startswith("-"):
        name = f"-{words[index].lstrip('-')}"
        indices[name] = index + 1
        values[name] = words[index + 1] if index + 1 < len(words) else ""
        index += 3 if name in options.with_two_values else 2
        if index <= len(words) and words[index - 1].startswith("-"):
            index -= 1  # The option has one value less than assumed, or none.
    hosts: list[str] = []
    for name, value in values.items():
        if name in options.hosts:
            hosts = value.split(",")
        elif name in options.host_files:
            hosts = read_file(value)
    num_ranks, ranks_per_host = (
        next((_number(name, values[name]) for name in names if name in values), default)
        for names, default in ((options.ranks, 1), (options.ranks_per_host, 0))
    )
    return MpirunCommand(
        tuple(words), num_ranks, ranks_per_host, tuple(hosts), indices, options
    )


def _number(name: str, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise UserError(
            f"{name} of mpirun must be a whole number above 0; got {value!r}."
        )
    return int(value)
