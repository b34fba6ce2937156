"""Describes the plan of a run, in words and numbers. Needs no TensorFlow."""

import dataclasses
import itertools
import textwrap
from collections.abc import Callable, Sequence

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.explain import facts
from resnet.config.phases import Phase, PhaseSettings
from resnet.config.recipe import Recipe

WIDTH = 80  # The width of most terminals.
_NARROWEST_COLUMN = 16
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_COLUMNS = 48
# Settings of phases that have a column of their own, or a fixed place in a column.
_IN_COLUMNS = (
    "name",
    "schedule",
    "reset_momentum",
    "momentum",
    "weight_decay",
    "image_size",
    "augmentation",
    "min_crop_area",
    # These are in the line about local SGD.
    "sync_every",
    "qsr_coefficient",
    "local_velocities",
    "outer_momentum",
    "outer_nesterov",
    "outer_learning_rate",
)


def list_recipes(recipes: Sequence[Recipe]) -> str:
    """Returns a table of recipes: network, batch, length and published accuracy."""
    rows: list[Sequence[str]] = [
        ("recipe", "network, px", "batch", "epochs", "published"),
        (),
    ]
    rows += [
        (
            recipe.name,
            f"{recipe.model}, {recipe.image_size}",
            f"{recipe.global_batch_size:,}",
            f"{recipe.epochs:.3g}",
            recipe.published or "-",
        )
        for recipe in recipes
    ]
    return "\n".join(_columns(rows))


def describe_run(
    recipe: Recipe,
    config: Config,
    num_parts: int,
    changes: Sequence[str],
    exchange: str = "",
) -> str:
    """Returns the plan of a run: its settings, phases, learning rates and checkpoints.

    Args:
        recipe: The recipe that the settings come from.
        config: The settings of the run.
        num_parts: The number of parts of a global batch: of ranks, or of workers.
        changes: The differences from the recipe, as `describe_changes` returns them.
        exchange: What the ranks send of their gradients; empty for no such line.
    """
    lines = []
    labelled = facts.of_run(recipe, config, num_parts)
    if exchange:
        labelled.append(("exchange", exchange))
    for name, text in labelled:
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"{name:13}", subsequent_indent=" " * 13
        )
    lines += ["", *_tables(config), "", *_curves(config)]
    for title, sentences in (
        ("Changed from the recipe", changes),
        ("Deviations from the source", recipe.deviations),
    ):
        if sentences:
            lines += ["", f"{title}:"]
        for sentence in sentences:
            lines += textwrap.wrap(
                sentence, WIDTH, initial_indent="- ", subsequent_indent="  "
            )
    return "\n".join(lines)


def _tables(config: Config) -> list[str]:
    """Returns two tables with a row per phase: its steps and rates, its settings."""
    when: list[Sequence[str]] = [
        ("phase", "steps", "epochs", "images", "learning rate"),
        (),
    ]
    what: list[Sequence[str]] = [
        ("phase", "momentum", "weight decay", "training images"),
        (),
    ]
    for first, phase in facts.trained_phases(config):
        last = first + phase.num_steps - 1
        when.append(
            (
                phase.name,
                f"{first:,} to {last:,}",
                f"{config.epoch(first):.2f} to {config.epoch(last + 1):.2f}",
                facts.image_count(phase.num_steps * config.global_batch_size),
                _rates(config, first, phase),
            )
        )
        what.append(
            (
                phase.name,
                f"{phase.momentum:g}{', reset' if phase.reset_momentum else ''}",
                f"{phase.weight_decay:g}",
                _training_images(phase),
            )
        )
    return [*_columns(when), "", *_columns(what)]


def _rates(config: Config, first: int, phase: Phase) -> str:
    """Returns a phase's learning rates at its ends, after the warmup and at drops."""
    values = [
        f"{phases.learning_rate(config.phases, step):.4g}"
        for step in _corners(config, first, phase)
    ]
    return " > ".join(value for value, _ in itertools.groupby(values))


def _corners(config: Config, first: int, phase: Phase) -> list[int]:
    """Returns the first and last step of a phase, and those where the rate has a kink.

    Between two of these steps the learning rate is a smooth function of the step.
    """
    begin, schedule = phases.schedule_at(config.phases, first)
    steps = {first, first + phase.num_steps - 1}
    after = begin + int(schedule.warmup_length)
    inner = [after - 1, after]
    if schedule.decay == "steps":
        inner += [begin + int(boundary) for boundary in schedule.boundaries]
    steps.update(step for step in inner if min(steps) < step < max(steps))
    return sorted(steps)


def _training_images(phase: Phase) -> str:
    text = f"{phase.image_size} px, {phase.augmentation}"
    if phase.augmentation.startswith("random_resized_crop"):
        text += f" of {100 * phase.smallest_crop_area:g} to 100 %"
    for field in dataclasses.fields(PhaseSettings):
        value = getattr(phase, field.name)
        if field.name in _IN_COLUMNS or value == field.default:
            continue
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        # Spaces, so that a long list of layers can break between lines.
        text += f", {field.name} {shown.replace(',', ' ')}"
    return text


def curves(config: Config) -> dict[str, Callable[[int], float]]:
    """Returns the values that change over the steps, as functions of the step."""
    return {
        "learning rate": lambda step: phases.learning_rate(config.phases, step),
        "weight decay": lambda step: phases.at(config.phases, step).weight_decay,
        "momentum": lambda step: phases.at(config.phases, step).momentum,
    }


def _curves(config: Config) -> list[str]:
    """Returns a line of bars for each of the curves, over the steps of the run."""
    trained = facts.trained_phases(config)
    begin = trained[0][0]
    steps = config.train_steps - begin
    columns = min(_BAR_COLUMNS, steps)
    corners = [
        step for first, phase in trained for step in _corners(config, first, phase)
    ]
    lines = []
    for name, curve in curves(config).items():
        highest = max(map(curve, corners))
        values = [curve(begin + column * steps // columns) for column in range(columns)]
        bars = "".join(_bar(value / (highest or 1.0)) for value in values)
        lines.append(f"{name:15}{bars}  up to {highest:.4g}")
    return lines


def _bar(fraction: float) -> str:
    """Returns a bar of a fraction of the full height; it is blank only for 0."""
    return _BARS[max(round(fraction * (len(_BARS) - 1)), int(fraction > 0))]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines with aligned columns; an empty row becomes dashes.

    The texts of the last column are wrapped, so that lines are at most `WIDTH` long.
    """
    filled = [row for row in rows if row]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    left = WIDTH - sum(widths[:-1]) - len("  ") * len(widths[:-1])
    widths[-1] = min(widths[-1], max(left, _NARROWEST_COLUMN))
    lines = []
    for row in rows:
        cells = row or ["-" * width for width in widths]
        *texts, last = cells
        for part in textwrap.wrap(last, widths[-1]) or [""]:
            cells = [*texts, part]
            padded = map(str.ljust, cells, widths)
            lines.append("  ".join(padded).rstrip())
            texts = [""] * len(texts)
    return lines
