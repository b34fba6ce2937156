"""Two hosts on one machine: network namespaces with a cable each. Needs root."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import completed, write_program

_LOCK = Path(tempfile.gettempdir()) / "resnet-two-hosts.lock"
_BRIDGE = "rfbr0"
_MPIRUN_ADDRESS = "10.78.0.1"
# Hydra calls it as `launcher [-x] HOST "command"`, like ssh; a host whose cable is
# pulled can't be reached.
_LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
[ "$(cat /sys/class/net/v$host/operstate)" = up ] || exit 255
exec ip netns exec "$host" sh -c "$*"
"""


class NoNamespaces(Exception):
    """This machine doesn't let them be made."""


class Hosts:
    """Two namespaces on a bridge, `rf0` and `rf1`."""

    names = ("rf0", "rf1")

    def __init__(self, folder: Path) -> None:
        self._launcher = folder / "launcher.sh"
        write_program(self._launcher, _LAUNCHER)

    def launcher_options(self) -> list[str]:
        """Returns the options by which mpirun reaches the hosts.

        Without UCX_TLS the ranks would find each other's memory: the hosts are one
        machine.
        """
        return [
            *("-launcher", "ssh", "-launcher-exec", str(self._launcher)),
            *("-localhost", _MPIRUN_ADDRESS, "-genv", "UCX_TLS", "tcp,self"),
        ]

    def environment(self) -> dict[str, str]:
        """Returns the variables by which every mpirun reaches the hosts in this way."""
        return {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._launcher),
            "HYDRA_IFACE": _BRIDGE,
            "UCX_TLS": "tcp,self",
        }

    def mpirun(self, mpirun: Path, num_ranks: int) -> list[str]:
        """Returns the command that starts ranks, the first here, the next there, ..."""
        return [
            *(str(mpirun), *self.launcher_options()),
            *("-hosts", ",".join(self.names), "-ppn", "1"),
            *("-np", str(num_ranks)),
        ]

    def pull_cable(self, host: str) -> None:
        """Lets nothing through to a host any more."""
        _run("ip", "link", "set", f"v{host}", "down")

    def plug_cable(self, host: str) -> None:
        """Lets everything through again."""
        _run("ip", "link", "set", f"v{host}", "up")


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Makes two hosts, and removes them at the end; one pair at a time on a machine.

    Raises:
        NoNamespaces: If they can't be made here.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove()
        try:
            try:
                _make()
            except (OSError, subprocess.CalledProcessError) as error:
                raise NoNamespaces(
                    f"network namespaces can't be made: {error}"
                ) from error
            yield Hosts(folder)
        finally:
            _remove()


def _make() -> None:
    _run("ip", "link", "add", _BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{_MPIRUN_ADDRESS}/24", "dev", _BRIDGE)
    _run("ip", "link", "set", _BRIDGE, "up")
    for number, host in enumerate(Hosts.names):
        cable = ("type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", f"v{host}", *cable)
        _run("ip", "link", "set", f"v{host}", "master", _BRIDGE, "up")
        address = f"10.78.0.{10 + number}/24"
        _run("ip", "-n", host, "addr", "add", address, "dev", "eth0")
        _run("ip", "-n", host, "link", "set", "lo", "up")
        _run("ip", "-n", host, "link", "set", "eth0", "up")


def _remove() -> None:
    for link in (*(f"v{host}" for host in Hosts.names), _BRIDGE):
        if link in os.listdir("/sys/class/net"):
            _run("ip", "link", "del", link)
    for host in Hosts.names:
        if Path("/run/netns", host).exists():
            _run("ip", "netns", "del", host)


def _run(*words: str) -> None:
    completed(words, check=True)
