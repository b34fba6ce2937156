"""The watchdog of one rank: a small process that ends the job when a rank fails.

A rank that is killed, stopped or cut off from the network can't report it, and the
other ranks would wait for it forever. So each rank has a watchdog process beside it.
The rank reports its status to it through a pipe, and the watchdogs report to that of
rank 0, the monitor, over TCP. When a rank has died, failed or stalled, each watchdog
kills its own rank, and the monitor prints one sentence: which rank, which host, why.

It needs only the standard library; `client` starts it as a program of its own.
"""

import argparse
import os
import resource
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from resnet.watchdog import connections, history, proc
from resnet.watchdog.connections import Attempts, Channel, Listener, Message
from resnet.watchdog.printing import Output, RankWarnings
from resnet.watchdog.proc import RankProcess
from resnet.watchdog.stalls import MAX_SUSPENDED_SECONDS, Peer, find_stall

_ENDING_SECONDS = 5.0  # Time for a rank to end the job itself before it is killed.
_ENDING_INTERVAL_SECONDS = 0.25  # Time between ticks meanwhile.
_UNKNOWN_SECONDS = 0.5  # Between checks of connections that are not known yet.
_EARLIER_DEATHS_SECONDS = 0.3  # Time for reports of earlier deaths to arrive.


class Watchdog:
    """The watchdog of one rank; that of rank 0 is the monitor of all others."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._me = Peer(args.rank, args.host)
        self._peers = {args.rank: self._me}
        self._selector = selectors.DefaultSelector()
        self._own_rank = Channel(sys.stdin.fileno())
        self._selector.register(self._own_rank, selectors.EVENT_READ)
        self._monitor: Channel | None = None
        self._watchdogs: list[Channel] = []  # The monitor's connections.
        self._listener: Listener | None = None
        self._heard_monitor_at = time.monotonic()
        self._attempts: Attempts | None = None  # Once the rank has reported where.
        self._monitor_has_deregistered = False
        # The ranks whose connections the monitor waits for.
        self._unregistered = set(range(args.num_ranks)) - {args.rank}
        self._ticked_at = time.monotonic()
        self._deregistered_at: float | None = None  # When the rank was done.
        self._kill_at: float | None = None  # Deadline of a job that is ending.
        self._has_reported_orphan = False
        self._died_at: float | None = None  # Wall-clock time, of the monitor's rank.
        self._rank = RankProcess(args)
        self._interval = min(max(args.stall_seconds / 20, 0.25), 5.0)
        self._suspended_seconds = min(MAX_SUSPENDED_SECONDS, args.stall_seconds / 2)
        self._output = Output()
        self._warnings = RankWarnings()
        if args.rank == 0:
            address = connections.LOOPBACK if args.on_one_node else ""
            self._listener = Listener(
                self._selector, address, args.token, args.num_ranks
            )
            print(self._listener.socket.getsockname()[1], flush=True)

    def run(self) -> None:
        """Monitors the rank until it has ended."""
        while True:
            self.poll(self._interval)
            now = time.monotonic()
            if now - self._ticked_at > self._interval + self._suspended_seconds:
                self._restart_clocks(now)
            if now - self._ticked_at >= self._interval:
                self._ticked_at = now  # The job may be suspended within a tick, too.
                self._tick(now)

    def poll(self, seconds: float) -> None:
        """Handles what arrives at the connections; waits at most so long for it."""
        listener = self._listener
        if listener and listener.unknown:
            seconds = min(seconds, _UNKNOWN_SECONDS)
            listener.drop_late()
        for key, _ in self._selector.select(seconds):
            channel: Any = key.fileobj
            if listener and channel is listener.socket:
                listener.accept()
            elif channel.is_closed:  # By what came through another one.
                continue
            elif not listener or channel not in listener.unknown:
                self._receive(channel)
            elif listener.is_proved(channel):
                self._unregistered.discard(channel.rank)
                self._watchdogs.append(channel)

    def fail(self, error: Exception) -> None:
        """Ends the job because of a defect of this watchdog."""
        self._report_death(f"the watchdog of {self._me.name} has failed: {error!r}")
        self._rank.kill()
        sys.excepthook(type(error), error, error.__traceback__)
        self._exit()

    def _connect(self, attempts: Attempts) -> None:
        """Connects to the monitor, or warns if that has failed twice."""
        self._monitor = attempts.connect()
        if self._monitor:
            self._selector.register(self._monitor, selectors.EVENT_READ)
            self._heard_monitor_at = time.monotonic()
            self._monitor.send(self._me.report())
        elif warning := attempts.warning(self._me.name):
            self._output.print(warning)

    def _receive(self, channel: Channel) -> None:
        messages = channel.receive()
        for message in messages or ():
            if channel.is_closed:
                return
            if channel is self._own_rank:
                self._receive_from_own_rank(message)
            elif channel is self._monitor:
                self._receive_from_monitor(message)
            else:
                try:
                    self._receive_from_watchdog(channel, message)
                except Exception as error:
                    name = f"the watchdog of rank {channel.rank}"
                    self._end_job(f"{name} has sent what is no message: {error!r}")
        if messages is not None:
            return
        self._close(channel)
        if channel is self._own_rank:  # The rank has ended.
            if self._kill_at is None and self._deregistered_at is None:
                self._report_death(
                    f"{self._me.name} has died while {self._me.status}:"
                    f" {self._rank.reason_of_death}"
                )
            self._exit()
        elif channel is self._monitor:
            self._monitor = None
            self._monitor_is_lost("it was killed, or its host has crashed")
        elif channel.rank in self._peers:
            name = self._peers[channel.rank].name
            self._end_job(f"the watchdog of {name} was killed, or its host has crashed")

    def _close(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        channel.close()
        if channel in self._watchdogs:
            self._watchdogs.remove(channel)

    def _receive_from_own_rank(self, message: Message) -> None:
        if "status" in message:
            self._me.update(message)
        elif "warning" in message:
            if self._monitor:
                self._monitor.send(message)
            elif self._args.rank == 0:
                self._warnings.add_printed(message["warning"])
            else:
                text = f"{message['level']}: {self._me.name}: {message['warning']}"
                self._output.print(text)
        elif "port" in message:
            self._attempts = Attempts(message, self._args.token, self._args.rank)
            self._connect(self._attempts)
        elif "failed" in message:
            self._own_rank_has_failed(message["failed"])
        elif "deregister" in message:
            self._deregister()

    def _deregister(self) -> None:
        """Disconnects; from now on, only the end of MPI and the process is awaited."""
        if self._rank.is_orphaned:
            self._launcher_has_died()
        for key in list(self._selector.get_map().values()):
            if key.fileobj is self._own_rank:
                continue
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, Channel):
                key.fileobj.send({"deregister": True})
            key.fileobj.close()  # type: ignore[union-attr]
        self._listener = None
        self._deregistered_at = time.monotonic()

    def _receive_from_monitor(self, message: Message) -> None:
        self._heard_monitor_at = time.monotonic()
        if "kill" in message:
            self._job_is_ending(message["kill"])
        elif "deregister" in message and self._monitor:  # The job is done.
            self._close(self._monitor)
            self._monitor = None
            self._monitor_has_deregistered = True

    def _receive_from_watchdog(self, channel: Channel, message: Message) -> None:
        assert channel.rank is not None  # noqa: S101 - It has proved it.
        peer = self._peers.setdefault(channel.rank, Peer(channel.rank))
        if "status" in message:
            peer.host = message["host"]
            peer.update(message)
        elif "died" in message:
            if self._died_at is None or message["at"] < self._died_at:
                self._end_job(message["died"])
        elif "failed" in message:
            self._end_job(message["failed"], kill=False)
        elif "warning" in message:
            self._warnings.add(message["level"], message["warning"], peer.name)
        elif "orphaned" in message:
            self._launcher_has_died(message["orphaned"])
        elif "deregister" in message:
            del self._peers[channel.rank]
            self._close(channel)

    def _tick(self, now: float) -> None:
        self._rank.tick()
        self._output.print_lines(self._warnings.tick())
        if self._deregistered_at is not None:
            self._watch_shutdown(now)
            return
        if self._kill_at is not None:
            # The launcher doesn't reach a rank that outlives it.
            if now > self._kill_at or self._rank.is_orphaned:
                self._rank.kill()
                self._exit()
            return
        self._me.set_stopped(self._rank.is_stopped)
        self._me.heard_at = now
        if self._rank.has_outlived_launcher:
            self._launcher_has_died()
        elif self._rank.is_lost:
            self._own_rank_is_orphaned()
        if self._monitor:
            self._monitor.send(self._me.report())
            if now - self._heard_monitor_at > self._args.stall_seconds:
                self._monitor_is_lost(
                    "it was stopped, or its host or the network is down"
                )
        elif self._args.rank == 0:
            for watchdog in self._watchdogs:
                watchdog.send({"alive": True})
            peers = list(self._peers.values())
            self._end_if_stalled(peers, sorted(self._unregistered), now)
        elif self._attempts and not self._monitor_has_deregistered:
            same_activity = now - self._me.since
            if self._end_if_stalled([self._me], [], now):
                return
            if self._has_reported_orphan and same_activity > self._args.stall_seconds:
                # The rank may wait for others forever, in an activity that isn't timed.
                self._monitor_is_lost("rank 0 has ended, as the launcher has")
            else:
                self._connect(self._attempts)
                self._ticked_at = time.monotonic()  # Connecting may have taken long.

    def _end_if_stalled(
        self, peers: list[Peer], unregistered: list[int], now: float
    ) -> bool:
        stall = find_stall(peers, unregistered, self._args.stall_seconds, now)
        if stall:
            self._end_job(stall)
        return stall is not None

    def _watch_shutdown(self, now: float) -> None:
        """Kills a rank that is done, but whose MPI_Finalize waits for other ranks."""
        assert self._deregistered_at is not None  # noqa: S101 - The caller checks it.
        waited = now - self._deregistered_at
        is_orphaned = self._rank.is_orphaned  # MPI_Finalize may wait for the launcher.
        if waited > (_ENDING_SECONDS if is_orphaned else self._args.stall_seconds):
            self._output.print(
                f"error: {self._me.name} was done {waited:.0f} s ago, but its process"
                " has not ended: another rank hangs during shutdown (MPI_Finalize). The"
                " job ends."
            )
            self._rank.kill()
            self._exit()

    def _restart_clocks(self, now: float) -> None:
        """Restarts all timeouts after the whole job was suspended."""
        self._heard_monitor_at = now
        if self._deregistered_at is not None:
            self._deregistered_at = now
        for peer in self._peers.values():
            peer.heard_at = peer.since = now
            peer.stopped_since = None

    def _own_rank_is_orphaned(self) -> None:
        """Ends the job after the launcher's process on this host has died."""
        self._rank.kill()
        self._report_death(
            f"{self._rank.reason_of_orphanhood} while this rank was {self._me.status}"
        )
        self._exit()

    def _launcher_has_died(self, reason: str = "") -> None:
        """Reports once why the ranks that have outlived their launcher save and end."""
        if self._has_reported_orphan:
            return
        self._has_reported_orphan = True
        reason = reason or self._rank.reason_of_orphanhood
        if self._monitor:
            self._monitor.send({"orphaned": reason})
            return
        self._output.print(f"error: {reason}. The ranks save and end.")
        self._write_failure(reason)

    def _report_death(self, sentence: str) -> None:
        if self._monitor:
            message = {"died": sentence, "at": time.time()}
            connections.send_and_await_end(self._monitor, message)
        else:
            self._await_earlier_deaths()
            self._end_job(sentence)

    def _await_earlier_deaths(self) -> None:
        """Lets another watchdog report first if its rank died before this one's.

        After one death the launcher kills the other ranks, so that all are reported at
        once, with the times of the hosts' clocks.
        """
        self._died_at = time.time()
        deadline = time.monotonic() + _EARLIER_DEATHS_SECONDS
        while self._kill_at is None and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fileobj in self._watchdogs:
                    self._receive(key.fileobj)  # type: ignore[arg-type]

    def _own_rank_has_failed(self, text: str) -> None:
        """Reports the reason; the rank ends the job after this watchdog has exited."""
        if self._rank.is_lost:  # It fails to write to the launcher's broken pipe.
            self._own_rank_is_orphaned()
        text = f"{text.rstrip()}\n({self._me.name} failed while {self._me.status})"
        if self._monitor:
            connections.send_and_await_end(self._monitor, {"failed": text})
        else:
            self._end_job(text, kill=False)
        self._exit()

    def _end_job(self, text: str, kill: bool = True) -> None:
        """Prints why the job ends, and ends it; does nothing if it is ending already.

        Each watchdog kills its rank, or a rank ends the job.
        """
        if self._kill_at is not None:
            return
        try:
            self._output.print(text if not kill else f"error: {text}. The job ends.")
            for watchdog in self._watchdogs:
                watchdog.send({"kill": kill})
            self._job_is_ending(kill)
        finally:
            # Last, since the disk may hang. The last two lines of a traceback are the
            # exception and the rank's status.
            self._write_failure(" ".join(text.splitlines()[-2:]))

    def _write_failure(self, reason: str) -> None:
        if self._args.model_dir:
            history.write_failure(Path(self._args.model_dir), reason)

    def _job_is_ending(self, kill: bool) -> None:
        self._kill_at = time.monotonic() + _ENDING_SECONDS
        self._interval = min(self._interval, _ENDING_INTERVAL_SECONDS)
        if kill:
            self._rank.kill()

    def _monitor_is_lost(self, reason: str) -> None:
        if self._kill_at is not None:
            return
        host = self._attempts.host if self._attempts else None
        self._output.print(
            f"error: {self._me.name} has lost its connection to the watchdog of rank 0"
            f" on {host}: {reason}. This rank ends."
        )
        self._rank.kill()
        self._exit()

    def _exit(self) -> None:
        """Removes what the rank left behind, and exits when everything is printed."""
        self._output.print_lines(self._warnings.take_all())
        self._rank.remove_leftovers()
        self._output.finish()
        sys.exit(0)


def main() -> None:
    """Runs the watchdog of the rank that the arguments of `client` name."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # One per rank.
    # The rank handles signals; the watchdog exits when its rank has ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("rank", "num_ranks", "pid", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--stall_seconds", type=float, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--outlives_launcher", action="store_true")
    parser.add_argument("--model_dir")
    parser.add_argument("--scratch_dir")
    parser.add_argument("--on_one_node", action="store_true")
    parser.add_argument("--shared_memory", nargs="*", default=[])
    args = parser.parse_args()
    args.token = os.environ.pop(connections.TOKEN_VARIABLE)  # The secret of the job.
    # Holds mpirun's pipes: if it stayed stopped after its rank, mpirun would never end.
    proc.send_signal_at_parents_end(signal.SIGCONT, args.pid)
    watchdog = Watchdog(args)
    try:
        watchdog.run()
    except Exception as error:
        watchdog.fail(error)


if __name__ == "__main__":
    main()
