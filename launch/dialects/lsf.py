"""LSF: the directives of bsub, and Hydra's mpirun inside the job."""

import shlex
from collections.abc import Sequence

from launch.dialects import intelmpi, mpich
from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "LSF"
PROGRAM = mpich.PROGRAM
UNSET_ON_HOST: tuple[str, ...] = ()
LABEL_OPTIONS, LABEL = mpich.LABEL_OPTIONS, mpich.LABEL
# Hydra takes the hosts from LSF, and starts its helper processes by blaunch.
_OPTIONS = ("-rmk", "lsf", "-launcher", "lsf")
_SIGNAL_MINUTES = 2  # Before the time limit; a save takes seconds.
_REQUEUE_EXIT_CODE = 75  # A run that was preempted and has saved.


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program, inside a job."""
    return _with_options(intelmpi.command(shape))


def _with_options(words: Sequence[str]) -> list[str]:
    first, *others = words
    return [first, *_OPTIONS, *others]


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    return ["blaunch", host, *words]


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns the lines of a batch file for the scheduler."""
    options = [f"-q {batch.partition}"] if batch.partition else []
    options += [
        f"-W {batch.hours:02d}:{batch.minutes:02d}",
        f"-J {batch.name}",
        f"-n {shape.num_nodes * shape.processes_per_node}",
        f'-R "span[ptile={shape.processes_per_node}]"',
        "-x",
        "-o %J.log",
        "-r",
    ]
    if batch.is_resumed:
        options += [f"-wa USR1 -wt {_SIGNAL_MINUTES}", f'-Q "{_REQUEUE_EXIT_CODE}"']
    return [f"#BSUB {option}" for option in options]


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`."""
    # The variable of Intel MPI is exported by launch/jobs/site.sh.
    return [f"launcher=({shlex.join(_with_options(mpich.command(shape)))})"]
