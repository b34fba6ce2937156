"""Runs jobs in worker processes that never outlive their parent, and shows progress."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import process
from typing import TypeVar

import tqdm

from resnet.base.errors import UserError

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_WAKE_SECONDS = 0.5

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def run(
    function: Callable[[_Job], _Result],
    jobs: Iterable[_Job],
    num_processes: int,
    take_result: Callable[[_Result], None],
) -> None:
    """Runs a function on each job in worker processes.

    The function must be at module level. At most `num_processes` + 1 jobs are in
    memory. `take_result` gets each result in this process, in order of completion.

    An error or an interrupt kills all workers at once. It must be called from the main
    thread, as it handles signals. Raises UserError if a worker process died, and the
    first error that a job raised.
    """
    running: set[concurrent.futures.Future[_Result]] = set()
    other_children = set(multiprocessing.active_children())

    def wait_for_one() -> None:
        done: set[concurrent.futures.Future[_Result]] = set()
        while not done:
            # Without a timeout, a signal that another thread received would be handled
            # only after a job ends: its handler runs when this thread wakes up.
            done = concurrent.futures.wait(
                running,
                timeout=_WAKE_SECONDS,
                return_when=concurrent.futures.FIRST_COMPLETED,
            ).done
        for future in done:
            running.remove(future)
            take_result(future.result())

    with concurrent.futures.ProcessPoolExecutor(
        num_processes,
        # A fork of a process with threads (NumPy's) can hang.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_exit_with_parent,
    ) as executor:
        try:
            for job in jobs:
                # Never queue a job in the executor's pipe: the executor of Python 3.10
                # then hangs when a worker dies (python/cpython#94777).
                if len(running) == num_processes:
                    wait_for_one()
                with _interrupts_held():
                    running.add(executor.submit(function, job))
            while running:
                wait_for_one()
        except BaseException as error:
            for worker in set(multiprocessing.active_children()) - other_children:
                worker.kill()  # Workers have nothing to clean up.
            if isinstance(error, process.BrokenProcessPool):
                raise UserError(
                    "a worker process died, perhaps for lack of memory; rerun the"
                    f" command with --num_processes less than {num_processes}"
                ) from error
            raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM; processes started meanwhile never receive them.

    A signal during the start of a worker would leave a process that the executor
    doesn't know, and each worker would print a traceback at Ctrl-C.
    """
    held: list[int] = []
    # Child processes inherit the signal mask. But another thread of this process may
    # still receive a signal and run its handler: hence the temporary handlers.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in _INTERRUPTS
    }
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _exit_with_parent() -> None:
    """Has this worker process end when its parent process was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - A worker has one.

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Progress:
    """A tqdm bar on a terminal; elsewhere one line per tenth of the work."""

    def __init__(self, total: int, unit: str, is_quiet: bool = False) -> None:
        """Starts at 0 of `total` units, such as "images"; there is at least one."""
        self._is_quiet = is_quiet
        self._total = total
        self._unit = unit
        self._num_done = 0
        self.start_rate()
        is_log = is_quiet or not sys.stderr.isatty()
        self._bar = tqdm.tqdm(total=total, unit=f" {unit}", disable=is_log)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def start_rate(self) -> None:
        """Leaves what was done so far, and its time, out of the rate."""
        self._num_before = self._num_done
        self._start_time = time.perf_counter()

    def rate(self) -> float:
        """Returns the number of units per second since the rate was started."""
        seconds = time.perf_counter() - self._start_time
        return (self._num_done - self._num_before) / seconds

    def add(self, count: int) -> None:
        """Adds `count` units to the units done."""
        tenths_before = 10 * self._num_done // self._total
        self._num_done += count
        self._bar.update(count)
        tenths = 10 * self._num_done // self._total
        if self._bar.disable and tenths > tenths_before and not self._is_quiet:
            percent = 100 * self._num_done // self._total
            print(
                f"{percent} %: {self._num_done:,} of {self._total:,} {self._unit},"
                f" {self.rate():,.0f} {self._unit} per second",
                file=sys.stderr,
                flush=True,
            )
