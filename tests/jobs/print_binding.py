"""Binds itself as a training does; rank 0 prints the processors of all ranks as JSON.

With `--horovod`, also those of the threads of each rank that have others. With
`--num_ps`, as an asynchronous training does.
"""

import json
import os
import sys
from pathlib import Path

from launch.topology import parse_cpu_list
from resnet.config.command_line import JobSettings
from resnet.runtime import program, startup
from resnet.training.parameter_servers import roles


def main(argv, process, communicator):
    intra = int(argv[argv.index("--num_intra_threads") + 1])
    inter = int(argv[argv.index("--num_inter_threads") + 1])
    threads = startup.settle_placement(
        process,
        communicator,
        JobSettings(num_intra_threads=intra, num_inter_threads=inter),
        shares_cores=is_helper(argv, process.rank),
    )
    if "--horovod" in argv:
        startup.start_tensorflow(communicator)
    own = sorted(os.sched_getaffinity(0))
    found = {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "cpus": own,
        "threads": [threads.num_intra_threads, threads.num_inter_threads],
        "others": [mask for mask in masks() if mask != own],
    }
    everyone = communicator.allgather(found)
    if process.rank == 0:
        print(json.dumps(everyone))


def is_helper(argv: list[str], rank: int) -> bool:
    """Returns whether a rank only helps the workers of an asynchronous training."""
    for word in argv:
        name, _, value = word.partition("=")
        if name == "--num_ps":
            return roles.of_rank(rank, int(value)).job != roles.WORKER
    return False


def masks() -> list[list[int]]:
    """Returns the processors of each thread of this process."""
    found = []
    for status in sorted(Path("/proc/self/task").glob("*/status")):
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Cpus_allowed_list":
                found.append(parse_cpu_list(value))
    return found


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv))
