"""Binds itself as a rank does, but without any MPI, and prints a line about itself.

The ranks of a node can't tell each other which cores they see, so each takes those that
it sees for all.
"""

import json
import os

from resnet.hardware import physical_cores, placement

if __name__ == "__main__":
    process = placement.find_process_info(os.environ)
    seen = [physical_cores.usable()] * process.num_local_ranks
    cores = physical_cores.of_rank(process.local_rank, seen)
    placement.apply(placement.choose_threads(cores, 0, 0), {})
    found = [process.rank, process.num_ranks, process.local_rank]
    # One write, so that the lines of several ranks don't mix.
    os.write(1, f"{json.dumps([*found, sorted(os.sched_getaffinity(0))])}\n".encode())
