"""The section of a study of compression (`eval/lab/compression_study.py`)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from resnet.config.compression import CompressionSettings
from resnet.report import markup, words
from resnet.report.charts import vega_lite
from resnet.report.charts.figures import Figures
from resnet.report.markup import Html, tag
from resnet.report.words import MISSING, number

_DENSE = "dense"
_DEFAULTS = CompressionSettings()
_NAMED = ("method", "compress")


def section(study: Mapping[str, Any], figures: Figures) -> Html:
    """Returns chart and table of a study's results.

    Args:
        study: The contents of `study.json`, of whatever version.
        figures: The charts of the page.
    """
    by_row = _by_row(study)
    shared = study.get("shared")
    about = ""
    if isinstance(shared, dict):
        about = ", ".join(f"{key} {words.value(one)}" for key, one in shared.items())
    if not by_row:
        return tag("p", "The study has no results yet.")
    rows = [_row(name, results) for name, results in by_row.items()]
    ways = list(dict.fromkeys(one["way"] for one in rows))
    points = [
        {**one, "color": vega_lite.color(index)}
        for index, one in enumerate(rows)
        if one["top1"] is not None and one["bytes"]
    ]
    table = markup.table(
        "Results of the study",
        *(
            (
                *("method", "top-1, %: median (min to max)"),
                *("trainings", "bytes per step"),
            ),
            [(one["name"], one["accuracy"], one["count"], one["size"]) for one in rows],
        ),
    )
    figure = figures.add(
        "Top-1 over bytes, %",
        "The median over the seeds of each method." + _ways(ways),
        vega_lite.scatter(points),
        "Scatter chart of top-1 over the bytes of the coded gradients. "
        + " ".join(f"{one['name']}: {one['accuracy']}." for one in rows),
        table,
        is_folded=False,
    )
    return markup.join([*([tag("p", about)] if about else []), figure])


def _ways(ways: Sequence[str]) -> str:
    return f" Shapes tell {' and '.join(ways)} apart." if len(ways) > 1 else ""


def _by_row(study: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    runs = study.get("runs")
    for run in runs if isinstance(runs, list) else []:
        if not isinstance(run, dict) or not isinstance(run.get("result"), dict):
            continue
        row = run.get("row")
        name = _name(row) if isinstance(row, dict) and row else _DENSE
        found.setdefault(name, []).append(run["result"])
    return found


def _name(row: Mapping[str, Any]) -> str:
    """Returns the method of a row, its way and the parameters that aren't defaults."""
    parts = [words.value(row.get(key, getattr(_DEFAULTS, key))) for key in _NAMED]
    parts += [f"{key}={words.value(row[key])}" for key in row if key not in _NAMED]
    return ", ".join(parts)


def _row(name: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accuracies = [
        100 * one["top1"] for one in results if isinstance(one.get("top1"), float)
    ]
    stated = [one.get("message_bytes") for one in results]
    sizes = [size for size in stated if isinstance(size, int | float) and size > 0]
    top1 = statistics.median(accuracies) if accuracies else None
    num_diverged = len(results) - len(accuracies)
    texts = [f"{num_diverged} diverged"] if num_diverged else []
    if len(accuracies) > 1:
        between = f"{min(accuracies):.2f} to {max(accuracies):.2f}"
        texts.insert(0, f"{top1:.2f} ({between})")
    elif accuracies:
        texts.insert(0, f"{top1:.2f}")
    size = statistics.median(sizes) if sizes else 0
    way = "entire model" if "entiremodel" in name else "layer by layer"
    return {
        "name": name,
        "way": _DENSE if name == _DENSE else way,
        "top1": top1,
        "bytes": size,
        "accuracy": ", ".join(texts),
        "count": str(len(results)),
        "size": number(round(size)) if size else MISSING,
    }
