"""The test of the cores at a job's start: each rank tests its own, all hear of it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.base.text import counted, first_of
from resnet.distributed.communicator import AgreedFailure, Communicator
from resnet.hardware import launchers, physical_cores
from resnet.hardware.placement import ProcessInfo
from resnet.selftest import verdict
from resnet.selftest.verdict import HostResult

_REPOSITORY = Path(__file__).resolve().parents[2]
_MOST_SECONDS = 300  # The import of TensorFlow from a busy file server included.
# A process of its own, since the forks must precede TensorFlow's threads, and MPI's.
_START = """
import dataclasses, json, sys
sys.path[0] = sys.argv[1]
from resnet.runtime import preemption
from resnet.selftest import cores
from resnet.watchdog import proc
proc.send_signal_at_parents_end(9, int(sys.argv[4]))
preemption.ignore_stop_signals()  # Its rank heeds them, after the test.
result = cores.test(json.loads(sys.argv[2]), sys.argv[3])
print(json.dumps(dataclasses.asdict(result)))
"""


def check(process: ProcessInfo, communicator: Communicator) -> None:
    """Tests the cores of all ranks.

    Raises:
        AgreedFailure: On all ranks, if a core computes wrongly, naming it, with the
            hosts of all such cores.
        AgreedError: On all ranks, if the test can't be run.
    """
    before = communicator.status
    communicator.report_status("testing its cores", is_timed=False)
    seen = communicator.allgather_on_node(physical_cores.usable())
    if len(seen) != process.num_local_ranks:  # Simulated hosts on one machine.
        seen = [physical_cores.usable()] * process.num_local_ranks
    with communicator.collective_errors():
        result = _test(physical_cores.of_rank(process.local_rank, seen))
    results = communicator.gather_objects(result)
    judged = communicator.broadcast(verdict.judge(results) if results else None)
    communicator.report_status(*before)
    for sentence in judged.disagreements:
        logging.warning("%s", sentence)  # Only on rank 0, as all that is no error.
    if results and not judged.sentences:
        num_cores = sum(len(of_rank.cores) for of_rank in results)
        kernels = " and ".join(dict.fromkeys(of_rank.kernels for of_rank in results))
        logging.info(f"self-test: {counted(num_cores, 'core')} agree, with {kernels}")
    if judged.bad:
        first, *others = judged.bad
        more = f" Other such hosts: {first_of(others)}." if others else ""
        raise AgreedFailure(f"{judged.bad[first]}{more}", tuple(judged.bad))


def _test(cores: Sequence[tuple[int, ...]]) -> HostResult:
    """Returns what the cores compute, in a process of their own."""
    host = launchers.host_name(os.environ)
    arguments = [str(_REPOSITORY), json.dumps(cores), host, str(os.getpid())]
    words = [sys.executable, "-c", _START, *arguments]
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the self-test of {host} must end within {_MOST_SECONDS} s; it hasn't."
            " Leave --self_test out, or the host."
        ) from None
    last = done.stdout.rstrip().rpartition("\n")[2]
    what = "the result of the self-test"
    return json_file.parse(last, HostResult, f"the self-test of {host}", what)
