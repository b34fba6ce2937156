"""What the folder of a run holds, as far as it can be read.

Nothing here raises an error for a file that is missing, cut or of another version: what
can't be read is left out, and a note says so.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, retention, step_dirs
from resnet.config.config import CONFIG_FILE, Config
from resnet.evaluation import prediction_file
from resnet.evaluation.prediction_file import Predictions
from resnet.metrics import jsonl
from resnet.metrics.jsonl import Line
from resnet.watchdog import failure_file, history

STUDY_FILE = "study.json"


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint.

    Attributes:
        step: Its step.
        saved_at: When it was written, in seconds since 1970.
        metadata: Its metadata; empty if they can't be read.
        bytes_: The size of its files.
    """

    step: int
    saved_at: float
    metadata: Mapping[str, Any]
    bytes_: int


@dataclass(frozen=True)
class RunFolder:
    """What a run has left behind.

    Attributes:
        path: The folder.
        name: What the page calls the run.
        settings: The contents of `config.json`; empty if it can't be read.
        config: The same, parsed; None if it is of another version.
        lines: The lines of `metrics.jsonl`.
        checkpoints: The checkpoints, the oldest first.
        events: The events of `history.jsonl`, the oldest first.
        failure: The contents of `failure.json`; None if there is none.
        diverged: The contents of `diverged-step-*.json`.
        predictions: The stored predictions, that of the newest step last.
        study: The contents of `study.json`; None if there is none.
        notes: Sentences on what is missing or can't be read.
    """

    path: Path
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Config | None = None
    lines: Sequence[Line] = ()
    checkpoints: Sequence[SavedStep] = ()
    events: Sequence[Mapping[str, Any]] = ()
    failure: Mapping[str, Any] | None = None
    diverged: Sequence[Mapping[str, Any]] = ()
    predictions: Sequence[Predictions] = ()
    study: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()

    def of_kind(self, kind: str) -> list[Line]:
        """Returns the metrics lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]


def read_all(paths: Sequence[Path]) -> list[RunFolder]:
    """Returns the runs in folders, with names that tell them apart.

    Raises:
        UserError: If a path isn't a folder.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(
                f"expected the folder of a run; {path} is none. Name the --model_dir of"
                " a training."
            )
    return [
        dataclasses.replace(read(path), name=name)
        for path, name in zip(paths, names_of(paths), strict=True)
    ]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns a name of each folder, with as many parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def read(path: Path) -> RunFolder:
    """Returns what a folder holds."""
    notes: list[str] = []
    settings = _read_object(path / CONFIG_FILE, notes) or {}
    found = RunFolder(
        path,
        path.resolve().name,
        settings,
        _config(settings, notes),
        _lines(path, notes),
        _checkpoints(path, notes),
        _events(path, notes),
        failure_file.read(path),
        [
            content
            for file in sorted(path.glob("diverged-step-*.json"))
            if (content := _read_object(file, notes)) is not None
        ],
        _predictions(path, notes),
        _read_object(path / STUDY_FILE, notes, is_expected=False),
        notes,
    )
    if found.study is not None and not settings:  # It isn't a run.
        return dataclasses.replace(found, notes=())
    return found


def _read_object(
    path: Path, notes: list[str], is_expected: bool = True
) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if is_expected:
            notes.append(f"{path.name} is missing.")
        return None
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} can't be read: {error}.")
        return None
    if not isinstance(content, dict):
        notes.append(f"{path.name} doesn't hold a JSON object.")
        return None
    return content


def _config(settings: Mapping[str, Any], notes: list[str]) -> Config | None:
    if not settings:
        return None
    try:
        return json_file.instance(Config, settings)
    except (UserError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = str(error).split(";")[0]
        notes.append(
            f"{CONFIG_FILE} is of another version of the program, and is shown as it"
            f" is: {problem}."
        )
        return None


def _lines(path: Path, notes: list[str]) -> list[Line]:
    file = path / jsonl.FILE
    try:
        lines, num_unreadable = jsonl.read_and_count(file)
        is_torn = file.read_bytes()[-1:] not in (b"\n", b"")
    except FileNotFoundError:
        notes.append(f"{file.name} is missing: the run has logged nothing yet.")
        return []
    except OSError as error:
        notes.append(f"{file.name} can't be read: {error.strerror}.")
        return []
    if num_unreadable:
        notes.append(
            f"{num_unreadable:,} line(s) of {file.name} can't be read and are left out."
        )
    if is_torn:
        notes.append(
            f"The last line of {file.name} is incomplete and left out: the run was"
            " killed while it wrote the line, or is writing it now."
        )
    if not any(line["kind"] == "train" for line in lines):
        notes.append(f"{file.name} has no lines of training yet.")
    return lines


def _checkpoints(path: Path, notes: list[str]) -> list[SavedStep]:
    try:
        steps = step_dirs.saved_steps(path)
    except UserError as error:
        notes.append(str(error))
        return []
    found = []
    for step in steps:
        folder = step_dirs.of_step(path, step)
        metadata: Mapping[str, Any] = {}
        try:
            metadata = integrity.read_metadata(folder)
        except UserError as error:
            notes.append(f"The checkpoint of step {step:,} can't be read: {error}")
        try:
            saved_at = folder.stat().st_mtime
            size = sum(file.stat().st_size for file in folder.iterdir())
        except OSError:  # The run has removed it meanwhile.
            continue
        found.append(SavedStep(step, saved_at, metadata, size))
    if not steps:
        notes.append("There is no checkpoint.")
    return found


def _events(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    events, num_unreadable = history.read(path)
    if num_unreadable:
        notes.append(f"{num_unreadable:,} line(s) of {history.FILE} can't be read.")
    return events


def _predictions(path: Path, notes: list[str]) -> list[Predictions]:
    """Returns what evaluations have stored: the last one of the newest step is last."""
    found = []
    for file in sorted((path / prediction_file.FOLDER).glob("*.npz")):
        try:
            found.append((prediction_file.read(file), file.stat().st_mtime_ns))
        except UserError as error:
            notes.append(str(error))
    found.sort(key=lambda one: (one[0].step, one[1]))
    return [predictions for predictions, _ in found]


def best_top1(checkpoint: SavedStep) -> float | None:
    """Returns the top-1 of a checkpoint; None if it wasn't evaluated."""
    try:
        return retention.best_top1(checkpoint.metadata)
    except (KeyError, TypeError):  # Written by another version.
        return None
