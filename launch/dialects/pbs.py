"""PBS: the directives of qsub, and Hydra's mpirun inside the job."""

import shlex
from collections.abc import Sequence

from launch.dialects import intelmpi, mpich
from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "PBS"
PROGRAM = mpich.PROGRAM
UNSET_ON_HOST: tuple[str, ...] = ()
LABEL_OPTIONS, LABEL = mpich.LABEL_OPTIONS, mpich.LABEL
_OPTIONS = ("-rmk", "pbs")  # Hydra takes the hosts from PBS_NODEFILE.
# PBS starts a job in the home folder, where relative paths would mean other folders.
ENTER_SUBMIT_DIR = 'cd "${PBS_O_WORKDIR:-.}"'
_SIGNAL_SECONDS = 120  # Before the time limit; a save takes seconds.


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program, inside a job."""
    return _with_options(intelmpi.command(shape))


def _with_options(words: Sequence[str]) -> list[str]:
    first, *others = words
    return [first, *_OPTIONS, *others]


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    # A shell there parses what ssh has joined.
    return ["ssh", "-o", "BatchMode=yes", host, shlex.join(words)]


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns the lines of a batch file for the scheduler."""
    options = [f"-q {batch.partition}"] if batch.partition else []
    chunk = f"ncpus={shape.cpus_per_node}:mpiprocs={shape.processes_per_node}"
    options += [
        f"-l walltime={batch.hours:02d}:{batch.minutes:02d}:00",
        f"-N {batch.name}",
        f"-l select={shape.num_nodes}:{chunk}",
        "-l place=scatter:excl",
        "-j oe",
        "-r y",
    ]
    return [f"#PBS {option}" for option in options]


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`."""
    # The variable of Intel MPI is exported by launch/jobs/site.sh.
    return [f"launcher=({shlex.join(_with_options(mpich.command(shape)))})"]


def before_limit(batch: BatchSettings) -> list[str]:
    """Returns the lines of a script that ask the run to save before the time limit.

    At the limit itself, PBS leaves a job only seconds. The shell becomes mpirun, which
    has the same process id, and forwards the signal to all ranks.
    """
    seconds = max(60 * (60 * batch.hours + batch.minutes) - _SIGNAL_SECONDS, 1)
    return [
        "# PBS sends no signal ahead of its limit. The ranks save, and exit with 75.",
        "# SECONDS has the time since the job began, such as that of the staging.",
        f"left=$((SECONDS < {seconds} ? {seconds} - SECONDS : 0))",
        '(sleep "$left" && kill -s USR1 $$) >/dev/null 2>&1 &',
    ]
