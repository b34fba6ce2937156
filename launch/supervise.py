r"""Restarts a training from its last checkpoint when it fails.

python launch/supervise.py --max_restarts=3 -- mpirun -np 4 -hosts a,b \
    python resnet/resnet_main.py --data_dir=RECORDS --model_dir=MODEL
python launch/supervise.py --model_dir=MODEL -- bash train.sh

Left out are hosts that can no longer be reached, those on which --self_test, or
an audit with --on_bad_rank=stop, has found wrong results, and slow ones without
which the job is faster. A run is not restarted after a user's mistake (exit
code 2), a stop request (75), or a second failure at the same step.

If the command doesn't contain --model_dir, such as a script, pass --model_dir
to this program. Hosts can be left out only if the command is mpirun and names
them with -hosts or -f, not if it takes them from a Slurm allocation.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from resnet.base import program  # Before imports that may fail.

# isort: split

from launch import mpirun_command
from launch.commands import StopRequests
from resnet.base import cli
from resnet.base.errors import EXIT_CODE, UserError
from resnet.base.settings import AT_LEAST_ZERO, setting
from resnet.checkpoint import retention, step_dirs
from resnet.config import explain
from resnet.config.config import Config, load_config
from resnet.config.rules import check_ranks
from resnet.runtime import preemption
from resnet.runtime.preemption import REQUEUE_EXIT_CODE
from resnet.watchdog import history

LOCKED_SECONDS = 30.0  # A file server may hold the lock of a dead host for minutes.


@dataclass(frozen=True)
class SuperviseFlags:
    """When a training is restarted."""

    max_restarts: int = setting(
        3, "Maximum number of restarts after the first start.", bounds=AT_LEAST_ZERO
    )
    restart_seconds: float = setting(
        5.0, "Delay before each restart, in seconds.", bounds=AT_LEAST_ZERO
    )


FLAGS: cli.Groups = (
    SuperviseFlags,
    cli.Flags(Config, names=("model_dir",), common=False, unset="that of the command"),
)


def main(argv: Sequence[str]) -> int:
    """Supervises a command, and returns its last exit code."""
    is_flags_only = all(word.startswith("-") for word in argv[1:])
    if "--" not in argv and not is_flags_only:
        raise UserError(
            "the command must follow `--`, as in launch/supervise.py --max_restarts=3"
            " -- mpirun -np 2 python resnet/resnet_main.py ...; got no `--`."
        )
    end = argv.index("--") if "--" in argv else len(argv)
    line, words = cli.parse(argv[:end], __doc__, FLAGS), argv[end + 1 :]
    model_dir = pathlib.Path(model_dir_of(words, line.values["model_dir"]))
    requests = StopRequests()
    requests.catch()
    try:
        return supervise(words, model_dir, requests, line.of(SuperviseFlags))
    finally:
        preemption.ignore_stop_signals()


def supervise(
    words: Sequence[str],
    model_dir: pathlib.Path,
    requests: StopRequests,
    limits: SuperviseFlags,
    locked_seconds: float = LOCKED_SECONDS,
) -> int:
    """Runs a command until it is done or must not be restarted; returns its code.

    UserError if it ends with 0 and no start of it has begun a run in `model_dir`.
    """
    failed_at: list[str] = []
    num_events = len(history.read(model_dir)[0])
    while True:
        history.remove_failure(model_dir)
        code = requests.finish(requests.start(words))
        if code == 0 and is_done(model_dir):
            note = f"the training has ended; restarts: {len(failed_at)}"
            history.append(model_dir, "supervisor", reason=note)
            return 0
        events = history.read(model_dir)[0][num_events:]
        has_run = any(event["event"] != "supervisor" for event in events)
        if code == 0 and not has_run and not requests.seen:
            raise UserError(
                f"the command ended with 0, but {model_dir} has no finished run. Name"
                " the run's folder with --model_dir."
            )
        failure = history.read_failure(model_dir) or {}
        is_stop = code == REQUEUE_EXIT_CODE and not hosts_to_leave_out(failure)
        if is_stop or requests.seen:
            return code
        # A refused second start says so, too, while the run goes on.
        is_locked = code == EXIT_CODE and failure.get("locked") is True
        if code == EXIT_CODE and not (is_locked and failed_at):
            return code
        code = code or 1
        place = place_of_failure(model_dir, failure)
        if is_locked:  # By the previous start, so its failure is not a second one.
            place = f"startup, attempt {len(failed_at)}, since the run folder is locked"
        failed_at.append(place)
        report(model_dir, f"the training has failed at {place} (exit code {code})")
        if failed_at[-2:-1] == failed_at[-1:]:
            report(model_dir, "it has failed there twice, and is not restarted")
            return code
        if len(failed_at) > limits.max_restarts:
            report(model_dir, f"the limit of {limits.max_restarts} restarts is reached")
            return code
        requests.pause(limits.restart_seconds + (locked_seconds if is_locked else 0))
        if not requests.seen:
            words = on_usable_hosts(words, model_dir, hosts_to_leave_out(failure))
        if requests.seen:
            report(
                model_dir,
                "stopped before the next restart. The same command resumes from the"
                f" last checkpoint (exit code {REQUEUE_EXIT_CODE})",
            )
            return REQUEUE_EXIT_CODE
        report(model_dir, f"restart {len(failed_at)} of {limits.max_restarts}")


def is_done(model_dir: pathlib.Path) -> bool:
    """Returns whether the run has saved its last step; ranks may end with 0 before."""
    config, steps = settings_of(model_dir), step_dirs.saved_steps(model_dir)
    if config is None or not steps:
        return False
    return retention.ends_run(model_dir, steps[-1], config.last_step, config)


def settings_of(model_dir: pathlib.Path) -> Config | None:
    """Returns the settings of the run, or None if it has not saved them yet."""
    try:
        return load_config(str(model_dir))
    except UserError:
        return None


def place_of_failure(model_dir: pathlib.Path, failure: Mapping[str, Any]) -> str:
    """Returns the step at which the run failed or, if unknown, the last saved step."""
    if hosts := hosts_to_leave_out(failure):
        return f"wrong results of {', '.join(hosts)}"
    if failure.get("step") is not None:
        return f"step {failure['step']}"
    saved = step_dirs.saved_steps(model_dir)
    return f"a step after {saved[-1]}" if saved else "startup or a step before a save"


def hosts_to_leave_out(failure: Mapping[str, Any]) -> list[str]:
    """Returns the hosts that a failure names."""
    hosts = failure.get("hosts")
    return [str(host) for host in hosts] if isinstance(hosts, list) else []


def on_usable_hosts(
    words: Sequence[str], model_dir: pathlib.Path, failed: Sequence[str] = ()
) -> Sequence[str]:
    """Returns the command without the `failed` hosts, and those out of reach.

    A command of Open MPI, which has other options than Hydra, stays as it is. Refused
    are ranks that can't share the global batch, if the run has saved its settings, and
    commands whose hosts can't be changed.
    """
    command = mpirun_command.parse(words)
    if not command or command.is_of_open_mpi() or not command.hosts:
        return words
    failed = [host.name for host in command.hosts if host.name in failed]
    unreachable = [
        name for name in command.find_unreachable_hosts() if name not in failed
    ]
    left_out = [*failed, *unreachable]
    remaining = command.without(left_out) if left_out else command
    slow = slow_hosts_to_leave_out(remaining, model_dir) if remaining else []
    left_out += slow
    if not left_out:
        return words
    remaining = command.without(left_out)
    hosts = [host.line() for host in remaining.hosts] if remaining else []
    of_kinds = ("failed", failed), ("unreachable", unreachable), ("slow", slow)
    for what, names in of_kinds:
        if names:
            report(model_dir, f"{what} hosts: {', '.join(names)}")
    report(model_dir, f"remaining hosts: {', '.join(hosts) or 'none'}")
    if not remaining:
        raise UserError("no host is left to train on; the training is not restarted")
    if config := settings_of(model_dir):
        try:
            check_ranks(config, explain.num_parts(config, remaining.num_ranks))
        except UserError as error:
            raise UserError(
                f"the {remaining.num_ranks} ranks that are left can't share the global"
                f" batch, so the training is not restarted: {error}"
            ) from error
    return remaining.words


def slow_hosts_to_leave_out(
    command: mpirun_command.MpirunCommand, model_dir: pathlib.Path
) -> list[str]:
    """Returns the slow hosts of a command without which the job is faster.

    All ranks wait for the slowest: with a host at part p of its speed, n ranks compute
    as fast as n * p, and the m others alone as fast as m. Ranks that can't share the
    global batch stay.
    """
    parts = history.slow_hosts(model_dir)
    slow = [host.name for host in command.hosts if host.name in parts]
    config = settings_of(model_dir)
    if not slow or config is None:
        return []
    try:
        others = command.without(slow)
        if others:
            check_ranks(config, explain.num_parts(config, others.num_ranks))
    except UserError:
        return []
    part = min(parts[name] for name in slow)
    return slow if others and others.num_ranks > part * command.num_ranks else []


def model_dir_of(words: Sequence[str], before: str) -> str:
    """Returns the --model_dir that a command names, or else that of this program."""
    named = mpirun_command.flag_value("model_dir", words) or before
    if not words or not named:
        raise UserError(
            "expected a command with --model_dir after `--`, or --model_dir=MODEL"
            f" before it; got {' '.join(words) or 'none'!r}."
        )
    if before not in ("", named):
        raise UserError(
            f"--model_dir={before} before `--` and --model_dir={named} after it name"
            " two folders."
        )
    return named


def report(model_dir: pathlib.Path, sentence: str) -> None:
    """Prints a line about the supervision to standard error, and keeps it."""
    history.append(model_dir, "supervisor", reason=sentence)
    print(f"supervise: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(program.run(main))
