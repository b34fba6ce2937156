"""The page: one HTML file that tells the story of one or several runs."""

import functools
import time
from collections.abc import Sequence
from pathlib import Path

from resnet.base import atomic_files
from resnet.base.errors import UserError
from resnet.report import folder, markup, words
from resnet.report.charts import curves, javascript, vega_lite
from resnet.report.charts.figures import Figures
from resnet.report.charts.vega_lite import Mark
from resnet.report.folder import RunFolder
from resnet.report.markup import Html, tag
from resnet.report.sections import (
    classes,
    machine,
    settings_tables,
    study,
    summary,
    timeline,
)

_FOLDER = Path(__file__).parent
# The page loads nothing; Vega compiles its expressions.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline' 'unsafe-eval'"
)
_NO_CHARTS = (
    "The charts need the Python package vl-convert-python where the report is written;"
    " it is not installed. The tables have the same numbers."
)
_MAX_ROWS = 200  # Longest table of events.


def write(paths: Sequence[Path], out: Path) -> None:
    """Writes the page of runs to a file, atomically.

    Args:
        paths: The folders of the runs, or of studies.
        out: The file; its folder is created if it doesn't exist.

    Raises:
        UserError: If a path isn't a folder, or the file can't be written.
    """
    text = html_of(folder.read_all(paths))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.atomic_write_bytes(out, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(
            f"the report can't be written to {out}: {error.strerror}. Name another"
            " file with --out."
        ) from error


def html_of(found: Sequence[RunFolder]) -> str:
    """Returns the page of runs and studies."""
    runs = [one for one in found if one.study is None or one.settings or one.lines]
    figures = Figures()
    sections: list[tuple[str, str, Html]] = []

    def add(name: str, title: str, content: Html | None) -> None:
        if content is not None:
            sections.append((name, title, content))

    script = javascript.script()
    if runs:
        add("curves", "Curves", _curves(runs, figures))
        add("timeline", "What happened", _timeline(runs, figures))
        for number, run in enumerate(runs):
            of = f" of {run.name}" if len(runs) > 1 else ""
            if run.predictions:
                content = classes.section(run.predictions[-1], figures)
                add(f"predictions-{number}", f"Predictions{of}", content)
        if not any(run.predictions for run in runs):
            add("predictions", "Predictions", _no_predictions())
    for number, run in enumerate(runs):
        add(f"supervisor-{number}", f"Supervisor of {run.name}", _supervisor(run))
    for number, one in enumerate(found):
        if one.study is not None:
            title = f"Study {one.name}"
            add(f"study-{number}", title, study.section(one.study, figures))
    if runs:
        add("settings", "Settings", settings_tables.section(runs))
        add("machine", "Versions and machine", machine.section(runs))
    title = "Report of " + ", ".join(one.name for one in found)
    body = markup.join(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag("header", tag("h1", title), _summary(runs), _contents(sections)),
            tag(
                "main",
                _notes(found, has_charts=script is not None),
                *(
                    tag("section", tag("h2", heading), content, id=name)
                    for name, heading, content in sections
                ),
                id="content",
                tabindex=-1,
            ),
            tag("footer", f"Written by resnet-cpu, {words.moment(time.time())} UTC"),
            _scripts(script, figures),
        ]
    )
    return f"<!doctype html>\n{_document(title, body)}\n"


def _document(title: str, body: Html) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_text_of("style.css"))),
    )
    return tag("html", head, tag("body", body), lang="en")


def _scripts(script: str | None, figures: Figures) -> Html:
    if script is None or not figures.specs:
        return Html("")
    return markup.join(
        [
            tag("script", Html(script)),
            tag(
                "script",
                markup.in_script(figures.specs),
                type="application/json",
                id="charts",
            ),
            tag("script", Html(_text_of("page.js"))),
        ]
    )


@functools.cache
def _text_of(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _summary(runs: Sequence[RunFolder]) -> Html:
    if not runs:
        return Html("")
    if len(runs) == 1:
        lines = summary.lines(runs[0])
        return tag("div", *(tag("p", line) for line in lines), class_="summary")
    header, *rows = summary.comparison(runs)
    return markup.table("The runs compared", header, rows, "compared")


def _contents(sections: Sequence[tuple[str, str, Html]]) -> Html:
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in sections)
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _notes(found: Sequence[RunFolder], has_charts: bool) -> Html:
    """Returns what the page lacks, and why."""
    notes = [
        f"{one.name}: {note}" if len(found) > 1 else note
        for one in found
        for note in one.notes
    ]
    if not has_charts:
        notes.insert(0, _NO_CHARTS)
    if not notes:
        return Html("")
    return tag(
        "section",
        tag("h2", "What is missing"),
        tag("ul", *(tag("li", note) for note in notes)),
        class_="notes",
    )


def _curves(runs: Sequence[RunFolder], figures: Figures) -> Html | None:
    charts = curves.of_runs(runs)
    if not charts:
        return tag("p", "No metrics have been logged yet.")
    epochs = [curves.epoch_of(line) for run in runs for line in run.lines]
    marks = _marks(runs[0]) if len(runs) == 1 else []
    parts = [figures.add_chart(one, marks, max(epochs)) for one in charts]
    about = []
    if marks:
        about.append(
            tag("p", "Vertical lines: " + "; ".join(mark.text for mark in marks) + ".")
        )
    return markup.join([*about, tag("div", *parts, class_="charts")])


def _marks(run: RunFolder) -> list[Mark]:
    """Returns the beginnings of phases, restarts and faults of a run."""
    steps = timeline.steps_per_epoch(run)
    if not steps:
        return []
    return [
        Mark(one.step / steps, one.text, one.lane == timeline.FAULT)
        for one in timeline.of_run(run)
        if one.step and one.lane != timeline.CHECKPOINT and not _is_end(one)
        if one.step <= timeline.last_step(run)
    ]


def _is_end(one: timeline.Moment) -> bool:
    return one.lane == timeline.START and one.text.startswith("ended")


def _timeline(runs: Sequence[RunFolder], figures: Figures) -> Html:
    parts = []
    lanes: list[dict[str, object]] = []
    for number, run in enumerate(runs):
        moments = timeline.of_run(run)
        steps = timeline.steps_per_epoch(run)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        lanes += [
            {
                "lane": prefix + one.lane,
                "epoch": one.step / steps,
                "end": (one.end_step or one.step) / steps,
                "is_phase": one.lane == timeline.PHASE,
                "text": one.text,
                "color": _color(one, number),
            }
            for one in moments
            if steps and one.step is not None
        ]
        rows = [
            (
                words.moment(one.time) if one.time else words.MISSING,
                words.number(one.step),
                one.text,
            )
            for one in moments
        ]
        if not rows:
            parts.append(tag("p", f"Nothing is known of {run.name}."))
            continue
        caption = f"Events of {run.name}"
        if len(rows) > _MAX_ROWS:
            caption += f" (the last {_MAX_ROWS} of {len(rows):,})"
        parts.append(
            markup.table(
                caption, ("time (UTC)", "step", "event"), rows[-_MAX_ROWS:], "events"
            )
        )
    if not lanes:
        return markup.join(parts)
    table = markup.join(parts)
    return figures.add(
        "Phases, checkpoints, starts and faults",
        "Over epochs.",
        vega_lite.lanes(lanes),
        f"Timeline of {len(lanes):,} events; the table has them in words.",
        table,
        is_folded=False,
    )


def _color(one: timeline.Moment, number: int) -> str:
    return "var(--fault)" if one.lane == timeline.FAULT else vega_lite.color(number)


def _supervisor(run: RunFolder) -> Html | None:
    """Returns what the supervisor did; None if there was none."""
    events = [event for event in run.events if event["event"] == "supervisor"]
    if not events:
        return None
    restarts = [one for one in events if str(one.get("reason")).startswith("restart ")]
    rows = [
        (words.moment(event["time"]), words.value(event.get("reason", "")))
        for event in events[-_MAX_ROWS:]
    ]
    return markup.join(
        [
            tag("p", f"{len(restarts)} restart(s). The last word: {rows[-1][1]}."),
            markup.table(
                "What the supervisor did", ("time (UTC)", "what"), rows, "events"
            ),
        ]
    )


def _no_predictions() -> Html:
    command = "eval/resnet_eval.py --store_predictions"
    return tag(
        "p",
        "No predictions are stored. ",
        tag("code", command),
        " stores them: the accuracy of each class, confusions, wrong images and"
        " calibration then stand here.",
    )
