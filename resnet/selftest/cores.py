"""Runs the cases on each core by itself, in a process of its own that is bound to it.

The processes are forks of this one, which has imported TensorFlow but not started it:
they share its memory, no interpreter lock makes them wait for each other, and a core
that crashes or hangs is known.
"""

import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

from resnet.hardware import physical_cores
from resnet.runtime import startup
from resnet.selftest.verdict import CoreResult, HostResult
from resnet.watchdog import proc

SEED = 1
_MOST_SECONDS = 60.0  # Of which a core needs about one.


def test(cores: Sequence[tuple[int, ...]], host: str) -> HostResult:
    """Returns what physical cores compute, each given by its logical processors."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads wouldn't survive a fork.
    startup.import_tensorflow()
    from resnet import native  # It imports TensorFlow.

    instruction_set = native.instruction_set()
    if instruction_set == "NONE":
        return HostResult(host, instruction_set, "")
    from resnet.selftest import cases

    with tempfile.NamedTemporaryFile() as file:
        path = pathlib.Path(file.name)
        path.write_bytes(cases.record())
        results = _in_processes([core[0] for core in cores], path)
    return HostResult(host, instruction_set, _compiler(native.OPS_LIBRARY), results)


def _compiler(library: pathlib.Path) -> str:
    """Returns what has compiled a library, from its section .comment."""
    data = library.read_bytes()
    match = re.search(rb"GCC: \([^)]*\) (\d+)\.", data)
    if (
        match is None or b"clang version" in data
    ):  # Also then, the first files are GCC's.
        return "another compiler than GCC"
    return f"GCC {match[1].decode()}"


def _in_processes(cpus: Sequence[int], path: pathlib.Path) -> tuple[CoreResult, ...]:
    """Starts a process for each processor, and waits for them until the time is up."""
    context, started = multiprocessing.get_context("fork"), []
    with warnings.catch_warnings():
        # TensorFlow's one idle thread isn't needed in the fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        for cpu in cpus:
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_compute, args=(cpu, path, writer))
            process.start()
            writer.close()
            started.append((cpu, process, reader))
    end_at = time.monotonic() + _MOST_SECONDS
    results = []
    for cpu, process, reader in started:
        socket, _, core = physical_cores.place(cpu)
        digests, seconds, failure = dict[str, int](), 0.0, ""
        try:
            if reader.poll(max(0.0, end_at - time.monotonic())):
                digests, seconds = reader.recv()
            else:
                failure = f"it has not ended within {_MOST_SECONDS:.0f} s"
        except EOFError:
            process.join()
            code = process.exitcode or 0
            failure = f"its process has ended with exit code {code}, as printed above"
            if code < 0:
                failure = f"its process was ended by {signal.Signals(-code).name}"
        process.kill()
        process.join()
        results.append(CoreResult(cpu, core, socket, digests, seconds, failure))
    return tuple(results)


def _compute(cpu: int, path: pathlib.Path, writer: Connection) -> None:
    """Sends what this process computes on a processor, and the seconds it took."""
    proc.send_signal_at_parents_end(signal.SIGKILL, os.getppid())
    os.sched_setaffinity(0, {cpu})
    import tensorflow as tf

    from resnet.selftest import cases

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    start = time.thread_time()
    digests = cases.digests(SEED, path)
    writer.send((digests, round(time.thread_time() - start, 3)))
    sys.stderr.flush()
