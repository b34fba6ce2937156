"""The names of the hosts that a scheduler has given to this job."""

import os
import subprocess
from collections.abc import Mapping

from launch import mpirun_command
from resnet.base.errors import UserError

# Files with a line for each process of a node, by the variable that names them.
_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


def hosts(environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts of the job in which this program runs; none outside a job.

    Args:
        environ: The environment of this process.

    Raises:
        UserError: If the scheduler has named them in a way that can't be read.
    """
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        words = ["scontrol", "show", "hostnames", nodes]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"the hosts of this job, {nodes}, must be listed by `scontrol show"
                f" hostnames`, which failed: {error}"
            ) from error
        return done.stdout.split()
    for name in _FILES:
        if path := environ.get(name):
            listed = mpirun_command.read_hosts(path)
            # The first line of LSF's is the host of the batch file, if it has no rank.
            return list(dict.fromkeys(listed))
    return []


def require(num_nodes: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the hosts of a job; none if it is this machine.

    Args:
        num_nodes: The number of nodes.
        environ: The environment of this process.

    Raises:
        UserError: If they are not known, or not as many as nodes.
    """
    found = hosts(environ)
    if not found and num_nodes == 1:
        return []
    if len(found) != num_nodes:
        raise UserError(
            f"to check {num_nodes} node(s), their names must be known; the scheduler's"
            f" job has {len(found) or 'none'}. Name them with --hosts=FILE, or call"
            " this inside an allocation of that size."
        )
    return found
