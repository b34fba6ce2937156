"""Starts a training again when it fails, from its last checkpoint.

python launch/supervise.py --max_restarts=3 -- mpirun -np 4 -hosts a,b python
resnet/resnet_main.py --model_dir=MODEL ...

A host that is gone is left out. What the user has to mend (exit code 2), what was asked
to leave (75) and what fails twice at the same step is not started again.
"""

import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

if __package__ in (None, ""):  # Run by its path: the packages lie beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from absl import flags

from data_prep import errors
from data_prep.errors import EXIT_CODE, UserError
from launch import mpirun_command
from resnet import checkpoint_folders, failure_file
from resnet import config as configs
from resnet.stop_signals import REQUEUE_EXIT_CODE

LOCKED_SECONDS = 30.0  # A file server lets go of a dead host's lock after a while.

FLAGS = flags.FLAGS
flags.DEFINE_integer("max_restarts", 3, "Starts after the first one.")
flags.DEFINE_float("restart_seconds", 5.0, "From a failure to the next start.")


def main(words: Sequence[str]) -> None:
    """Supervises a command, and exits as it does in the end."""
    sys.exit(supervise(words, pathlib.Path(model_dir_of(words))))


def supervise(words: Sequence[str], model_dir: pathlib.Path) -> int:
    """Returns the exit code of the last start.

    Args:
        words: The command that starts the training.
        model_dir: That of the training.
    """
    failed_at: list[str] = []
    while True:
        failure_file.remove(model_dir)
        code, was_asked = run_command(words)
        if code == 0 and is_done(model_dir):
            return 0
        if code == REQUEUE_EXIT_CODE or was_asked:
            return code
        if code == EXIT_CODE and not failed_at:
            return code
        code = code or 1
        place = place_of_failure(model_dir)
        if code == EXIT_CODE:  # It was right before: the folder is still locked.
            place = f"its start, number {len(failed_at)}"
            time.sleep(LOCKED_SECONDS)
        failed_at.append(place)
        say(f"the training has failed at {failed_at[-1]} (exit code {code})")
        if failed_at[-2:-1] == failed_at[-1:]:
            say("it has failed there before: not started again")
            return code
        if len(failed_at) > FLAGS.max_restarts:
            say(f"{FLAGS.max_restarts} restarts are used up")
            return code
        time.sleep(FLAGS.restart_seconds)
        words = on_hosts_that_are_left(words, model_dir)
        say(f"restart {len(failed_at)} of {FLAGS.max_restarts}")


def run_command(words: Sequence[str]) -> tuple[int, bool]:
    """Runs a command; returns its exit code, and whether a signal asked it to end.

    The signals that ask this program to end are passed on. The command is in a session
    of its own: mpirun would take a terminal's SIGINT and the one passed on for two.
    """
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        child.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), bool(asked)


def is_done(model_dir: pathlib.Path) -> bool:
    """Returns whether the last step of the run is saved.

    The launcher's exit code alone is no proof: a rank that ends without a word, and
    with 0, takes the others with it.
    """
    try:
        steps = configs.load(str(model_dir)).train_steps
    except UserError:
        return False
    return checkpoint_folders.saved_steps(model_dir)[-1:] == [steps]


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
        UserError: If none is left, or the batch can't be divided by their ranks.
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
    batch = configs.load(str(model_dir)).global_batch_size
    if batch % left.num_ranks:
        raise UserError(
            f"the batch of {batch} can't be divided by the {left.num_ranks} ranks that"
            " are left: not started again. Start it on a number of ranks that divides"
            " it; it goes on from its last checkpoint."
        )
    return left.words


def model_dir_of(words: Sequence[str]) -> str:
    """Returns the --model_dir that a command names.

    Raises:
        UserError: If it names none.
    """
    text = "\n".join(words)
    match = re.search(r"^--?model_dir(?:=|\n)(.+)$", text, re.M)
    if not match:
        raise UserError(
            "expected a command with --model_dir behind `--`, such as `-- mpirun -np 2"
            " python resnet/resnet_main.py --model_dir=MODEL ...`; got"
            f" {' '.join(words) or 'none'!r}."
        )
    return match[1]


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
