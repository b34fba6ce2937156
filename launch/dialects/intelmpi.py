"""Intel MPI's mpirun, which is Hydra too, but pins ranks by itself."""

from collections.abc import Sequence

from launch.dialects import mpich
from launch.dialects.job_shape import BatchSettings, JobShape

TITLE = "Intel MPI"
PROGRAM = mpich.PROGRAM
UNSET_ON_HOST: tuple[str, ...] = ()
LABEL_OPTIONS: tuple[str, ...] = ("-prepend-rank",)
LABEL = r"^\[(?P<rank>\d+)\] "
# Its own pinning divides the node in another way where cores or ranks are uneven.
_NO_PINNING = ("-genv", "I_MPI_PIN", "off")


def command(shape: JobShape) -> list[str]:
    """Returns the words in front of the program."""
    first, *others = mpich.command(shape)
    return [first, *_NO_PINNING, *others]


def on_host(host: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs a program once, on one host."""
    return mpich.on_host(host, words)


def header(shape: JobShape, batch: BatchSettings) -> list[str]:
    """Returns no lines: mpirun has no scheduler."""
    return []


def script_launcher(shape: JobShape) -> list[str]:
    """Returns the lines of a script that set the array `launcher`."""
    return mpich.script_launcher(shape)
