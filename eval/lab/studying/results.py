"""The results of a study: those of each run, and the file that keeps them."""

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.lab.studying import rows
from eval.lab.training_hours import hours_of_steps
from resnet.base import atomic_files, json_file
from resnet.base.errors import UserError
from resnet.config.compression import CompressionSettings
from resnet.config.config import load_config
from resnet.metrics import jsonl

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Result:
    """The result of one training.

    Attributes:
        top1: Accuracy after the last step, from 0 to 1; None if the training diverged.
        steps: Number of steps that it has trained, up to where it diverged if it did.
        seconds: Time of these steps, without evaluations and checkpoints.
        message_bytes: Mean bytes of rank 0's coded gradients in a step.
        bytes_sent: Mean bytes that rank 0 sent in a step.
        exchange_share: Mean fraction of a step's time that the exchange took.
        compression_error: Mean relative error of the coded gradients; None without
            compression.
    """

    top1: float | None
    steps: int
    seconds: float
    message_bytes: float
    bytes_sent: float
    exchange_share: float
    compression_error: float | None = None


@dataclass(frozen=True)
class Run:
    """A training of a study: its row, its seed and its result."""

    row: CompressionSettings
    seed: int
    result: Result


def of_training(model_dir: Path, has_diverged: bool = False) -> Result:
    """Returns the result of a training that has ended.

    Args:
        model_dir: Folder of the run.
        has_diverged: Whether it ended early, since its loss was not finite.

    Raises:
        UserError: If its metrics aren't complete.
    """
    config = load_config(str(model_dir))
    path = model_dir / jsonl.FILE
    lines = jsonl.read(path) if path.exists() else []
    trained = [line for line in lines if line["kind"] == "train"]
    last = [line for line in lines if line["kind"] == "eval"][-1:]
    if has_diverged:
        last = []
    elif not last or last[0]["step"] != config.train_steps:
        raise UserError(f"{path} has no evaluation of the last step; train with one.")
    if has_diverged and not any(line.get("images_per_second") for line in trained):
        return Result(None, 0, 0.0, 0.0, 0.0, 0.0)
    steps, hours = hours_of_steps(config, trained, str(path))
    lengths = [end - begin for begin, end in itertools.pairwise(steps)]
    num_steps = steps[-1] - steps[0]

    def mean(name: str) -> float:
        total = sum(
            line[name] * length for line, length in zip(trained, lengths, strict=True)
        )
        return float(total / num_steps)

    return Result(
        top1=last[0]["top1"] if last else None,
        steps=num_steps,
        seconds=hours[-1] * _SECONDS_PER_HOUR,
        message_bytes=mean("message_bytes_per_step"),
        bytes_sent=mean("bytes_sent_per_step"),
        exchange_share=mean("exchange_share"),
        compression_error=(
            mean("compression_error") if "compression_error" in trained[0] else None
        ),
    )


class StudyFile:
    """The results of the finished runs of a study, in a JSON file.

    Attributes:
        runs: The finished runs, in the order in which they ended.
    """

    def __init__(self, path: Path, shared: dict[str, Any]) -> None:
        """Reads the file, if it exists.

        Args:
            path: The file.
            shared: The settings that all runs of the study have in common.

        Raises:
            UserError: If the study in the file has other settings.
        """
        self._path = path
        self._shared = shared
        self.runs: list[Run] = []
        if not path.exists():
            return
        try:
            content = json.loads(path.read_text())
            kept = dict(content["shared"])
            runs = [(run["row"], run["seed"], run["result"]) for run in content["runs"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not the file of a study: {error!r}.") from error
        different = [name for name in shared if kept.get(name) != shared[name]]
        if different:
            changes = "; ".join(
                f"{name} was {kept.get(name)!r}, now {shared[name]!r}"
                for name in different
            )
            raise UserError(
                f"{path} is of a study with other settings: {changes}. Name another"
                " --output_dir, or use those settings."
            )
        for row, seed, result in runs:
            parsed = json_file.instance(Result, result, f"a result in {path}")
            self.runs.append(Run(rows.from_values(row), seed, parsed))

    def find(self, row: CompressionSettings, seed: int) -> Result | None:
        """Returns the result of a run; None if it isn't finished."""
        for run in self.runs:
            if (run.row, run.seed) == (row, seed):
                return run.result
        return None

    def add(self, run: Run) -> None:
        """Adds a run and writes the file."""
        self.runs.append(run)
        content = {
            "shared": self._shared,
            "runs": [
                {
                    "row": rows.changed(run.row),
                    "seed": run.seed,
                    "result": dataclasses.asdict(run.result),
                }
                for run in self.runs
            ],
        }
        text = json.dumps(content, indent=1) + "\n"
        atomic_files.atomic_write_bytes(self._path, text.encode())

    def by_row(self) -> dict[CompressionSettings, list[Result]]:
        """Returns the results of each row."""
        found: dict[CompressionSettings, list[Result]] = {}
        for run in self.runs:
            found.setdefault(run.row, []).append(run.result)
        return found
