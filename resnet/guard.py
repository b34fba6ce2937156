"""The guard of one rank: a small process that ends the job when a rank can't go on.

A rank that is killed, stopped or cut off can't say so, and the others would wait for it
without end. So each rank has a guard beside it, which hears from its rank by a pipe and
from the other guards by TCP: rank 0's is the one that they all tell how their rank is.
When a rank is gone, has failed or stands still, each guard kills its own rank, and rank
0's says in one sentence which rank it was, on which host and why.

Needs the standard library alone; `guard_link` starts it, as a program of its own.
"""

import argparse
import contextlib
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from resnet import failure_file
from resnet.guard_channel import TOKEN_VARIABLE, Channel, Message
from resnet.process_facts import oom_kills, process_is_stopped
from resnet.stalls import Peer, find_stall

CONNECT_SECONDS = 5.0
_ENDING_SECONDS = 5.0  # For a rank that ends the job; then it is killed.
_SUSPENDED_SECONDS = 10.0  # A gap between two ticks that means all was stopped.

_EARLIER_DEATHS_SECONDS = 0.3
_HELLO = b"hello\n"


class Guard:
    """The guard of one rank; rank 0's is the monitor, which the others report to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._me = Peer(args.rank, args.host)
        self._peers = {args.rank: self._me}
        self._selector = selectors.DefaultSelector()
        self._own_rank = Channel(sys.stdin.fileno())
        self._selector.register(self._own_rank, selectors.EVENT_READ)
        self._monitor: Channel | None = None
        self._guards: list[Channel] = []  # The monitor's connections.
        self._listener: socket.socket | None = None
        self._heard_monitor_at = time.monotonic()
        self._monitor_listens: Message | None = None  # Where, once the rank has said.
        self._monitor_has_parted = False
        self._unheard = set(range(args.num_ranks)) - {args.rank}  # By the monitor.
        self._parted_at: float | None = None  # When the rank said it ends as it should.
        self._ends_by: float | None = None  # When a job that is ending has to be gone.
        self._died_at: float | None = None  # The monitor's own rank, by the clock.
        self._oom_kills = [oom_kills()] * 2  # One and two ticks ago.
        self._interval = min(max(args.stall_seconds / 20, 0.25), 5.0)
        if args.rank == 0:
            self._listener = socket.create_server(("", 0), backlog=4096)
            self._selector.register(self._listener, selectors.EVENT_READ)
            print(self._listener.getsockname()[1], flush=True)

    def run(self) -> None:
        """Watches until the rank has ended."""
        ticked_at = time.monotonic()
        while True:
            for key, _ in self._selector.select(self._interval):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._selector.get_map():  # Not closed meanwhile.
                    self._hear(key.fileobj)  # type: ignore[arg-type]
            now = time.monotonic()
            if now - ticked_at > self._interval + _SUSPENDED_SECONDS:
                self._start_clocks_anew(now)
            if now - ticked_at >= self._interval:
                self._tick(now)
                ticked_at = now

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - It has just been heard.
        with contextlib.suppress(OSError):  # Gone again, or too many of them.
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._selector.register(Channel(connection), selectors.EVENT_READ)

    def _connect(self) -> None:
        """Connects to the monitor at the first of its addresses that answers."""
        assert self._monitor_listens is not None  # noqa: S101 - Asked by the callers.
        message = self._monitor_listens
        for address in message["addresses"]:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(
                    (address, message["port"]), CONNECT_SECONDS
                )
                channel = Channel(connection)
                channel.send({"token": self._args.token, "rank": self._args.rank})
                if connection.recv(len(_HELLO)) == _HELLO:
                    connection.setblocking(False)
                    self._monitor = channel
                    self._selector.register(channel, selectors.EVENT_READ)
                    self._heard_monitor_at = time.monotonic()
                    self._report()
                    return
                connection.close()
        if not message.get("was_tried"):
            message["was_tried"] = True
            self._say(
                f"warning: the guard of {self._me.name} can't reach that of rank 0 on"
                f" {message['host']} at {', '.join(message['addresses'])}, port"
                f" {message['port']}: it tries again, and watches its rank alone"
            )

    def _hear(self, channel: Channel) -> None:
        messages = channel.receive()
        for message in messages or ():
            if channel is self._own_rank:
                self._hear_own_rank(message)
            elif channel is self._monitor:
                self._hear_monitor(message)
            else:
                self._hear_guard(channel, message)
        if messages is not None:
            return
        self._close(channel)
        if channel is self._own_rank:
            self._own_rank_has_ended()
        elif channel is self._monitor:
            self._monitor = None
            self._lose_monitor()
        elif channel.rank in self._peers:
            gone = self._peers[channel.rank]
            self._end_job(f"{gone.name} is gone, and its guard with it")

    def _close(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        channel.close()
        if channel in self._guards:
            self._guards.remove(channel)

    def _hear_own_rank(self, message: Message) -> None:
        if "doing" in message:
            self._me.does(message)
        elif "port" in message:
            self._monitor_listens = message
            self._connect()
        elif "failed" in message:
            self._own_rank_has_failed(message["failed"])
        elif "bye" in message:
            self._part_from_others()

    def _part_from_others(self) -> None:
        """From here on only the rank's end is waited for: MPI's, then its process's."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is self._own_rank:
                continue
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, Channel):
                key.fileobj.send({"bye": True})
                key.fileobj.close()
        self._parted_at = time.monotonic()

    def _hear_monitor(self, message: Message) -> None:
        self._heard_monitor_at = time.monotonic()
        if "kill" in message:
            self._job_is_ending(message["kill"])
        elif "bye" in message and self._monitor:  # The job is ending as it should.
            self._close(self._monitor)
            self._monitor = None
            self._monitor_has_parted = True

    def _hear_guard(self, channel: Channel, message: Message) -> None:
        if message.get("token") == self._args.token:
            channel.rank = message["rank"]
            self._unheard.discard(message["rank"])
            self._guards.append(channel)
            with contextlib.suppress(OSError):
                os.write(channel.fileno(), _HELLO)
            return
        if channel.rank is None:  # A stranger.
            self._close(channel)
            return
        peer = self._peers.setdefault(channel.rank, Peer(channel.rank))
        if "doing" in message:
            peer.host = message["host"]
            peer.does(message)
        elif "died" in message:
            if self._died_at is None or message["at"] < self._died_at:
                self._end_job(message["died"])
        elif "failed" in message:
            self._end_job(message["failed"], kill=False)
        elif "bye" in message:
            del self._peers[channel.rank]
            self._close(channel)

    def _tick(self, now: float) -> None:
        self._oom_kills = [oom_kills(), self._oom_kills[0]]
        if self._parted_at is not None:
            self._watch_the_end(now)
            return
        if self._ends_by is not None:
            if now > self._ends_by:
                self._kill_own_rank()
                self._leave()
            return
        self._me.is_stopped(process_is_stopped(self._args.pid))
        self._me.heard_at = now
        if self._monitor:
            self._report()
            if now - self._heard_monitor_at > self._args.stall_seconds:
                self._lose_monitor()
        elif self._args.rank == 0:
            for guard in self._guards:
                guard.send({"alive": True})
            peers = list(self._peers.values())
            unheard = sorted(self._unheard)
            stall = find_stall(peers, unheard, self._args.stall_seconds, now)
            if stall:
                self._end_job(stall)
        elif self._monitor_listens and not self._monitor_has_parted:
            stall = find_stall([self._me], [], self._args.stall_seconds, now)
            if stall:
                self._end_job(stall)
            else:
                self._connect()

    def _watch_the_end(self, now: float) -> None:
        """Ends a rank that said good-bye, but whose MPI waits for others in vain."""
        assert self._parted_at is not None  # noqa: S101 - Asked by the caller.
        waited = now - self._parted_at
        if waited > self._args.stall_seconds:
            self._say(
                f"error: {self._me.name} had done its work {waited:.0f} s ago and has"
                " not ended: another rank stands still at the end. The job ends."
            )
            self._kill_own_rank()
            self._leave()

    def _report(self) -> None:
        assert self._monitor is not None  # noqa: S101 - Asked by the callers.
        me = self._me
        self._monitor.send(
            {
                "host": me.host,
                "doing": me.doing,
                "is_timed": me.is_timed,
                "waits_for_others": me.waits_for_others,
                "is_stopped": me.stopped_since is not None,
            }
        )

    def _start_clocks_anew(self, now: float) -> None:
        """After the whole job was suspended, nobody is late."""
        self._heard_monitor_at = now
        if self._parted_at is not None:
            self._parted_at = now
        for peer in self._peers.values():
            peer.heard_at = peer.since = now
            peer.stopped_since = None

    def _own_rank_has_ended(self) -> None:
        """If it said no word of it, it was killed."""
        if self._ends_by is None and self._parted_at is None:
            reason = "it was killed, or crashed"
            if oom_kills() > self._oom_kills[1]:
                reason = "the kernel of this host ran out of memory and killed it"
            sentence = f"{self._me.name} has died while {self._me.doing}: {reason}"
            if self._monitor:
                self._tell_monitor({"died": sentence, "at": time.time()})
            else:
                self._hear_earlier_deaths()
                self._end_job(sentence)
        self._leave()

    def _hear_earlier_deaths(self) -> None:
        """Lets another guard say why, if its rank has died before this one's.

        The launcher kills the others so soon that all deaths come in at once. Clocks of
        hosts differ, by less than matters if they are kept.
        """
        self._died_at = time.time()
        deadline = time.monotonic() + _EARLIER_DEATHS_SECONDS
        while self._ends_by is None and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fileobj in self._guards:
                    self._hear(key.fileobj)  # type: ignore[arg-type]

    def _own_rank_has_failed(self, text: str) -> None:
        """It says why, and ends the job when this guard has gone."""
        text = f"{text.rstrip()}\n({self._me.name} failed while {self._me.doing})"
        if self._monitor:
            self._tell_monitor({"failed": text})
        else:
            self._end_job(text, kill=False)
        self._leave()

    def _tell_monitor(self, message: Message) -> None:
        """Sends it, and waits until the monitor ends the job."""
        assert self._monitor is not None  # noqa: S101 - Asked by the callers.
        self._monitor.send(message)
        deadline = time.monotonic() + CONNECT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            select.select([self._monitor], [], [], left)
            messages = self._monitor.receive()
            if messages is None or any("kill" in one for one in messages):
                return

    def _end_job(self, text: str, kill: bool = True) -> None:
        """Says why the job ends, for the first time only, and has it ended.

        Args:
            text: What is said.
            kill: Whether each guard has to kill its rank; or a rank ends the job.
        """
        if self._ends_by is not None:
            return
        self._say(text if not kill else f"error: {text}. The job ends.")
        for guard in self._guards:
            guard.send({"kill": kill})
        self._job_is_ending(kill)
        if self._args.model_dir:  # Last, since its disk may be what hangs.
            failure_file.write(Path(self._args.model_dir), text.splitlines()[-1])

    def _job_is_ending(self, kill: bool) -> None:
        self._ends_by = time.monotonic() + _ENDING_SECONDS
        if kill:
            self._kill_own_rank()

    def _lose_monitor(self) -> None:
        if self._ends_by is not None:
            return
        listens = self._monitor_listens or {}
        self._say(
            f"error: {self._me.name} can't reach rank 0 on {listens.get('host')} any"
            " more: a host or the network is down. This rank ends."
        )
        self._kill_own_rank()
        self._leave()

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"{text}\n".encode())

    def _leave(self) -> None:
        """Ends this guard after its rank.

        MPI libraries remove their shared memory only if the rank was let come to that,
        as Python does its temporary files.
        """
        for path in self._args.shared_memory:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._args.temporary_folder:
            shutil.rmtree(self._args.temporary_folder, ignore_errors=True)
        sys.exit(0)

    def _kill_own_rank(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._args.pid, signal.SIGKILL)


def main() -> None:
    """Runs the guard that the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num_ranks", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--stall_seconds", type=float, required=True)
    parser.add_argument("--model_dir")
    parser.add_argument("--temporary_folder")
    parser.add_argument("--shared_memory", nargs="*", default=[])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # A connection a rank.
    # What ends the job is its rank's to hear; the guard goes when its rank goes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    args = parser.parse_args()
    args.token = os.environ.pop(TOKEN_VARIABLE)
    Guard(args).run()


if __name__ == "__main__":
    main()
