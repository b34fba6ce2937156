"""The section of a study of compression (`eval/lab/compression_study.py`)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from resnet.config.compression import CompressionSettings
from resnet.report import charts, words
from resnet.report.charts import Figure, Table

_DENSE = "dense"
_DEFAULTS = CompressionSettings()
_NAMED = ("method", "compress")


def section(study: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the page's section "study" shows of the contents of `study.json`."""
    by_row: dict[str, list[Mapping[str, Any]]] = {}
    runs = study.get("runs")
    for run in runs if isinstance(runs, list) else []:
        if isinstance(run, dict) and isinstance(run.get("result"), dict):
            by_row.setdefault(_name(run.get("row")), []).append(run["result"])
    shared = study.get("shared")
    pairs = shared.items() if isinstance(shared, dict) else ()
    rows = [_row(name, results) for name, results in by_row.items()]
    about = ", ".join(f"{key} {words.value(value)}" for key, value in pairs)
    return {"about": about, "figure": _figure(rows) if rows else None}


def _figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    about = "The median over the seeds of each method."
    ways = list(dict.fromkeys(row["way"] for row in rows))
    if len(ways) > 1:
        about += f" Shapes tell {' and '.join(ways)} apart."
    points = [
        {**row, "color": charts.color(index)}
        for index, row in enumerate(rows)
        if row["top1"] is not None and row["bytes"]
    ]
    table = Table(
        "Results of the study",
        ("method", "top-1, %: median (min to max)", "trainings", "bytes per step"),
        [(row["name"], row["accuracy"], row["count"], row["size"]) for row in rows],
    )
    return Figure(
        "Top-1 over bytes, %",
        about,
        {"kind": "study", "rows": points},
        "Scatter chart of top-1 over the bytes of the coded gradients. "
        + " ".join(f"{row['name']}: {row['accuracy']}." for row in rows),
        table,
    )


def _name(row: Any) -> str:
    """Returns the method of a row, its way and the parameters that aren't defaults."""
    if not isinstance(row, dict) or not row:
        return _DENSE
    parts = [words.value(row.get(key, getattr(_DEFAULTS, key))) for key in _NAMED]
    parts += [f"{key}={words.value(row[key])}" for key in row if key not in _NAMED]
    return ", ".join(parts)


def _row(name: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    top1s = (result.get("top1") for result in results)
    percents = [100 * top1 for top1 in top1s if isinstance(top1, float)]
    stated = [result.get("message_bytes") for result in results]
    sizes = [size for size in stated if isinstance(size, int | float) and size > 0]
    top1 = statistics.median(percents) if percents else None
    texts = [f"{top1:.2f}"] if percents else []
    if len(percents) > 1:
        texts = [f"{top1:.2f} ({min(percents):.2f} to {max(percents):.2f})"]
    if num_diverged := len(results) - len(percents):
        texts.append(f"{num_diverged} diverged")
    size = statistics.median(sizes) if sizes else 0
    way = "entire model" if "entiremodel" in name else "layer by layer"
    return {
        "name": name,
        "way": _DENSE if name == _DENSE else way,
        "top1": top1,
        "bytes": size,
        "accuracy": ", ".join(texts),
        "count": len(results),
        "size": round(size) if size else None,
    }
