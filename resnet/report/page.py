"""The page: one HTML file that tells the story of one or several runs."""

import functools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from resnet.base import atomic_files, commands
from resnet.base.text import counted
from resnet.report import charts, curves, predictions, settings, story, study, words
from resnet.report.charts import Figure, Mark, Table
from resnet.report.curves import Chart
from resnet.report.folder import RunFolder, read_all

_FOLDER = Path(__file__).parent
_NO_CHARTS = "The charts need the Python package vl-convert-python, missing here."
_MAX_ROWS = 200  # Longest table of events.


def write(paths: Sequence[Path], out: Path) -> None:
    """Writes the page of runs or studies in folders to a file, and makes its folder."""
    text = html_of(read_all(paths))
    atomic_files.write_named(out, text.encode("utf-8", "replace"), "--out")


class Section(NamedTuple):
    """A section: its address, its title, the macro of page.html and what it shows."""

    id: str
    title: str
    kind: str
    contents: Any


def html_of(folders: Sequence[RunFolder]) -> str:
    """Returns the page of runs and studies."""
    runs = [run for run in folders if run.study is None or run.settings or run.lines]
    library = charts.script_text()
    notes = [
        f"{run.name}: {note}" if len(folders) > 1 else note
        for run in folders
        for note in run.notes
    ]
    if library is None:
        notes.insert(0, _NO_CHARTS)
    # The library's JavaScript and the files beside this one are no text of a run.
    text = _template().render(
        title=story.title(folders),
        names=", ".join(run.name for run in folders),
        style=Markup(_text_of("style.css")),
        summary=story.summary(runs[0]) if len(runs) == 1 else (),
        comparison=story.comparison(runs) if len(runs) > 1 else None,
        notes=notes,
        sections=list(_sections(folders, runs)),
        written_at=time.time(),
        library=Markup(library) if library else "",
        script=Markup(_text_of("page.js")),
    )
    return f"{text.strip()}\n"


@functools.cache
def _text_of(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        percent=words.percent,
        moment=words.moment,
        color=charts.color,
        script_json=_script_json,
    )
    return environment.get_template("page.html")


def _script_json(value: Any) -> Markup:
    """Returns a value as JSON that can stand in a script element."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _finite(value: Any) -> Any:
    """Returns a value with null for numbers that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    return value


def _sections(
    folders: Sequence[RunFolder], runs: Sequence[RunFolder]
) -> Iterator[Section]:
    if runs:
        shown = curves.of_runs(runs)
        results = [chart for chart in shown if chart.metric.is_result]
        yield Section("curves", "Curves", "curves", _curves(runs, results))
        for number, run in enumerate(runs):
            of = f" of {run.name}" if len(runs) > 1 else ""
            if run.predictions:
                records = run.settings.get("validation_records_sha256", "")
                contents = predictions.section(run.predictions[-1], records)
                name, title = f"predictions-{number}", f"Predictions{of}"
                yield Section(name, title, "predictions", contents)
        if not any(run.predictions for run in runs):
            command = _evaluation(runs[0])
            yield Section("predictions", "Predictions", "no_predictions", command)
    for number, run in enumerate(folders):
        if run.study is not None:
            contents = study.section(run.study)
            yield Section(f"study-{number}", f"Study {run.name}", "study", contents)
    if runs:
        yield Section("timeline", "What happened", "timeline", _timeline(runs))
    for number, run in enumerate(runs):
        if run.events_of("supervisor"):
            title = f"Supervisor of {run.name}"
            yield Section(f"supervisor-{number}", title, "supervisor", _supervisor(run))
    if runs:
        if others := [chart for chart in shown if not chart.metric.is_result]:
            contents = _curves(runs, others)
            yield Section("diagnostics", "Speed and diagnostics", "curves", contents)
        yield Section("settings", "Settings", "settings", settings.section(runs))
        contents = settings.machines(runs)
        yield Section("machine", "Versions and machine", "machine", contents)


def _curves(runs: Sequence[RunFolder], shown: Sequence[Chart]) -> dict[str, Any]:
    marks = _marks(runs[0]) if len(runs) == 1 else []
    epochs = [curves.epoch_of(line) for run in runs for line in run.lines]
    figures = [charts.of_curves(chart, marks, max(epochs)) for chart in shown]
    return {"marks": marks, "charts": figures}


def _marks(run: RunFolder) -> list[Mark]:
    """Returns the beginnings of phases, restarts and faults of a run."""
    steps = run.steps_per_epoch
    if not steps:
        return []
    return [
        Mark(moment.step / steps, moment.text, _color(moment) or "var(--mark)")
        for moment in story.timeline(run)
        if moment.step and moment.step <= run.last_step
        if moment.lane != story.CHECKPOINT
        if not (moment.lane == story.START and moment.text.startswith("ended"))
    ]


def _evaluation(run: RunFolder) -> str:
    """Returns the command that stores what the network of a run predicts."""
    data_dir = str(run.settings.get("data_dir") or "")
    return commands.of_run(data_dir, str(run.path))["Evaluate"]


def _timeline(runs: Sequence[RunFolder]) -> dict[str, Any]:
    tables, rows = [], []
    for number, run in enumerate(runs):
        moments, steps = story.timeline(run), run.steps_per_epoch
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        rows += [
            {
                "lane": prefix + moment.lane,
                "epoch": charts.short(moment.step / steps),
                "end": charts.short((moment.end_step or moment.step) / steps),
                "is_phase": moment.lane == story.PHASE,
                "text": moment.text,
                "color": _color(moment) or charts.color(number),
            }
            for moment in moments
            if steps and moment.step is not None
        ]
        caption = f"Events of {run.name}"
        if len(moments) > _MAX_ROWS:
            caption += f" (the last {_MAX_ROWS} of {len(moments):,})"
        latest = moments[-_MAX_ROWS:]
        events = [(words.moment(its.time), its.step, its.text) for its in latest]
        header = ("time (UTC)", "step", "event")
        tables.append((run.name, Table(caption, header, events, "events")))
    figure = Figure(
        "Phases, checkpoints, starts and faults",
        "Over epochs.",
        {"kind": "timeline", "rows": rows},
        f"Timeline of {len(rows):,} events; the table has them in words.",
    )
    return {"tables": tables, "figure": figure if rows else None}


def _color(moment: story.Moment) -> str:
    return "var(--fault)" if moment.lane == story.FAULT else ""


def _supervisor(run: RunFolder) -> dict[str, Any]:
    rows = [
        (words.moment(event["time"]), words.value(event.get("reason", "")))
        for event in run.events_of("supervisor")
    ]
    table = Table("Supervisor", ("time (UTC)", "what"), rows[-_MAX_ROWS:], "events")
    num_restarts = sum(reason.startswith("restart ") for _, reason in rows)
    return {"restarts": counted(num_restarts, "restart"), "table": table}
