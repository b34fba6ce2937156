"""A rank's connection to its guard: what it does now, and how it ended."""

import contextlib
import fcntl
import json
import os
import platform
import secrets
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from resnet import process_facts, temporary_folder
from resnet.guard_channel import TOKEN_VARIABLE
from resnet.placement import Place

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface.
_MOST_OF_A_TRACEBACK = 16_384  # Bytes: what a socket takes at once.
_GUARD_GOES_WITHIN_SECONDS = 10.0
_REPOSITORY = Path(__file__).resolve().parents[1]
_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from resnet.guard import main
main()
"""


class GuardLink:
    """The pipe to a rank's guard. Nothing here waits for it, or fails with it."""

    def __init__(
        self, place: Place, token: str, stall_seconds: float, model_dir: str | None
    ) -> None:
        """Starts the guard.

        Args:
            place: This rank's place.
            token: A secret of this job, the same on all ranks.
            stall_seconds: As `stalls.find_stall` takes it.
            model_dir: Where rank 0's guard writes a failure down; None: nowhere.
        """
        self._process = subprocess.Popen(
            [
                # Neither the working folder nor what is in it, nor the environment's.
                *(sys.executable, "-I", "-S", "-c", _START, str(_REPOSITORY)),
                f"--rank={place.rank}",
                f"--num_ranks={place.num_ranks}",
                f"--host={platform.node()}",
                f"--pid={os.getpid()}",
                f"--stall_seconds={stall_seconds}",
                *([f"--model_dir={model_dir}"] if model_dir else []),
                f"--temporary_folder={temporary_folder.path()}",
                # Said here: this rank may be gone before its guard could look.
                *("--shared_memory", *process_facts.shared_memory()),
            ],
            env={**os.environ, TOKEN_VARIABLE: token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Or the launcher would kill it with its rank.
        )
        assert self._process.stdin is not None  # noqa: S101 - It is a pipe.
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)

    @property
    def port(self) -> int:
        """Where rank 0's guard listens."""
        assert self._process.stdout is not None  # noqa: S101 - It is a pipe.
        return int(self._process.stdout.readline())

    def connect(self, host: str, addresses: list[str], port: int) -> None:
        """Has the guard report to rank 0's."""
        self._send({"host": host, "addresses": addresses, "port": port})

    def doing(self, what: str, is_timed: bool, waits_for_others: bool) -> None:
        """Says what this rank does now; see `stalls.Peer`."""
        self._send(
            {"doing": what, "is_timed": is_timed, "waits_for_others": waits_for_others}
        )

    def failed(self, text: str) -> None:
        """Has the guards say why the job ends; then this rank has to end it."""
        last = text.encode()[-_MOST_OF_A_TRACEBACK:].decode(errors="replace")
        self._send({"failed": last})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GUARD_GOES_WITHIN_SECONDS)

    def bye(self) -> None:
        """Says that this rank ends as it should; its guard goes when it has."""
        self._send({"bye": True})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # The guard is gone, or doesn't listen.
            os.write(self._pipe, json.dumps(message).encode() + b"\n")


def new_token() -> str:
    """Returns a secret that keeps jobs on the same hosts apart."""
    return secrets.token_hex(16)


def own_addresses() -> list[str]:
    """Returns the IPv4 addresses of this host, the one of its name first."""
    found = []
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(platform.node()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # An interface without an address.
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(reply[20:24]))
    return sorted(dict.fromkeys(found), key=lambda one: one.startswith("127."))
