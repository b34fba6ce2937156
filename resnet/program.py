"""How a distributed program starts and ends: place, connection, errors, exit code."""

import contextlib
import importlib
import os
import re
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from data_prep.errors import EXIT_CODE, UserError
from resnet import cpu_features, distributed, placement, temporary_folder
from resnet.distributed import Communicator
from resnet.placement import Place, Threads
from resnet.stop_signals import REQUEUE_EXIT_CODE, Preempted

OPEN_FILES = 16_384
_STARTUP_NOTE = re.compile("^I0000|^WARNING: All log messages before|cuInit")

# Keras imports them where they are installed, for wrappers and plots of its own, which
# takes a third of the time and an eighth of the memory of importing TensorFlow.
_UNUSED_BY_KERAS = ("matplotlib", "sklearn")

Main = Callable[[Sequence[str], Place, Communicator], None]


def run(main: Main) -> None:
    """Runs `main(argv, place, communicator)` and exits.

    A UserError is one sentence on standard error and exit code 2. If all ranks know of
    it (`Communicator.together`), rank 0 says it and each rank ends by itself; otherwise
    the rank that has it says so and ends the job, as any other exception does, with its
    traceback and exit code 1. A failure that all ranks know of, such as a loss that is
    no number, is one sentence and exit code 1; being asked to leave is one as well, and
    `REQUEUE_EXIT_CODE`.
    """
    try:
        place = placement.find_place(os.environ)
        communicator = distributed.connect(place)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE)
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO if place.rank == 0 else logging.ERROR)
    if place.rank != 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open to the end.
    try:
        main(sys.argv, place, communicator)
        communicator.deregister()
    except distributed.AgreedError as error:
        _leave_together(communicator, f"error: {error}", EXIT_CODE)
    except distributed.AgreedFailure as error:
        _leave_together(communicator, f"error: {error}", 1)
    except Preempted as stop:
        sentence = f"{stop}. {stop.advice} (exit code {REQUEUE_EXIT_CODE})."
        _leave_together(communicator, sentence, REQUEUE_EXIT_CODE)
    except UserError as error:
        communicator.abort(EXIT_CODE, f"error on rank {place.rank}: {error}")
    except Exception:
        if place.num_ranks == 1:
            raise
        reason = f"rank {place.rank} failed:\n{traceback.format_exc()}"
        communicator.abort(1, reason)


def _leave_together(communicator: Communicator, sentence: str, exit_code: int) -> None:
    """Has rank 0 say what all ranks know, and ends this one."""
    if communicator.rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    communicator.gather(None)  # Nobody leaves before the sentence is out.
    communicator.deregister()
    sys.exit(exit_code)


def show(text: str) -> None:
    """Prints what was asked for; a reader that has enough, as `head` has, is no error.

    Afterwards nothing can be printed any more if the reader is gone.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer must go somewhere when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def settle_placement(
    place: Place,
    communicator: Communicator,
    num_intra_threads: int,
    num_inter_threads: int,
    kmp_blocktime: int,
) -> Threads:
    """Binds this rank to its cores and sets its environment; returns its threads.

    To be called before TensorFlow is imported. The numbers of threads are as
    `placement.choose_threads` takes them, `kmp_blocktime` as `placement.environment`.
    """
    mine = placement.group_by_core(sorted(os.sched_getaffinity(0)))
    cores_seen = communicator.gather_on_node(mine)
    if len(cores_seen) != place.num_local_ranks:  # Several "hosts" on one machine.
        cores_seen = [mine] * place.num_local_ranks
    cores = placement.cores_of_rank(place, cores_seen)
    threads = placement.choose_threads(cores, num_intra_threads, num_inter_threads)
    hidden = cpu_features.amx_is_hidden(cpu_features.flags())
    placement.settle(
        threads, placement.environment(threads, kmp_blocktime, hidden, os.environ)
    )
    num_cores = len({core for seen in cores_seen for core in seen})
    cores_of_node = len(placement.group_by_core(range(os.cpu_count() or 1)))
    logging.info(
        "%d rank(s), %d on this node on %d of its %d core(s): %d core(s) a rank,"
        " %d intra-op and %d inter-op thread(s)",
        place.num_ranks,
        place.num_local_ranks,
        num_cores,
        cores_of_node,
        len(cores),
        threads.num_intra_threads,
        threads.num_inter_threads,
    )
    if place.num_local_ranks > num_cores or threads.num_intra_threads > len(cores):
        logging.warning(
            "more threads than cores on this node: %d rank(s) of %d thread(s), %d"
            " core(s). Ranks will wait for one another.",
            place.num_local_ranks,
            threads.num_intra_threads,
            num_cores,
        )
    if num_cores < cores_of_node and place.num_ranks > 1:
        logging.warning(
            "the launcher lets the ranks use only %d of this node's %d cores; if that"
            " is not meant, tell it not to bind them (such as mpirun --bind-to none)",
            num_cores,
            cores_of_node,
        )
    if hidden:
        logging.warning(
            "this (virtual) machine announces AMX but hides how its tiles are made:"
            " oneDNN is held to AVX512_CORE_BF16, or it would crash in bfloat16"
        )
    return threads


def allow_open_files() -> None:
    """Lets this process have as many files open as it may ask for, up to 16,384.

    A thousand record files stay open while they are read; the usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    """While it lasts, packages that aren't imported yet can't be."""
    missing = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def start_tensorflow(communicator: Communicator) -> None:
    """Imports TensorFlow and starts Horovod; says what has no effect in this build.

    This process's temporary files, such as those of TensorFlow's AutoGraph, are in a
    folder of its own from then on.

    While it is imported, TensorFlow 2.21 prints the same notes twice on each rank,
    whatever TF_CPP_MIN_LOG_LEVEL says; only warnings and errors are let through, and
    not that there is no GPU.
    """
    allow_open_files()
    temporary_folder.make()
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            with _hidden(_UNUSED_BY_KERAS):
                tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.list_physical_devices()  # Looks for GPUs, and says so.
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            notes.seek(0)
            for line in notes.read().decode(errors="replace").splitlines():
                if not _STARTUP_NOTE.search(line):
                    print(line, file=sys.stderr)
    communicator.start_horovod()
    if not placement.openmp_is_loaded():
        logging.info(
            "KMP_* and OMP_* (--kmp_blocktime among them) have no effect in this"
            " TensorFlow, whose oneDNN runs on TensorFlow's own threads:"
            " --num_intra_threads and --num_inter_threads set those"
        )
