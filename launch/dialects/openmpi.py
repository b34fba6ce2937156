"""Open MPI's mpirun."""

import shlex
from collections.abc import Sequence

from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "Open MPI"
PROGRAM = "mpirun"
UNSET_ON_HOST: tuple[str, ...] = ()
LABEL_OPTIONS: tuple[str, ...] = ("--tag-output",)
# Not only where a line begins: it labels each piece, as Hydra does.
LABEL = r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:"


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program.

    On other hosts, `python` is looked up in the PATH of this one, which has the
    environment's programs, rather than in that of ssh.
    """
    hosts = ["--hostfile", shape.hosts_file] if shape.hosts_file else []
    return [PROGRAM, *hosts, *_options(shape), "-x", "PATH"]


def _options(shape: JobShape) -> list[str]:
    """Returns the numbers of ranks and nodes, and no pinning.

    Without `--bind-to none` it pins each of one or two ranks to a single core.
    """
    way = "node" if shape.goes_round else f"ppr:{shape.processes_per_node}:node"
    count = ["-np", str(shape.num_processes)]
    return [*count, "--map-by", way, "--bind-to", "none"]


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    return [PROGRAM, "--host", host, "-np", "1", "--bind-to", "none", *words]


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns no lines: mpirun has no scheduler."""
    return []


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`.

    The function of launch/jobs/site.sh sets `passed_on`: PATH and other variables.
    """
    options = shlex.join(_options(shape))
    words = f'{PROGRAM} ${{HOSTFILE:+--hostfile "$HOSTFILE"}} {options}'
    return ["set_passed_on", f'launcher=({words} "${{passed_on[@]}}")']
