"""Starts a training again when it fails, from its last checkpoint.

python launch/supervise.py --max_restarts=3 -- mpirun -np 4 -hosts a,b python
resnet/resnet_main.py --model_dir=MODEL ...

A host that is gone is left out. What the user has to mend (exit code 2), what was asked
to leave (75) and what fails twice at the same step is not started again.

Of a command that doesn't name them itself, such as a script, --model_dir says where it
trains. Hosts are left out only if the command is of mpirun and names them by -hosts or
-f; those that it takes from a Slurm allocation can't be found gone.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import flags

from data_prep import errors
from data_prep.errors import EXIT_CODE, UserError
from launch import mpirun_command
from resnet import (
    checkpoint_folders,
    checkpoint_retention,
    failure_file,
    shared_flags,  # noqa: F401 - defines --model_dir.
)
from resnet import config as configs
from resnet.stop_signals import REQUEUE_EXIT_CODE

LOCKED_SECONDS = 30.0  # A file server lets go of a dead host's lock after a while.
_LOOK_SECONDS = 0.05  # From one look, in a pause, for a signal to the next.

FLAGS = flags.FLAGS
flags.DEFINE_integer("max_restarts", 3, "Starts after the first one.")
flags.DEFINE_float("restart_seconds", 5.0, "From a failure to the next start.")


class Requests:
    """The signals that ask this program to end, from now on; passed on to a command.

    Attributes:
        seen: Numbers of those that came.
    """

    def __init__(self) -> None:
        """Catches none yet."""
        self.seen: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catches them while it lasts."""
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)
        if self._child is not None:
            self._child.send_signal(number)

    def run(self, words: Sequence[str]) -> int:
        """Runs a command, to which they are passed on; returns its exit code.

        It is in a session of its own: mpirun would take a terminal's SIGINT and the one
        passed on for two.

        Raises:
            UserError: If there is no such program.
        """
        try:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UserError(f"{words[0]} can't be run: {reason}.") from error
        self._child = child
        for number in self.seen:  # Those that came while it was being started.
            child.send_signal(number)
        code = child.wait()
        self._child = None
        return code if code >= 0 else 128 - code

    def pause(self, seconds: float) -> None:
        """Waits so long, or until one comes."""
        deadline = time.monotonic() + seconds
        while not self.seen and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def main(words: Sequence[str]) -> None:
    """Supervises a command, and exits as it does in the end."""
    model_dir = pathlib.Path(model_dir_of(words, FLAGS.model_dir))
    sys.exit(supervise(words, model_dir, FLAGS.max_restarts, FLAGS.restart_seconds))


def supervise(
    words: Sequence[str],
    model_dir: pathlib.Path,
    max_restarts: int,
    restart_seconds: float,
    locked_seconds: float = LOCKED_SECONDS,
) -> int:
    """Returns the exit code of the last start.

    Args:
        words: The command that starts the training.
        model_dir: That of the training.
        max_restarts: Starts after the first one.
        restart_seconds: From a failure to the next start.
        locked_seconds: As long again if the folder is still locked.
    """
    failed_at: list[str] = []
    requests = Requests()
    with requests.caught():
        while True:
            failure_file.remove(model_dir)
            code = requests.run(words)
            if code == 0 and is_done(model_dir):
                return 0
            if code == REQUEUE_EXIT_CODE or requests.seen:
                return code
            is_locked = was_locked(model_dir) and bool(failed_at)
            if code == EXIT_CODE and not is_locked:
                return code
            code = code or 1
            place = place_of_failure(model_dir)
            if is_locked:  # By the last start: a second one doesn't end it.
                place = f"its start, number {len(failed_at)}, for the lock"
            failed_at.append(place)
            say(f"the training has failed at {failed_at[-1]} (exit code {code})")
            if failed_at[-2:-1] == failed_at[-1:]:
                say("it has failed there before: not started again")
                return code
            if len(failed_at) > max_restarts:
                say(f"{max_restarts} restarts are used up")
                return code
            requests.pause(restart_seconds + (locked_seconds if is_locked else 0))
            if not requests.seen:
                words = on_hosts_that_are_left(words, model_dir)
            if requests.seen:
                say(
                    "asked to leave before the next start: the same command goes on"
                    f" from the last checkpoint (exit code {REQUEUE_EXIT_CODE})"
                )
                return REQUEUE_EXIT_CODE
            say(f"restart {len(failed_at)} of {max_restarts}")


def is_done(model_dir: pathlib.Path) -> bool:
    """Returns whether the run has saved the step that it ends with.

    The launcher's exit code alone is no proof: a rank that ends without a word, and
    with 0, takes the others with it.
    """
    config = settings_of(model_dir)
    steps = checkpoint_folders.saved_steps(model_dir)
    if config is None or not steps:
        return False
    return checkpoint_retention.ends_run(
        model_dir, steps[-1], config.train_steps, config.stop_at_top1
    )


def settings_of(model_dir: pathlib.Path) -> configs.Config | None:
    """Returns the settings of the run; None if none has come so far as to save them."""
    try:
        return configs.load(str(model_dir))
    except UserError:
        return None


def was_locked(model_dir: pathlib.Path) -> bool:
    """Returns whether the start failed because another job is in the folder."""
    failure = failure_file.read(model_dir)
    return failure is not None and failure.get("locked") is True


def place_of_failure(model_dir: pathlib.Path) -> str:
    """Returns the step at which the run failed, or the one from which it started."""
    failure = failure_file.read(model_dir)
    if failure and failure["step"] is not None:
        return f"step {failure['step']}"
    steps = checkpoint_folders.saved_steps(model_dir)
    return f"a step after {steps[-1] if steps else 0}"


def on_hosts_that_are_left(
    words: Sequence[str], model_dir: pathlib.Path
) -> Sequence[str]:
    """Returns the command without the hosts that don't answer.

    Raises:
        UserError: If none is left, or the batch can't be divided by their ranks. A run
            that has saved no settings yet finds the latter out itself.
    """
    command = mpirun_command.parse(words)
    gone = command.find_gone_hosts() if command else []
    if not command or not gone:
        return words
    left = command.without(gone)
    hosts = left.hosts if left else ()
    say(f"gone: {', '.join(gone)}; left: {', '.join(hosts) or 'no host'}")
    if not left:
        raise UserError("no host is left to train on: not started again")
    config = settings_of(model_dir)
    if config is not None and config.global_batch_size % left.num_ranks:
        raise UserError(
            f"the batch of {config.global_batch_size} can't be divided by the"
            f" {left.num_ranks} ranks that are left: not started again. Start it on a"
            " number of ranks that divides it; it goes on from its last checkpoint."
        )
    return left.words


def model_dir_of(words: Sequence[str], given: str | None) -> str:
    """Returns the --model_dir that a command names, or else the one given.

    Raises:
        UserError: If there is none, they name two, or there is no command.
    """
    match = re.search(r"^--?model_dir(?:=|\n)(.+)$", "\n".join(words), re.M)
    named = match[1] if match else given
    if not words or not named:
        raise UserError(
            "expected a command with --model_dir behind `--`, such as `-- mpirun -np 2"
            " python resnet/resnet_main.py --model_dir=MODEL ...`, or --model_dir=MODEL"
            f" before it; got {' '.join(words) or 'none'!r}."
        )
    if given not in (None, named):
        raise UserError(
            f"--model_dir={given} before `--` and --model_dir={named} behind it name"
            " two folders. Leave the first one out."
        )
    return named


def say(sentence: str) -> None:
    """Prints a line about the supervision."""
    print(f"supervise: {sentence}", file=sys.stderr, flush=True)


def run() -> None:
    """Runs the program."""
    behind = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words = sys.argv[behind + 1 :]
    del sys.argv[behind:]
    errors.run(lambda: main(words))


if __name__ == "__main__":
    run()
