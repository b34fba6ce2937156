r"""Starts a training on workers and parameter servers, from numbers and hosts.

python launch/parameter_server_job.py -n 2 -s 2 -- \
    python resnet/resnet_main.py --recipe=digits_mlp --sync_mode=async \
    --data_dir=RECORDS --model_dir=MODEL
python launch/parameter_server_job.py -n 4 -s 2 -H hosts -- resnet-train \
    --recipe=digits_mlp --sync_mode=async --data_dir=RECORDS --model_dir=MODEL

It prints the mpirun command (of MPICH or Intel MPI) and runs it: rank 0
coordinates, the next ranks serve, the others work. Ranks go round the hosts of
the file, which has one host a line. A synchronous training has no parameter
servers: only the workers are started, as its ranks.

The arguments are those of dmlc/ps-lite, tracker/dmlc_mpi.py, of 2015.
"""

import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import import_failures

import_failures.report()  # Before the imports that may fail.

from absl import flags

from launch import launch_flags, mpirun_command
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.config import recipe_file

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_workers", None, "The number of workers.", short_name="n")
flags.DEFINE_bool("dry_run", False, "Print the mpirun command without running it.")


def main(words: Sequence[str]) -> None:
    """Prints the mpirun command of a job, and becomes it.

    Args:
        words: The command of the training.

    Raises:
        UserError: If a number, the hosts or the command are wrong, or a host can't be
            reached.
    """
    num_servers = _num_servers(words)
    for flag, value in (("-n", FLAGS.num_workers), ("-s", num_servers)):
        if value is None or value < 1:
            raise UserError(f"{flag} must be at least 1; got {value}.")
    if not words:
        raise UserError(
            "expected the command of a training after `--`, such as `-- python"
            " resnet/resnet_main.py --sync_mode=async ...`; got none."
        )
    hosts = mpirun_command.read_hosts(FLAGS.hosts) if FLAGS.hosts else []
    if FLAGS.hosts and not hosts:
        raise UserError(f"{FLAGS.hosts} must name a host on each line; it names none.")
    command = job_command(FLAGS.num_workers, num_servers, hosts, words)
    if not FLAGS.dry_run:
        require_reachable(command)
    if not is_async(words):
        print(
            "The training is synchronous (--sync_mode=bsp), so it has no parameter"
            f" servers: -s {num_servers} has no effect.",
            file=sys.stderr,
        )
    errors.print_to_pipe(shlex.join(command))
    if FLAGS.dry_run:
        return
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"{command[0]} can't be run: {reason}.") from error


def _num_servers(words: Sequence[str]) -> int:
    """Returns the number of parameter servers, by -s or the command of the training.

    Raises:
        UserError: If the two differ.
    """
    by_flag, in_command = FLAGS.num_servers, _value("num_ps", words)
    if in_command is None:
        return 1 if by_flag is None else by_flag
    if by_flag is not None and str(by_flag) != in_command:
        raise UserError(
            f"-s and the training's --num_ps must agree; got {by_flag} and"
            f" {in_command}. Leave one of them out."
        )
    if not in_command.isdecimal():
        raise UserError(f"--num_ps must be a whole number; got {in_command!r}.")
    return int(in_command)


def job_command(
    num_workers: int, num_servers: int, hosts: Sequence[str], words: Sequence[str]
) -> list[str]:
    """Returns the mpirun command of a job.

    Args:
        num_workers: The number of workers.
        num_servers: The number of parameter servers of an asynchronous training.
        hosts: The hosts; empty for this one.
        words: The command of the training.
    """
    num_ranks, more = num_workers, []
    if is_async(words):
        num_ranks, more = 1 + num_servers + num_workers, [f"--num_ps={num_servers}"]
    where = ["-ppn", "1", "-hosts", ",".join(hosts)] if hosts else []
    return ["mpirun", "-np", str(num_ranks), *where, *words, *more]


def require_reachable(command: Sequence[str]) -> None:
    """Refuses a command on hosts that can't be reached.

    Raises:
        UserError: With the names of these hosts.
    """
    parsed = mpirun_command.parse(command)
    unreachable = parsed.find_unreachable_hosts() if parsed else []
    if unreachable:
        raise UserError(
            f"all hosts must be reachable; {', '.join(unreachable)} can't be, as by"
            f" `mpirun -hosts {unreachable[0]} -np 1 true`. Remove them from"
            f" {FLAGS.hosts}, or repair them."
        )


def is_async(words: Sequence[str]) -> bool:
    """Returns whether the command of a training asks for an asynchronous one.

    Raises:
        UserError: If there is no recipe of the name that it has.
    """
    mode = _value("sync_mode", words)
    recipe = _value("recipe", words)
    if mode is None and recipe is not None:
        mode = recipe_file.get(recipe).sync_mode
    return mode == "async"


def _value(name: str, words: Sequence[str]) -> str | None:
    """Returns the last value of a flag in a command, or None."""
    value = None
    for index, word in enumerate(words):
        flag, separator, given = word.partition("=")
        if flag.lstrip("-") == name and flag.startswith("-"):
            value = given if separator else (*words, "")[index + 1]
    return value


def run() -> None:
    """Runs the program."""
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words = sys.argv[separator + 1 :]
    del sys.argv[separator:]
    launch_flags.keep_only(("num_servers", "hosts"))
    errors.run(lambda: main(words))


if __name__ == "__main__":
    run()
