"""The settings of runs: all of them, what differs from the recipe, and between runs."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resnet.base import settings
from resnet.base.errors import UserError
from resnet.config import recipe_file
from resnet.config.config import Config
from resnet.config.resolve import resolve
from resnet.report import markup, words
from resnet.report.folder import RunFolder
from resnet.report.markup import Html, tag

# A page of several runs names their folders anyway.
_NOT_COMPARED = ("model_dir",)
_MAX_OPEN = 30  # Settings of phases that differ; more are folded.


def section(runs: Sequence[RunFolder]) -> Html:
    """Returns the section of the settings."""
    known = [run for run in runs if run.settings]
    if not known:
        return tag("p", "The settings are not known.")
    parts: list[Html] = []
    if len(known) > 1:
        parts.append(_between_runs(known))
    parts += [_against_recipe(run, len(runs) > 1) for run in known]
    parts += [
        markup.folded(
            f"All settings of {run.name}",
            markup.table(
                f"Settings of {run.name}",
                ("setting", "value"),
                [(key, words.value(one)) for key, one in flattened(run.settings)],
            ),
        )
        for run in known
    ]
    return markup.join(parts)


def flattened(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the settings, those of phases and schedules one by one.

    Args:
        values: The contents of `config.json`, of whatever version.
    """
    for name, value in values.items():
        if name != "phases" or not isinstance(value, list | tuple):
            yield name, value
            continue
        for number, phase in enumerate(value, 1):
            if not isinstance(phase, dict):
                yield f"phase {number}", phase
                continue
            prefix = phase.get("name", number)
            for key, one in phase.items():
                if not isinstance(one, dict):
                    yield f"{prefix}: {key}", one
                    continue
                for inner, deepest in one.items():
                    yield f"{prefix}: {key}: {inner}", deepest


def _between_runs(runs: Sequence[RunFolder]) -> Html:
    all_settings = [dict(flattened(run.settings)) for run in runs]
    names = dict.fromkeys(name for one in all_settings for name in one)
    rows = [
        (name, *shown)
        for name in names
        if name not in _NOT_COMPARED
        for shown in [[_shown(one, name) for one in all_settings]]
        if len({repr(one.get(name)) for one in all_settings}) > 1
    ]
    if not rows:
        return tag("p", "The runs have the same settings.")
    header = ("setting", *(run.name for run in runs))
    of_phases = [row for row in rows if ": " in row[0]]
    if len(of_phases) <= _MAX_OPEN:
        return markup.table("Settings that differ between the runs", header, rows)
    others = [row for row in rows if row not in of_phases]
    whole = markup.table("Settings of phases that differ", header, of_phases)
    return markup.join(
        [
            markup.table("Settings that differ between the runs", header, others),
            markup.folded(f"{len(of_phases)} settings of phases that differ", whole),
        ]
    )


def _shown(values: Mapping[str, Any], name: str) -> str:
    return words.value(values[name]) if name in values else words.MISSING


def _against_recipe(run: RunFolder, has_others: bool) -> Html:
    """Returns what differs between a run and its recipe on the same data."""
    name = f"{run.name}: " if has_others else ""
    recipe = words.value(run.settings.get("recipe", "unknown"))
    expected = _of_recipe(run.config) if run.config is not None else None
    if expected is None or run.config is None:
        return tag("p", f"{name}The recipe {recipe} is not known to this program.")
    declared = settings.declarations(Config)
    original = dict(flattened(dataclasses.asdict(expected)))
    rows = [
        (key, words.value(original.get(key)), words.value(one))
        for key, one in flattened(dataclasses.asdict(run.config))
        if original.get(key) != one
        and (key not in declared or declared[key].decides_the_result)
    ]
    if not rows:
        return tag("p", f"{name}All settings are those of the recipe {recipe}.")
    caption = f"{name}Differences from the recipe {recipe}"
    return markup.table(caption, ("setting", "recipe", "run"), rows)


def _of_recipe(config: Config) -> Config | None:
    """Returns the settings of the recipe on the run's data; None if it isn't known."""
    try:
        return resolve(
            recipe_file.get(config.recipe),
            {},
            config.num_train_examples,
            config.class_names,
        )
    except (UserError, OSError, ValueError, TypeError):
        return None
