"""Runs jobs in several processes that end with their parent, however it ends."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import process
from typing import TypeVar

from data_prep.errors import UserError

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
    """Runs a function on each job, spread over processes.

    An error or an interruption ends all processes at once. Signals are held while a
    process starts, so this must be called from the main thread.

    Args:
        function: Of a module, so that a new process can import it.
        jobs: Are made one by one as processes become free: of a lazy iterable, no more
            than `num_processes` + 1 are in memory.
        num_processes: At least 1.
        take_result: Called here, in this process, with each result as it comes; they
            come in any order.

    Raises:
        UserError: If a process died.
        Exception: What a job raised; the first one's.
    """
    running: set[concurrent.futures.Future[_Result]] = set()
    strangers = set(multiprocessing.active_children())

    def wait_for_one() -> None:
        done: set[concurrent.futures.Future[_Result]] = set()
        while not done:
            # Without a time limit, a signal that another thread took would not be
            # handled until a job is done: this thread has to wake up for it.
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
        # Forking a process that has threads, as NumPy's, can hang.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
    ) as executor:
        try:
            for job in jobs:
                # No job waits in the executor's pipe: with one in it, the executor of
                # Python 3.10 hangs when a worker dies (python/cpython#94777).
                if len(running) == num_processes:
                    wait_for_one()
                with _interrupts_held():
                    running.add(executor.submit(function, job))
            while running:
                wait_for_one()
        except BaseException as error:
            for worker in set(multiprocessing.active_children()) - strangers:
                worker.kill()  # It has nothing to clean up.
            if isinstance(error, process.BrokenProcessPool):
                raise UserError(
                    "a worker process died, perhaps for lack of memory; start again"
                    f" with a smaller --num_processes than {num_processes}"
                ) from error
            raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM; a process that is started meanwhile never gets them.

    In the middle of a start they would leave a worker that nobody knows of, and a
    terminal's Ctrl-C goes to all processes: each worker would print a traceback.
    """
    held: list[int] = []
    # Processes inherit what is blocked. But another thread of this one may still take
    # a signal, and the handler then runs here all the same: hence the second measure.
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


def _prepare_worker() -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Ends this worker when its parent is gone, killed; nobody else would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
