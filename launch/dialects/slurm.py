"""Slurm: srun, and the directives of sbatch."""

from collections.abc import Sequence

from launch.dialects import mpich
from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "Slurm"
PROGRAM = "srun"
LABEL_OPTIONS: tuple[str, ...] = ("--label",)
LABEL = r"^ *(?P<rank>\d+): "
# With -c of an allocation, a single task would see the processors of one rank only.
UNSET_ON_HOST: tuple[str, ...] = (
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK",
)
_SIGNAL_SECONDS = 120  # Before the time limit; a save takes seconds.


def cpus_per_task(shape: JobShape) -> int:
    """Returns the number of logical processors that a task is given."""
    return max(shape.cpus_per_node // shape.processes_per_node, 1)


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program, inside an allocation.

    Slurm would divide the cores of a node among its tasks in an order of its own, so
    the ranks do it.
    """
    words = [PROGRAM]
    if shape.srun_mpi:
        words.append(f"--mpi={shape.srun_mpi}")
    words += [
        f"--nodes={shape.num_nodes}",
        f"--ntasks={shape.num_processes}",
        f"--ntasks-per-node={shape.processes_per_node}",
        f"--cpus-per-task={cpus_per_task(shape)}",
        "--cpu-bind=none",
    ]
    return words + ["--distribution=cyclic"] * shape.goes_round


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    count = ["--nodes=1", "--ntasks=1", "--cpu-bind=none"]
    return [PROGRAM, f"--nodelist={host}", *count, *words]


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns the lines of a batch file for the scheduler."""
    options = [f"partition={batch.partition}"] if batch.partition else []
    options += [
        f"time={batch.hours:02d}:{batch.minutes:02d}:00",
        f"job-name={batch.name}",
        f"nodes={shape.num_nodes}",
        f"ntasks-per-node={shape.processes_per_node}",
        f"cpus-per-task={cpus_per_task(shape)}",
        "exclusive",
        "mem=0",  # All of a node's; else the exclusive node has its default memory.
        "output=%x-%j.log",
    ]
    comment = "# Started over if its node fails, since it has nothing to save."
    if batch.is_resumed:
        comment = "# Before the time limit: saved, requeued, and the log appended."
        options.append(f"signal=B:USR1@{_SIGNAL_SECONDS}")
    lines = [f"#SBATCH --{option}" for option in options]
    return [*lines, comment, "#SBATCH --requeue", "#SBATCH --open-mode=append"]


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`.

    That is mpirun or, by the environment of the job, srun.
    """
    lines = ["# LAUNCHER=srun starts the ranks by srun instead of mpirun."]
    if shape.srun_mpi:
        lines += [f"export SLURM_MPI_TYPE=${{SLURM_MPI_TYPE:-{shape.srun_mpi}}}"]
    return lines + mpich.script_launcher(shape)
