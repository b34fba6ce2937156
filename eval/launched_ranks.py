"""Reports what the ranks of a job really get: cores and connections.

mpirun -np 2 python eval/launched_ranks.py
mpirun -np 4 python eval/launched_ranks.py --num_intra_threads=22

Each rank binds itself as in a training. Then the first rank of each host
exchanges messages with those of two other hosts, and reports what carried them,
all as a line of JSON. It takes a few seconds and no TensorFlow.
`launch/plan.py --check` compares the report with its plan.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import logging

from resnet.base import cli
from resnet.base import program as base_program
from resnet.base.settings import COUNT, setting
from resnet.config.command_line import JobSettings
from resnet.distributed import links
from resnet.distributed.communicator import Communicator
from resnet.hardware import host, launchers
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import program, startup


@dataclass(frozen=True)
class LaunchedSettings:
    """How long a rank waits."""

    most_seconds: int = setting(
        120,
        "Time after which each rank ends by itself, also if it waits for a lost host.",
        bounds=COUNT,
    )


FLAGS: cli.Groups = (
    cli.Flags(
        JobSettings, names=("num_intra_threads", "num_inter_threads", "stall_seconds")
    ),
    cli.Flags(LaunchedSettings, common=True),
)


def main(argv: Sequence[str]) -> int:
    """Reports what the ranks get, as one of them."""
    # The kernel ends this process at Ctrl-C and after --most_seconds: Python's handlers
    # would wait until MPI returns, which may wait for another rank.
    settings = cli.parse(argv, __doc__, FLAGS).of(LaunchedSettings)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(settings.most_seconds)
    return program.run(report, argv)


def report(
    argv: Sequence[str], process: ProcessInfo, communicator: Communicator
) -> None:
    """Prints the report of all ranks, on rank 0."""
    job = cli.parse(argv, __doc__, FLAGS).of(JobSettings)
    logging.set_verbosity(logging.ERROR)
    communicator.start_watchdog(process, job.stall_seconds)
    given = sorted(os.sched_getaffinity(0))
    startup.settle_placement(process, communicator, job)
    places = communicator.allgather(
        (process.local_rank, launchers.host_name(os.environ))
    )
    firsts = [rank for rank, (local_rank, _) in enumerate(places) if local_rank == 0]
    before = links.read_sent_bytes()
    measured = links.measure(communicator, firsts)
    traffic = links.read_sent_bytes().since(before)
    ranks = communicator.allgather(
        {
            "rank": process.rank,
            "local_rank": process.local_rank,
            "host": launchers.host_name(os.environ),
            "boot_id": host.boot_id(),
            "given_cpus": given,
            "cpus": sorted(os.sched_getaffinity(0)),
            "traffic": dataclasses.asdict(traffic),
        }
    )
    facts = {
        "ranks": ranks,
        "links": [link._asdict() for link in measured],
        "message_bytes": links.NUM_LONG * links.LONG_BYTES,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    sys.exit(base_program.run(main))
