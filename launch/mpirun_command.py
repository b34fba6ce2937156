"""The hosts and ranks that an mpirun command names, and the same on fewer hosts."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.errors import UserError

PROBE_SECONDS = 20.0  # For a host to run `true`; ssh's own time-out is minutes.
_RANKS = ("-np", "-n")
_HOSTS = ("-hosts", "-host")
_HOST_FILES = ("-f", "-hostfile", "-machinefile")
_PER_HOST = ("-ppn", "-perhost")
# What says how other hosts are reached; a probe needs it as well.
_LAUNCHERS = ("-launcher", "-launcher-exec", "-rmk", "-iface", "-localhost")


@dataclass(frozen=True)
class MpirunCommand:
    """A command `mpirun [options] program ...`, as Hydra (MPICH, Intel MPI) takes it.

    Attributes:
        launcher: mpirun itself.
        num_ranks: What `-np` says.
        ranks_per_host: What `-ppn` says; 0 without.
        hosts: `host` or `host:ranks`; empty if the command names none.
        options: All other options before the program, as they are.
        program: The program and its arguments.
    """

    launcher: str
    num_ranks: int
    ranks_per_host: int
    hosts: tuple[str, ...]
    options: tuple[str, ...]
    program: tuple[str, ...]

    def words(self) -> list[str]:
        """Returns the command."""
        words = [self.launcher, *self.options]
        if self.hosts:
            words += ["-hosts", ",".join(self.hosts)]
        if self.ranks_per_host:
            words += ["-ppn", str(self.ranks_per_host)]
        return [*words, "-np", str(self.num_ranks), *self.program]

    def without(self, gone: Sequence[str]) -> "MpirunCommand":
        """Returns the command without some hosts and the ranks that were theirs."""
        left = tuple(host for host in self.hosts if host not in gone)
        num_ranks = sum(self.ranks_of(host) for host in left)
        return replace(self, hosts=left, num_ranks=num_ranks)

    def ranks_of(self, host: str) -> int:
        """Returns how many ranks a host has."""
        if self.ranks_per_host:
            return self.ranks_per_host
        _, _, ranks = host.partition(":")
        return int(ranks) if ranks else self.num_ranks // len(self.hosts)

    def find_gone_hosts(self) -> list[str]:
        """Returns the hosts on which the launcher can't run a program any more."""
        return [host for host in self.hosts if not self._can_run_on(host)]

    def _can_run_on(self, host: str) -> bool:
        words = [self.launcher, *_those_with_values(self.options, _LAUNCHERS)]
        words += ["-hosts", host.partition(":")[0], "-np", "1", "true"]
        try:
            probe = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=PROBE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False
        return probe.returncode == 0


def parse(words: Sequence[str]) -> MpirunCommand | None:
    """Returns what a command says; None if it isn't one of mpirun.

    Raises:
        UserError: If it names hosts in a way that can't be read.
    """
    if not words or not Path(words[0]).name.startswith(("mpirun", "mpiexec")):
        return None
    num_ranks, per_host, hosts = 1, 0, []
    options: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        name = f"-{name.lstrip('-')}"
        if name in _RANKS:
            num_ranks = _number(name, rest)
        elif name in _PER_HOST:
            per_host = _number(name, rest)
        elif name in _HOSTS:
            hosts += rest.pop(0).split(",")
        elif name in _HOST_FILES:
            hosts += _read_hosts(rest.pop(0))
        else:
            num_values = {"-genv": 2, "-env": 2}.get(name, 1)
            if not rest or rest[0].startswith("-") or name in _WITHOUT_VALUE:
                num_values = 0
            options += [name, *rest[:num_values]]
            del rest[:num_values]
    return MpirunCommand(
        words[0], num_ranks, per_host, tuple(hosts), tuple(options), tuple(rest)
    )


_WITHOUT_VALUE = ("-l", "-prepend-rank", "-v", "-verbose", "-genvall", "-envall")


def _number(name: str, rest: list[str]) -> int:
    value = rest.pop(0) if rest else ""
    if not value.isdigit() or int(value) < 1:
        raise UserError(f"{name} of mpirun must be a number from 1; got {value!r}.")
    return int(value)


def _read_hosts(path: str) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise UserError(f"the host file of mpirun must be readable: {error}") from error
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [line.split()[0] for line in stripped if line]


def _those_with_values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for i, option in enumerate(options):
        if option in names:
            found += options[i : i + 2]
    return found
