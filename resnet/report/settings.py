"""The settings of runs, their versions and their machines, as tables."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resnet.base import settings
from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.config.config import Config
from resnet.config.recipes import own
from resnet.config.resolve import resolve
from resnet.report import story, words
from resnet.report.charts import Table
from resnet.report.folder import RunFolder

_MAX_OPEN = 30  # Settings of phases that differ; more are folded.
_MAX_HOSTS = 64
# Of the last start, by their names on the page.
_FACTS = {
    "cpu": "CPU",
    "cores": "cores of rank 0's host",
    "command": "command",
    "git": "Git commit",
}


def flattened(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the settings of a `config.json`, also those of phases, one by one."""
    for name, value in values.items():
        if name != "phases" or not isinstance(value, list | tuple):
            yield name, value
            continue
        for number, phase in enumerate(value, 1):
            if not isinstance(phase, dict):
                yield f"phase {number}", phase
                continue
            prefix = phase.get("name", number)
            for key, setting in phase.items():
                parts = setting.items() if isinstance(setting, dict) else ()
                yield from ((f"{prefix}: {key}: {part}", its) for part, its in parts)
                if not isinstance(setting, dict):
                    yield f"{prefix}: {key}", setting


def section(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Returns what the page's section "settings" shows."""
    known = [run for run in runs if run.settings]
    compared, of_phases = _between_runs(known) if len(known) > 1 else (None, None)
    return {
        "is_compared": len(known) > 1,
        "compared": compared,
        "compared_phases": of_phases,
        "differences": [_against_recipe(run, len(runs) > 1) for run in known],
        "tables": [
            (f"All settings of {run.name}", _settings_table(run)) for run in known
        ],
    }


def _settings_table(run: RunFolder) -> Table:
    rows = [(key, words.value(value)) for key, value in flattened(run.settings)]
    return Table(f"Settings of {run.name}", ("setting", "value"), rows)


def _between_runs(runs: Sequence[RunFolder]) -> tuple[Table | None, Table | None]:
    """Returns the settings that differ; many of phases are in a second table."""
    of_runs = [dict(flattened(run.settings)) for run in runs]
    names = dict.fromkeys(name for of_run in of_runs for name in of_run)
    rows = [
        (name, *(words.value(of_run.get(name, words.MISSING)) for of_run in of_runs))
        for name in names
        if name != "model_dir"  # The page has its name anyway.
        and len({repr(of_run.get(name)) for of_run in of_runs}) > 1
    ]
    if not rows:
        return None, None
    title = "Settings that differ between the runs"
    header = ("setting", *(run.name for run in runs))
    of_phases = [row for row in rows if ": " in row[0]]
    if len(of_phases) <= _MAX_OPEN:
        return Table(title, header, rows), None
    others = [row for row in rows if row not in of_phases]
    whole = Table("Settings of phases that differ", header, of_phases)
    return Table(title, header, others), whole


def _against_recipe(run: RunFolder, has_others: bool) -> str | Table:
    """Returns what differs between a run and its recipe on the same data."""
    name = f"{run.name}: " if has_others else ""
    recipe = words.value(run.settings.get("recipe", "unknown"))
    expected = _of_recipe(run.config) if run.config is not None else None
    if expected is None or run.config is None:
        return f"{name}The recipe {recipe} is not known to this program."
    declared = settings.declarations(Config)
    original = dict(flattened(dataclasses.asdict(expected)))
    rows = [
        (key, words.value(original.get(key)), words.value(value))
        for key, value in flattened(dataclasses.asdict(run.config))
        if original.get(key) != value
        and not key.endswith("_sha256")
        and (key not in declared or declared[key].decides_the_result)
    ]
    if not rows:
        return f"{name}All settings are those of the recipe {recipe}."
    caption = f"{name}Differences from the recipe {recipe}"
    return Table(caption, ("setting", "recipe", "run"), rows)


def _of_recipe(config: Config) -> Config | None:
    """Returns the settings of the recipe on the run's data; None if it isn't known."""
    try:
        num_images, num_classes = config.num_train_examples, config.num_classes
        recipe = recipe_file.get(config.recipe)
        recipe = own.fitted(recipe, num_images, num_classes, config.median_side)
        classes = config.class_names, config.multi_label
        return resolve(recipe, {}, num_images, *classes)
    except (UserError, OSError, ValueError, TypeError):
        return None


def machines(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Returns what the page's section "machine" shows."""
    columns = [_facts(run) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [
        (name, *(words.value(column.get(name, words.MISSING)) for column in columns))
        for name in names
    ]
    header = ("name", *([run.name for run in runs] if len(runs) > 1 else ["value"]))
    return {
        "table": Table("Versions and machine", header, rows) if rows else None,
        "folded": [
            *(_hosts(run) for run in runs if names and story.hosts(run)),
            *(_packages(run) for run in runs if story.last_start(run).get("packages")),
        ],
    }


def _facts(run: RunFolder) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    start = story.last_start(run)
    for saved in run.checkpoints:
        if isinstance(installed := saved.metadata.get("installation"), Mapping):
            facts = dict(installed)
    if (ranks := story.num_ranks(run)) is not None:
        facts["ranks"] = ranks
    if isinstance(installed := start.get("installation"), Mapping):
        facts.update(installed)
    of_start = {text: start.get(name) for name, text in _FACTS.items()}
    return facts | {text: value for text, value in of_start.items() if value}


def _hosts(run: RunFolder) -> tuple[str, Table]:
    of_hosts = story.hosts(run)
    rows = [(host, str(count)) for host, count in of_hosts.items()][:_MAX_HOSTS]
    caption = f"Ranks on each host, {run.name}"
    if len(of_hosts) > len(rows):
        caption += f" (the first {len(rows)} of {len(of_hosts):,})"
    table = Table(caption, ("host", "ranks"), rows)
    return f"Hosts of {run.name}: {len(of_hosts):,}", table


def _packages(run: RunFolder) -> tuple[str, Table]:
    packages = story.last_start(run)["packages"]
    rows = list(packages.items()) if isinstance(packages, dict) else []
    table = Table(f"Packages of {run.name}", ("package", "version"), rows)
    return f"{len(rows):,} Python packages of {run.name}", table
