"""Starts the watchdog of a rank, and reports the rank's status to it."""

import contextlib
import fcntl
import json
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from resnet.hardware.placement import ProcessInfo
from resnet.watchdog import proc, scratch_dir
from resnet.watchdog.connections import TOKEN_VARIABLE, Channel

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface.
_TRACEBACK_BYTES = 16_384  # A message of this size fits into a pipe or socket at once.
_SHORT_CHARACTERS = 300  # As JSON, of up to 12 bytes each, within PIPE_BUF (4,096).
_REPOSITORY = Path(__file__).resolve().parents[2]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.watchdog.monitor import main
main()
"""


class WatchdogClient:
    """The pipe to the watchdog of this rank.

    Reports of the status never block, and are dropped if the watchdog has died.
    """

    def __init__(
        self,
        process: ProcessInfo,
        token: str,
        stall_seconds: float,
        model_dir: str | None,
        outlives_launcher: bool = False,
    ) -> None:
        """Starts the watchdog.

        `token` is a secret of the job; after `stall_seconds` without progress a rank
        has stalled (`stalls.find_stall`); in `model_dir`, if any, rank 0's watchdog
        writes `failure.json`. A rank that `outlives_launcher` saves and ends by itself
        when the launcher has died; its parent is its rank wrapper.
        """
        self._process = subprocess.Popen(
            [
                # Isolated from modules in the working folder and the environment.
                sys.executable,
                "-I",
                "-S",
                "-c",
                _START,
                str(_REPOSITORY),
                f"--rank={process.rank}",
                f"--num_ranks={process.num_ranks}",
                f"--host={platform.node()}",
                f"--pid={os.getpid()}",
                f"--parent={os.getppid()}",
                f"--stall_seconds={stall_seconds}",
                *([f"--model_dir={model_dir}"] if model_dir else []),
                *(["--outlives_launcher"] if outlives_launcher else []),
                f"--scratch_dir={scratch_dir.path()}",
                *(["--on_one_node"] if process.has_all_ranks_on_node else []),
                # Passed on, since this rank may die before its watchdog looks it up.
                *("--shared_memory", *proc.shared_memory()),
            ],
            env={**os.environ, TOKEN_VARIABLE: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Or the launcher would kill it with its rank.
        )
        assert self._process.stdin is not None  # noqa: S101 - It is a pipe.
        self._channel = Channel(self._process.stdin.fileno())
        os.set_blocking(self._channel.fileno(), False)

    @property
    def port(self) -> int:
        """TCP port on which the watchdog of rank 0 listens."""
        assert self._process.stdout is not None  # noqa: S101 - It is a pipe.
        return int(self._process.stdout.readline())

    def connect(self, host: str, addresses: list[str], port: int) -> None:
        """Makes the watchdog report to that of rank 0, whose host has the addresses."""
        self._channel.send({"host": host, "addresses": addresses, "port": port})

    def report_status(
        self, status: str, is_timed: bool, waits_for_others: bool
    ) -> None:
        """Reports what this rank does now: a phrase that can follow "while".

        It may have to end within the stall time, or only when all ranks do the same.
        """
        self._channel.send(
            {
                "status": status,
                "is_timed": is_timed,
                "waits_for_others": waits_for_others,
            }
        )

    def report_warning(self, level: str, text: str) -> None:
        """Has the watchdog of rank 0 print a warning, with the name of this rank.

        That of rank 0 only notes it, since rank 0 prints it. Any thread may call it.
        """
        message = {"warning": text, "level": level}
        # Longer ones could be torn apart by another thread's, or by a full pipe.
        if len(json.dumps(message)) >= select.PIPE_BUF:
            message["warning"] = f"{text[:_SHORT_CHARACTERS]}..."
        self._channel.send(message)

    def failed(self, text: str) -> None:
        """Reports why the job fails; afterwards this rank has to end the job.

        It waits up to 10 s until the watchdog has passed on the end of it, and exited.
        """
        encoded = text.encode(errors="backslashreplace")
        last = encoded[-_TRACEBACK_BYTES:].decode(errors="replace")
        self._channel.send({"failed": last})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)

    def await_end(self) -> None:
        """Waits until the watchdog has ended; continues one that was stopped."""
        self._process.send_signal(signal.SIGCONT)
        self._process.wait()

    def deregister(self) -> None:
        """Reports that this rank is done; the watchdog exits after the rank has."""
        self._channel.send({"deregister": True})


def own_addresses() -> list[str]:
    """Returns the IPv4 addresses of this host, that of the host name first."""
    addresses = list(interfaces())
    with contextlib.suppress(OSError):
        addresses.insert(0, socket.gethostbyname(platform.node()))
    # Loopback addresses come last.
    return sorted(dict.fromkeys(addresses), key=lambda ip: ip.startswith("127."))


def interfaces() -> dict[str, str]:
    """Returns the names of the interfaces of this host by their IPv4 addresses."""
    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # An interface without an address.
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                names[socket.inet_ntoa(reply[20:24])] = name
    return names
