"""What launchers and schedulers need to know of a job, and what they offer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class JobShape:
    """The processes of a job.

    Attributes:
        num_nodes: The number of nodes.
        num_processes: The number of processes.
        processes_per_node: The largest number of processes on a node.
        cpus_per_node: The number of logical processors that they use on a node.
        goes_round: Whether successive ranks are on different nodes, rather than on the
            same until it has all of its ranks.
        hosts_file: A file of host names; empty if the scheduler knows them.
        srun_mpi: The plugin by which Slurm's srun starts MPI programs; empty for the
            site's default.
    """

    num_nodes: int
    num_processes: int
    processes_per_node: int
    cpus_per_node: int
    goes_round: bool = False
    hosts_file: str = ""
    srun_mpi: str = ""


@dataclass(frozen=True)
class BatchSettings:
    """What a scheduler is asked for beside the processes.

    Attributes:
        name: The name of the job.
        hours, minutes: The time limit.
        partition: The partition or queue; empty for the site's default.
        is_resumed: Whether the job saves before its time limit, and resumes.
    """

    name: str
    hours: int
    minutes: int
    partition: str = ""
    is_resumed: bool = True


class Dialect(Protocol):
    """How one launcher or scheduler is spoken to; each module here is one."""

    TITLE: str
    PROGRAM: str
    # Variables of the environment that the command of `on_host` must not see.
    UNSET_ON_HOST: tuple[str, ...]
    # Options by which each line that a rank prints gets a label, and what matches it:
    # the group `rank` and, if the launcher names it, `host`.
    LABEL_OPTIONS: tuple[str, ...]
    LABEL: str

    def command(self, shape: JobShape) -> list[str]:
        """Returns the words in front of the program."""

    def on_host(self, host: str, words: Sequence[str]) -> list[str]:
        """Returns the command that runs a program once, on one host."""

    def header(self, shape: JobShape, batch: BatchSettings) -> list[str]:
        """Returns the lines of a batch file for the scheduler."""

    def script_launcher(self, shape: JobShape) -> list[str]:
        """Returns the lines of a script that set the array `launcher`."""
