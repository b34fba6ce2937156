"""What the folder of a run holds, as far as it can be read; notes say what can't."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from resnet.base import json_file
from resnet.base.errors import UserError
from resnet.checkpoint import integrity, step_dirs
from resnet.config.config import CONFIG_FILE, Config, such_as_runs_near
from resnet.evaluation import prediction_file
from resnet.evaluation.prediction_file import Predictions
from resnet.metrics import accuracy, jsonl
from resnet.metrics.jsonl import Line
from resnet.report.words import isolated
from resnet.watchdog import history

STUDY_FILE = "study.json"
# A run or study has at least one of them, also if it has failed.
_FILES = (
    *(CONFIG_FILE, jsonl.FILE, history.FILE, history.FAILURE_FILE),
    *(STUDY_FILE, step_dirs.FOLDER),
)


class SavedStep(NamedTuple):
    """A checkpoint."""

    step: int
    saved_at: float  # In seconds since 1970.
    metadata: Mapping[str, Any]  # Empty if they can't be read.
    num_bytes: int


@dataclass(frozen=True)
class RunFolder:
    """What a run has left behind."""

    path: Path
    name: str  # What the page calls the run.
    settings: Mapping[str, Any] = field(default_factory=dict)  # Of `config.json`.
    config: Config | None = None  # The same, parsed; None if it isn't valid.
    lines: Sequence[Line] = ()  # Of `metrics.jsonl`, without what says nothing.
    checkpoints: Sequence[SavedStep] = ()  # The checkpoints, the oldest first.
    events: Sequence[Mapping[str, Any]] = ()  # Of `history.jsonl`, the oldest first.
    failure: Mapping[str, Any] | None = None  # Of `failure.json`, but of a refusal.
    diverged: Sequence[Mapping[str, Any]] = ()  # Of `diverged-step-*.json`.
    predictions: Sequence[Predictions] = ()  # By step, then by time.
    study: Mapping[str, Any] | None = None  # The contents of `study.json`.
    notes: Sequence[str] = ()  # Sentences on what is missing or can't be read.

    def of_kind(self, kind: str) -> list[Line]:
        """Returns the metrics lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    def events_of(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Returns the events of some kinds."""
        return [event for event in self.events if event["event"] in kinds]

    @property
    def last_step(self) -> int:
        """The last step that the run has logged or saved."""
        steps = [line["step"] for line in self.lines]
        return max([*steps, *(saved.step for saved in self.checkpoints)], default=0)

    @property
    def steps_per_epoch(self) -> float | None:
        """The steps of an epoch, from settings or lines; None if neither has it."""
        if self.config is not None:
            return self.config.steps_per_epoch
        for line in reversed(self.lines):
            if line["step"] and line.get("epoch"):
                return float(line["step"] / line["epoch"])
        return None


def folders_of(model_dir: str) -> list[Path]:
    """Returns the folders in --model_dir: one, several separated by commas, or none."""
    # One folder may have a comma in its name.
    is_one = "," not in model_dir or Path(model_dir).is_dir()
    return [
        Path(name) for name in ([model_dir] if is_one else model_dir.split(",")) if name
    ]


def require_runs(paths: Sequence[Path]) -> None:
    """Refuses folders that are of no run or study, such as one of images."""
    for path in paths:
        if path.is_dir() and not any((path / name).exists() for name in _FILES):
            raise UserError(
                f"expected the folder of a run; {path} has none of {', '.join(_FILES)}."
                f" Name the --model_dir of a training{such_as_runs_near(path)}."
            )


def read_all(paths: Sequence[Path]) -> list[RunFolder]:
    """Returns the runs in folders, with names that tell them apart."""
    for path in paths:
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "doesn't exist"
            raise UserError(f"expected the folder of a run; {path} {what}.")
    return [
        dataclasses.replace(read(path), name=name)
        for path, name in zip(paths, names_of(paths), strict=True)
    ]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns a name of each folder, with as many parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts), default=1)
    for length in range(1, longest + 1):
        names = [isolated("/".join(of_path[-length:])) for of_path in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def read(path: Path) -> RunFolder:
    """Returns what a folder holds."""
    notes: list[str] = []
    settings = _read_object(path / CONFIG_FILE, notes) or {}
    study = _read_object(path / STUDY_FILE, notes, is_expected=False)
    diverged = [
        _read_object(file, notes) for file in sorted(path.glob("diverged-step-*.json"))
    ]
    events, num_unreadable = history.read(path)
    if num_unreadable:
        notes.append(f"Lines of {history.FILE} that can't be read: {num_unreadable:,}.")
    config, failure = _config(settings, notes), history.read_failure(path) or {}
    run = RunFolder(
        path=path,
        name=path.resolve().name,
        settings=settings,
        config=config,
        lines=_telling(_lines(path / jsonl.FILE, notes), config),
        checkpoints=_checkpoints(path, notes),
        events=events,
        failure=None if failure.get("locked") else failure or None,
        diverged=list(filter(None, diverged)),
        predictions=_predictions(path, notes),
        study=study,
        notes=notes,
    )
    is_only_study = study is not None and not settings
    return dataclasses.replace(run, notes=()) if is_only_study else run


def _read_object(
    path: Path, notes: list[str], is_expected: bool = True
) -> dict[str, Any] | None:
    try:
        return json_file.read(path, dict, "a JSON object")
    except json_file.MissingFile:
        if is_expected:
            notes.append(f"{path.name} is missing.")
    except UserError as error:
        notes.append(f"{path.name} can't be read: {error}")
    return None


def _config(settings: Mapping[str, Any], notes: list[str]) -> Config | None:
    if not settings:
        return None
    try:
        return json_file.instance(Config, settings)
    except UserError as error:
        problem = str(error).split(";")[0]
        notes.append(f"{CONFIG_FILE} is not valid, and shown as it is: {problem}.")
        return None


def _lines(file: Path, notes: list[str]) -> list[Line]:
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
        notes.append(f"Lines of {file.name} that can't be read: {num_unreadable:,}.")
    if is_torn:
        notes.append(f"The last line of {file.name} is incomplete and left out.")
    if not any(line["kind"] == "train" for line in lines):
        notes.append(f"{file.name} has no lines of training yet.")
    return jsonl.with_metrics(lines)


def _telling(lines: Sequence[Line], config: Config | None) -> list[Line]:
    """Returns lines without top-5 that is always right, and messages never sent."""
    says_nothing: set[str] = set()
    if config is not None and accuracy.top5_is_certain(config.num_classes):
        says_nothing.add("top5")
    if not any(line.get("bytes_sent_per_step") for line in lines):  # As on one rank.
        says_nothing |= {"bytes_sent_per_step", "message_bytes_per_step"}
    return [{name: line[name] for name in line.keys() - says_nothing} for line in lines]


def _checkpoints(path: Path, notes: list[str]) -> list[SavedStep]:
    try:
        steps = step_dirs.saved_steps(path)
    except UserError as error:
        notes.append(str(error))
        return []
    saved = []
    for step in steps:
        folder = step_dirs.of_step(path, step)
        metadata: Mapping[str, Any] = {}
        try:
            metadata = integrity.read_metadata(folder)
        except UserError as error:
            notes.append(f"The checkpoint of step {step:,} can't be read: {error}")
        try:
            saved_at = folder.stat().st_mtime
            num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        except OSError:  # The run has removed it meanwhile.
            continue
        saved.append(SavedStep(step, saved_at, metadata, num_bytes))
    if not steps:
        notes.append("There is no checkpoint.")
    return saved


def _predictions(path: Path, notes: list[str]) -> list[Predictions]:
    stored = []
    for file in sorted((path / prediction_file.FOLDER).glob("*.npz")):
        try:
            stored.append((prediction_file.read(file), file.stat().st_mtime_ns))
        except UserError as error:
            notes.append(str(error))
    stored.sort(key=lambda item: (item[0].step, item[1]))
    return [predictions for predictions, _ in stored]
