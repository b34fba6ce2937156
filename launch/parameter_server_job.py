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
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from launch import hosts, mpirun_command
from resnet.base import cli
from resnet.base.errors import UserError
from resnet.base.output import print_result
from resnet.base.settings import COUNT, setting
from resnet.config import recipe_file


@dataclass(frozen=True)
class ServerJobFlags:
    """The processes of the job."""

    num_workers: int | None = setting(
        None, "The number of workers.", bounds=COUNT, short_flag="n", unset="required"
    )
    num_servers: int | None = setting(
        None,
        "The number of parameter servers.",
        bounds=COUNT,
        short_flag="s",
        unset="1",
    )
    hosts: str = setting(
        "", "A file of host names, one per line.", short_flag="H", unset="this host"
    )
    dry_run: bool = setting(False, "Print the mpirun command without running it.")


FLAGS: cli.Groups = (ServerJobFlags,)


def main(argv: Sequence[str]) -> int:
    """Prints the mpirun command of a job, and becomes it."""
    end = argv.index("--") if "--" in argv else len(argv)
    job = cli.parse(argv[:end], __doc__, FLAGS).of(ServerJobFlags)
    words = argv[end + 1 :]
    if job.num_workers is None:
        raise UserError("-n must be at least 1; got None.")
    if not words:
        raise UserError("expected the command of a training after `--`; got none.")
    num_servers = _num_servers(words, job.num_servers)
    mode = mpirun_command.flag_value("sync_mode", words)
    recipe = mpirun_command.flag_value("recipe", words)
    if mode is None and recipe is not None:
        mode = recipe_file.get(recipe).sync_mode
    has_servers = mode == "async"
    num_ranks = job.num_workers + has_servers * (1 + num_servers)
    command = ["mpirun", "-np", str(num_ranks)]
    if job.hosts:
        names = [host.line() for host in hosts.read_file(job.hosts)]
        command += ["-ppn", "1", "-hosts", ",".join(names)]
    command += [*words, *[f"--num_ps={num_servers}"] * has_servers]
    parsed = None if job.dry_run else mpirun_command.parse(command)
    if parsed and (unreachable := parsed.find_unreachable_hosts()):
        raise UserError(
            f"all hosts must be reachable; {', '.join(unreachable)} can't be, as by"
            f" `mpirun -hosts {unreachable[0]} -np 1 true`."
        )
    if not has_servers:
        note = f"The training has --sync_mode=bsp: -s {num_servers} has no effect."
        print(note, file=sys.stderr)
    print_result(shlex.join(command))
    if job.dry_run:
        return 0
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"{command[0]} can't be run: {reason}.") from error


def _num_servers(words: Sequence[str], by_flag: int | None) -> int:
    """Returns the number of parameter servers, by -s or the command of the training."""
    in_command = mpirun_command.flag_value("num_ps", words)
    if in_command is None:
        return by_flag or 1
    if by_flag is not None and str(by_flag) != in_command:
        raise UserError(f"-s and --num_ps must agree; got {by_flag} and {in_command}.")
    if not in_command.isdecimal() or int(in_command) < 1:
        raise UserError(f"--num_ps must be a number of at least 1; got {in_command!r}.")
    return int(in_command)


if __name__ == "__main__":
    sys.exit(program.run(main))
