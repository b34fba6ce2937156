"""Reads the hosts and ranks of an mpirun command, and removes hosts from it."""

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.hosts import Host, parse_line, read_file
from resnet.base.errors import UserError
from resnet.hardware.launchers import LAUNCHERS, HostOptions

PROBE_SECONDS = 20.0  # Timeout of `true` on a host; ssh's own timeout is minutes.


@dataclass(frozen=True)
class MpirunCommand:
    """A command `mpirun [options] program ...` of Hydra (MPICH, Intel MPI)."""

    words: tuple[str, ...]  # With `-np=4` as `-np 4`, which means the same.
    num_ranks: int  # Value of `-np`, of the last block if several are separated by `:`.
    ranks_per_host: int  # Value of `-ppn`; 0 without it.
    values: tuple[tuple[str, int], ...]  # Options, and the indices of their values.
    options: HostOptions

    @functools.cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of all blocks; a file is read now."""
        hosts: list[Host | None] = []
        for name, index in self.values:
            if name in self.options.hosts:
                hosts += map(parse_line, self.words[index].split(","))
            elif name in self.options.host_files:
                hosts += read_file(self.words[index])
        return tuple(filter(None, hosts))

    def without(self, hosts: Sequence[str]) -> "MpirunCommand | None":
        """Returns the command without some hosts, or None if no host is left.

        Raises UserError if the hosts of such a command can't be changed.
        """
        if ":" in self.words:
            raise UserError(
                f"{', '.join(hosts)} can't be left out of a command of several blocks,"
                " which each have their ranks, and the training is not restarted. Start"
                " it without them."
            )
        remaining = [host for host in self.hosts if host.name not in hosts]
        if not remaining:
            return None
        num_ranks = max(1, self.num_ranks * len(remaining) // len(self.hosts))
        if self.ranks_per_host:
            num_ranks = self.ranks_per_host * len(remaining)
        elif all(host.slots for host in remaining):
            num_ranks = sum(host.slots for host in remaining)
        words = list(self.words)
        for name, index in self.values:
            if name in (*self.options.hosts, *self.options.host_files):
                words[index] = ",".join(host.line() for host in remaining)
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
        names = [host.name for host in self.hosts]
        with ThreadPoolExecutor(max_workers=max(len(names), 1)) as threads:
            codes = list(threads.map(lambda name: _run(self._on(name))[0], names))
        return [name for name, code in zip(names, codes, strict=True) if code]

    def _on(self, host: str) -> list[str]:
        words = [self.words[0]]
        for name, index in self.values:
            if name in self.options.reaching:
                words += [name, self.words[index]]
        words += [self.options.hosts[0], host]
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
    split, values = list(words), list[tuple[str, int]]()
    index = 1
    while index < len(split):
        index = _read_options(split, index, options, values)
        while index < len(split) and split[index] != ":":
            index += 1
        index += 1
    numbers = {
        name: _number(name, split[index])
        for name, index in values
        if name in (*options.ranks, *options.ranks_per_host)
    }
    num_ranks, ranks_per_host = (
        next((numbers[name] for name in names if name in numbers), default)
        for names, default in ((options.ranks, 1), (options.ranks_per_host, 0))
    )
    return MpirunCommand(
        tuple(split), num_ranks, ranks_per_host, tuple(values), options
    )


def _read_options(
    words: list[str], index: int, options: HostOptions, values: list[tuple[str, int]]
) -> int:
    """Adds the options of the block that begins at an index; returns its program's."""
    one_value = (
        *(*options.ranks, *options.ranks_per_host, *options.hosts),
        *(*options.host_files, *options.reaching),
    )
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        name = f"-{name.lstrip('-').lower()}"  # As Hydra compares it.
        if equals and name in one_value:
            words[index : index + 1] = [name, value]
        index += 1
        if index == len(words):
            break
        next_word = words[index]
        if name in one_value or not (equals or next_word.startswith("-")):
            values.append((name, index))
            index += 1 + (name in options.with_two_values and "=" not in next_word)
    return index


def _number(name: str, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise UserError(
            f"{name} of mpirun must be a whole number above 0; got {value!r}."
        )
    return int(value)
