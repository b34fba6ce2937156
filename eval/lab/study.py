"""The rows of a study of compression, their results, and the file that keeps them."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.lab.trainings import hours_of_steps
from resnet.base import atomic_files, json_file, settings
from resnet.base.errors import UserError
from resnet.config import rules
from resnet.config.compression import CompressionSettings
from resnet.config.config import load_config
from resnet.metrics import jsonl

DENSE = CompressionSettings()
FEEDBACK = {"without": (False,), "with": (True,), "both": (False, True)}
# The settings that a row states apart from the parameters of its method.
_NOT_PARAMETERS = ("compress", "method", "error_feedback")
_SECONDS_PER_HOUR = 3600


def product(
    methods: Iterable[str], ways: Sequence[str], feedback: str
) -> tuple[list[CompressionSettings], list[str]]:
    """Returns the rows of all combinations, and the names of those that can't work.

    The first row is without compression. A method may have parameters that aren't the
    default ones, such as "topk:ratio=0.01:kept_values=bfloat16". Raises UserError if a
    method, a parameter or a way doesn't exist.
    """
    rows, left_out = [DENSE], []
    for text, way, has_feedback in itertools.product(methods, ways, FEEDBACK[feedback]):
        values = {"compress": way, "error_feedback": has_feedback, **_parsed(text)}
        row = _checked(values, f"--methods={text}")
        if feedback == "with" and rules.broken(row):
            row = dataclasses.replace(row, error_feedback=False)
        if rules.broken(row):
            left_out.append(name(row))
        elif row not in rows:
            rows.append(row)
    return rows, left_out


def _parsed(text: str) -> dict[str, Any]:
    """Returns the method and the parameters in a text."""
    method_name, *parameters = text.split(":")
    values: dict[str, Any] = {"method": method_name}
    known = settings.declarations(CompressionSettings)
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key not in known or key in _NOT_PARAMETERS:
            raise UserError(f"--methods={text}: there is no parameter {key!r}.")
        try:
            values[key] = settings.value_type(CompressionSettings, key)(value)
        except ValueError as error:
            raise UserError(f"--methods={text}: {key} can't be {value!r}.") from error
    return values


def read_rows(path: Path) -> list[CompressionSettings]:
    """Returns the rows in a JSON file: a list of settings of compression."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"expected a JSON file of rows; {path}: {error}.") from error
    if not isinstance(values, list) or not values:
        raise UserError(f"{path} must have a list of rows, such as [{{}}].")
    rows = []
    for number, value in enumerate(values, 1):
        row = _checked(value, f"row {number} of {path}")
        if problems := rules.broken(row):
            raise UserError(f"row {number} of {path}: {problems[0]}")
        rows.append(row)
    return rows


def _checked(values: Any, where: str) -> CompressionSettings:
    row = json_file.instance(CompressionSettings, values, where)
    if problems := settings.problems_of(row, where):
        raise UserError(problems[0])
    return row


def changed(row: CompressionSettings) -> dict[str, Any]:
    """Returns the settings of a row that aren't the defaults, by their names."""
    values = dataclasses.asdict(row)
    return {key: values[key] for key in values if values[key] != getattr(DENSE, key)}


def flags(row: CompressionSettings) -> list[str]:
    """Returns the flags of the training program for a row."""
    declared = settings.declarations(CompressionSettings)
    return [
        f"--{settings.flag_name(key, declared[key])}="
        + (str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in changed(row).items()
    ]


def method(row: CompressionSettings) -> str:
    """Returns the method of a row with its parameters, such as "topk, ratio=0.01"."""
    if row.compress == "none":
        return "dense"
    return ", ".join([row.method, *_parameters(row)])


def name(row: CompressionSettings) -> str:
    """Returns a name of a row for folders, such as "topk-ratio=0.01-layerwise"."""
    if row.compress == "none":
        return "dense"
    parts = [row.method, *_parameters(row), row.compress]
    return "-".join([*parts, *["feedback"] * row.error_feedback])


def _parameters(row: CompressionSettings) -> list[str]:
    return [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in changed(row).items()
        if key not in _NOT_PARAMETERS
    ]


@dataclass(frozen=True)
class Result:
    """The result of one training: means over its steps, of rank 0.

    The accuracy is that after the last step, None if the training diverged. The time is
    without evaluations and checkpoints. There is no error without compression.
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


def result_of(model_dir: Path, has_diverged: bool = False) -> Result:
    """Returns the result of a training that is complete, or has diverged."""
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
        pairs = zip(trained, lengths, strict=True)
        return float(sum(line[name] * length for line, length in pairs) / num_steps)

    has_error = "compression_error" in trained[0]
    return Result(
        top1=last[0]["top1"] if last else None,
        steps=num_steps,
        seconds=hours[-1] * _SECONDS_PER_HOUR,
        message_bytes=mean("message_bytes_per_step"),
        bytes_sent=mean("bytes_sent_per_step"),
        exchange_share=mean("exchange_share"),
        compression_error=mean("compression_error") if has_error else None,
    )


@dataclass(frozen=True)
class _Stored:
    shared: dict[str, Any]
    runs: tuple[Run, ...]


class StudyFile:
    """The results of the finished runs of a study, in a JSON file.

    The runs are in the order in which they ended.
    """

    def __init__(self, path: Path, shared: dict[str, Any]) -> None:
        """Reads the file, if it exists; refuses one with other settings of all runs."""
        self._path = path
        self._shared = shared
        self.runs: list[Run] = []
        if not path.exists():
            return
        stored = json_file.read(path, _Stored, "the results of a study")
        changes = [
            f"{name} was {stored.shared.get(name)!r}, now {value!r}"
            for name, value in shared.items()
            if stored.shared.get(name) != value
        ]
        if changes:
            raise UserError(
                f"{path} is of a study with other settings: {'; '.join(changes)}. Name"
                " another --output_dir, or use those settings."
            )
        self.runs += stored.runs

    def find(self, row: CompressionSettings, seed: int) -> Result | None:
        """Returns the result of a run; None if it isn't finished."""
        of_key = {(run.row, run.seed): run.result for run in self.runs}
        return of_key.get((row, seed))

    def add(self, run: Run) -> None:
        """Adds a run and writes the file."""
        self.runs.append(run)
        runs = [
            {**dataclasses.asdict(run), "row": changed(run.row)} for run in self.runs
        ]
        content = {"shared": self._shared, "runs": runs}
        text = json.dumps(content, indent=1) + "\n"
        atomic_files.atomic_write_bytes(self._path, text.encode())

    def by_row(self) -> dict[CompressionSettings, list[Result]]:
        """Returns the results of each row."""
        results: dict[CompressionSettings, list[Result]] = {}
        for run in self.runs:
            results.setdefault(run.row, []).append(run.result)
        return results
