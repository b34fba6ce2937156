"""MPICH's mpirun, which is Hydra."""

from collections.abc import Sequence

from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "MPICH"
PROGRAM = "mpirun"
UNSET_ON_HOST: tuple[str, ...] = ()
# Characters that no program prints, since Hydra labels each piece of a line, too.
LABEL_OPTIONS: tuple[str, ...] = ("-prepend-pattern", "\x1e%r %h\x1f")
LABEL = "\x1e(?P<rank>\\d+) (?P<host>[^\x1f]*)\x1f"


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program.

    Hydra binds nothing unless it is asked to, and each rank binds itself.
    """
    words = [PROGRAM]
    if shape.hosts_file:
        words += ["-f", shape.hosts_file]
    words += ["-np", str(shape.num_processes)]
    if shape.num_nodes > 1:
        words += ["-ppn", "1" if shape.goes_round else str(shape.processes_per_node)]
    return words


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    return [PROGRAM, "-hosts", host, "-np", "1", *words]


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns no lines: mpirun has no scheduler."""
    return []


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`.

    The function of launch/jobs/site.sh also offers srun.
    """
    per_node = 1 if shape.goes_round else shape.processes_per_node
    words = f"set_launcher {shape.num_processes} {per_node}"
    return [words + " cyclic" * shape.goes_round]
