"""The monitor of a job of many ranks; their watchdogs are sockets of this process.

    python -m tests.many_watchdogs 512 4096

prints what the monitor takes to connect to so many, to hear their heartbeats, and to
end the job.
"""

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from resnet.watchdog import client
from resnet.watchdog.connections import TOKEN_VARIABLE, Attempts, Channel, Message
from resnet.watchdog.stalls import Peer

_TOKEN = f"many-{os.getpid()}"
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class ManyWatchdogs:
    """A monitor in a process of its own, and its connections to all other ranks.

    `channels` are this process's ends of them, `sent_bytes` what all ranks have sent.
    """

    def __init__(self, num_ranks: int, stall_seconds: float = 120.0) -> None:
        self.sent_bytes = 0
        self._rank = subprocess.Popen(["sleep", "1000"])  # Rank 0.
        flags = {
            **{"rank": 0, "num_ranks": num_ranks, "host": "node0"},
            **{"pid": self._rank.pid, "parent": os.getpid()},
            **{"stall_seconds": stall_seconds},
        }
        start = [sys.executable, "-I", "-S", "-c", client._START]
        self._monitor = subprocess.Popen(
            [
                *(*start, str(client._REPOSITORY)),
                *(f"--{name}={value}" for name, value in flags.items()),
            ],
            env={**os.environ, TOKEN_VARIABLE: _TOKEN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._monitor.stdout
        port = int(self._monitor.stdout.readline())
        began = time.monotonic()
        address = {"host": "node0", "addresses": ["127.0.0.1"], "port": port}
        attempts = (Attempts(address, _TOKEN, rank) for rank in range(1, num_ranks))
        channels = (attempt.connect() for attempt in attempts)
        self.channels = [channel for channel in channels if channel]
        self.connecting_seconds = time.monotonic() - began

    def __enter__(self) -> "ManyWatchdogs":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (self._rank, self._monitor):
            process.kill()
            process.wait()
        for channel in self.channels:
            channel.close()
        for pipe in (self._monitor.stdin, self._monitor.stdout, self._monitor.stderr):
            if pipe:
                pipe.close()

    @property
    def monitor_seconds(self) -> float:
        """Processor time of the monitor so far."""
        with open(f"/proc/{self._monitor.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    @property
    def monitor_bytes(self) -> int:
        """Memory of the monitor, its peak."""
        with open(f"/proc/{self._monitor.pid}/status") as file:
            (line,) = (line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10

    def heartbeat(self, status: str) -> None:
        """Sends the status of each rank, as its watchdog does at every tick."""
        for rank, channel in enumerate(self.channels, 1):
            peer = Peer(rank, f"node{rank // 2}", status, True, True)
            report = peer.report()
            self.sent_bytes += len(json.dumps(report)) + 1
            channel.send(report)

    def lose(self, rank: int) -> None:
        """Reports the death of a rank."""
        reason = f"rank {rank} on node{rank // 2} has died"
        self.channels[rank - 1].send({"died": reason, "at": time.time()})

    def received(self, seconds: float) -> list[Message | None]:
        """Returns the first message that each other rank receives within so long."""
        waiting = {channel.fileno(): channel for channel in self.channels}
        found: dict[Channel, Message] = {}
        poll = select.poll()
        for number in waiting:
            poll.register(number, select.POLLIN)
        deadline = time.monotonic() + seconds
        while len(found) < len(self.channels) and time.monotonic() < deadline:
            for number, _ in poll.poll(1000 * max(deadline - time.monotonic(), 0)):
                messages = waiting[number].receive()
                if messages is None or messages:
                    poll.unregister(number)
                    found[waiting[number]] = (messages or [{"end": True}])[0]
        return [found.get(channel) for channel in self.channels]

    def end(self) -> str:
        """Returns what the monitor has printed when it has ended."""
        _, printed = self._monitor.communicate(timeout=60)
        return printed


def main(numbers: Sequence[str]) -> None:
    """Prints a line for each number of ranks."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in map(int, numbers):
        with ManyWatchdogs(number) as many:
            registering = many.monitor_seconds
            for step in range(20):
                many.heartbeat(f"computing step {step}")
                time.sleep(0.5)
            beating = (many.monitor_seconds - registering) / 20
            memory = many.monitor_bytes
            many.received(6)  # Its own heartbeat.
            began = time.monotonic()
            many.lose(number // 2)
            answers = many.received(30)
            ending = time.monotonic() - began
            facts = {
                "ranks": number,
                "connections": len(many.channels),
                "seconds to connect": round(many.connecting_seconds, 2),
                "processor ms to connect": round(1e3 * registering),
                "processor ms of the heartbeats of all": round(1e3 * beating, 1),
                "bytes of these": many.sent_bytes // 20,
                "MB": round(memory / 1e6, 1),
                "killed": sum("kill" in (one or {}) for one in answers),
                "seconds to kill": round(ending, 2),
            }
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
