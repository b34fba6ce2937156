"""Runs the training program for one row of a study, and resumes it."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from eval import measuring
from eval.lab.studying import results
from eval.lab.studying.results import Result
from resnet.base import errors
from resnet.base.errors import UserError
from resnet.metrics import jsonl


class Refused(UserError):
    """The training program refuses its settings, before the first step."""


def train(flags: Sequence[str], model_dir: Path, num_ranks: int) -> Result:
    """Trains to the end, from the newest checkpoint if there is one.

    What the program prints is appended to `<model_dir>.log`.

    Args:
        flags: The flags of the training, without --model_dir.
        model_dir: The folder of the run.
        num_ranks: The number of ranks that mpirun starts; 1 is one process without it.

    Raises:
        Refused: If the program refuses the settings.
        UserError: If the training fails otherwise, except by a loss that is not finite.
        KeyboardInterrupt: If this program is interrupted; the training has saved then.
    """
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    command = measuring.command(
        measuring.TRAINING,
        [*flags, f"--model_dir={model_dir}"],
        num_ranks if num_ranks > 1 else 0,
    )
    log_path = Path(f"{model_dir}.log")
    code = _run(command, log_path)
    has_diverged = bool(code) and any(model_dir.glob("diverged-step-*.json"))
    if code and not has_diverged:
        printed = log_path.read_text(errors="replace").split("\n")
        reason = next(filter(None, map(str.strip, reversed(printed))), "no output")
        if code == errors.EXIT_CODE and not (model_dir / jsonl.FILE).exists():
            raise Refused(reason)
        raise UserError(
            f"the training in {model_dir} failed with exit code {code}, and {log_path}"
            f" ends with {reason!r}. The same command resumes the study."
        )
    return results.of_training(model_dir, has_diverged)


def remove_weights(model_dir: Path) -> None:
    """Removes the checkpoints and TensorBoard's files of a training that has ended."""
    for folder in ("checkpoints", "tensorboard"):
        shutil.rmtree(model_dir / folder, ignore_errors=True)


def _run(command: Sequence[str], log_path: Path) -> int:
    """Runs a command, which is stopped if this program is; returns its exit code."""
    with log_path.open("ab") as output:
        child = measuring.start_job(command, output)
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            child.wait()
            raise
