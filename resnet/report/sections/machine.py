"""The versions and the machines of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from resnet.report import markup, words
from resnet.report.folder import RunFolder
from resnet.report.markup import Html, tag
from resnet.report.sections import summary

_MAX_HOSTS = 64
_FACTS = {  # Labels of the facts about the last start.
    "cpu": "CPU",
    "cores": "cores of rank 0's host",
}


def section(runs: Sequence[RunFolder]) -> Html:
    """Returns the tables of versions and machines, with a column for each run."""
    columns = [_facts(run) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    if not names:
        return tag(
            "p",
            "Neither a checkpoint nor history.jsonl has the versions and the machine.",
        )
    rows = [
        (name, *(words.value(column.get(name, words.MISSING)) for column in columns))
        for name in names
    ]
    names_of_runs = [run.name for run in runs] if len(runs) > 1 else ["value"]
    header = ("name", *names_of_runs)
    parts = [markup.table("Versions and machine", header, rows)]
    for run in runs:
        if hosts := _hosts(run):
            listed = [(host, str(count)) for host, count in hosts][:_MAX_HOSTS]
            caption = f"Ranks on each host, {run.name}"
            if len(hosts) > len(listed):
                caption += f" (the first {len(listed)} of {len(hosts):,})"
            table = markup.table(caption, ("host", "ranks"), listed)
            parts.append(markup.folded(f"{len(hosts):,} host(s) of {run.name}", table))
    return markup.join(parts)


def _facts(run: RunFolder) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for saved in reversed(run.checkpoints):
        if isinstance(installed := saved.metadata.get("installation"), Mapping):
            facts.update(installed)
            break
    if (ranks := summary.num_ranks(run)) is not None:
        facts["ranks"] = ranks
    start = last_start(run)
    if isinstance(installed := start.get("installation"), Mapping):
        facts.update(installed)
    facts.update(
        {text: start[name] for name, text in _FACTS.items() if start.get(name)}
    )
    return facts


def last_start(run: RunFolder) -> Mapping[str, Any]:
    """Returns the event of the last start; empty if none is logged."""
    starts = [event for event in run.events if event["event"] == "start"]
    return starts[-1] if starts else {}


def _hosts(run: RunFolder) -> list[tuple[str, Any]]:
    hosts = last_start(run).get("hosts")
    return list(hosts.items()) if isinstance(hosts, dict) else []
