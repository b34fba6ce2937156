"""Describes the plan of a run, in words and numbers. Needs no TensorFlow."""

import dataclasses
import itertools
import textwrap
from collections.abc import Callable, Sequence

from resnet.config import intervals, phases, rounds
from resnet.config.asynchrony import NO_BOUND
from resnet.config.config import Config
from resnet.config.intervals import Interval
from resnet.config.phases import Phase, PhaseSettings
from resnet.config.recipe import Recipe

WIDTH = 80  # Of most terminals.
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
    facts = _facts(recipe, config, num_parts)
    if exchange:
        facts.append(("exchange", exchange))
    for name, text in facts:
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


def _facts(recipe: Recipe, config: Config, num_parts: int) -> list[tuple[str, str]]:
    """Returns the label and the text of each line about the run as a whole."""
    batch = config.global_batch_size
    first = phases.first_step(config.phases, config.first_phase)
    steps = config.train_steps - first
    length = f"{steps:,} steps = {config.epoch(steps):.2f} epochs ="
    length += f" {_count(steps * batch)} images"
    if config.last_step < config.train_steps:
        length += f"; training stops after step {config.last_step:,}"
    of_whom = "worker(s)" if config.is_async else "rank(s)"
    share = (
        f"{num_parts:,} {of_whom} x {batch // num_parts // config.accumulation_steps}"
    )
    if config.accumulation_steps > 1:
        share += f" x {config.accumulation_steps} micro-batches"
    facts = [
        ("recipe", f"{recipe.name}, from {recipe.source}"),
        ("published", recipe.published or "nothing"),
        (
            "network",
            f"{_network(config)} in {config.precision}, evaluated at"
            f" {config.image_size} px, {_batch_norm(config)}",
        ),
        ("examples", f"{config.num_train_examples:,}"),
        ("global batch", f"{batch:,} = {share}"),
        ("length", length),
        ("optimizer", _optimizer(config)),
        ("evaluation", _evaluations(config)),
        ("checkpoints", _checkpoints(config)),
    ]
    facts += [
        ("local SGD", _rounds(config, first_step, phase))
        for first_step, phase in trained_phases(config)
        if phase.is_local
    ]
    if config.is_async:
        facts.append(("asynchronous", _asynchrony(config)))
    if config.first_phase or config.initial_weights:
        begin = phases.at(config.phases, first).name
        weights = "random initialization (--initial_weights would change that)"
        if config.initial_weights:
            weights = f"weights from {config.initial_weights}"
        facts.append(("start", f"phase {begin} at step {first:,}, {weights}"))
    return facts


def _asynchrony(config: Config) -> str:
    text = f"{config.num_ps:,} parameter server(s), "
    if config.max_staleness == NO_BOUND:
        text += "staleness without bound"
    else:
        text += f"staleness of at most {config.max_staleness:,}"
    if config.staleness_rate == "inverse":
        text += ", learning rate divided by it"
    return text


def _network(config: Config) -> str:
    text = config.model
    if config.resnet_variant != Config.resnet_variant:
        text += f" of {config.resnet_variant}"
    if config.activation != Config.activation:
        text += f" with {config.activation}"
    if config.se_ratio:
        text += f", squeeze-and-excitation of ratio {config.se_ratio:g}"
    if config.blur_pool != Config.blur_pool:
        what = {"convolutions": "strided convolutions", "all": "all strided layers"}
        text += f", BlurPool in {what[config.blur_pool]}"
    return text


def _batch_norm(config: Config) -> str:
    text = f"batch normalization with momentum {config.batch_norm_momentum:g}"
    if config.batch_norm_epsilon != Config.batch_norm_epsilon:
        text += f", epsilon {config.batch_norm_epsilon:g}"
    if config.fixed_gamma:
        text += ", gamma fixed to 1"
    return text


def _optimizer(config: Config) -> str:
    parts = {
        "momentum": "momentum",
        "sgdw": "momentum and decoupled weight decay (SGDW)",
        "lars": f"LARS, trust coefficient {config.trust_coefficient:g}, momentum",
    }
    text = parts[config.optimizer]
    if config.nesterov:
        text += " with Nesterov"
    if config.learning_rate_in_velocity:
        text += ", Caffe-style (the velocity contains the learning rate)"
    if config.clip_norm:
        text += f", gradients clipped to a global norm of {config.clip_norm:g}"
    if config.ema_decay:
        text += f", moving average (EMA) of the weights with decay {config.ema_decay:g}"
    if config.lookahead_every:
        text += f", Lookahead every {config.lookahead_every:,} steps with decay"
        text += f" {config.lookahead_decay:g}"
        if config.lookahead_power:
            text += f" * (fraction of the run)^{config.lookahead_power:g}"
    return text


def _rounds(config: Config, first: int, phase: Phase) -> str:
    """Returns how often the ranks average their weights in a phase, and its cost.

    The cost counts exchanged values: those of the weights and, if they are averaged, of
    the velocities, against those of the gradients in each step.
    """
    index = phases.index_of(config.phases, first)
    bounds = rounds.bounds_of_phase(config.phases, index)
    lengths = [end - begin for begin, end in itertools.pairwise(bounds)]
    shortest = min(lengths[:-1] or lengths)  # The last round may be cut.
    steps = f"{shortest:,}"
    if max(lengths) > shortest:
        steps += f" to {max(lengths):,}"
    text = f"in phase {phase.name} the ranks average their weights every {steps} steps"
    if phase.qsr_coefficient:
        text += f" (QSR with c = {phase.qsr_coefficient:g})"
    text += f", {len(lengths):,} times in {phase.num_steps:,} steps; velocities: "
    text += phase.local_velocities
    if phase.outer_momentum:
        kind = " with Nesterov" if phase.outer_nesterov else ""
        text += f"; outer momentum {phase.outer_momentum:g}{kind}"
        text += f", outer learning rate {phase.outer_learning_rate:g}"
    sent = len(lengths) * (2 if phase.local_velocities == "average" else 1)
    share = 100 * sent / phase.num_steps
    return f"{text}; sends {share:.3g} % of the bytes of gradients in each step"


def _evaluations(config: Config) -> str:
    if config.mode == "train":
        return "none"
    text = f"after the last step, {config.eval_crop} with a center crop of"
    text += f" {config.eval_crop_fraction:g}"
    if config.eval_views != "center":
        text += f", test-time augmentation {config.eval_views}"
    if config.recalibration_batches:
        text += f", PreciseBN with {config.recalibration_batches:,} batches"
    if config.eval_every:
        interval = intervals.parse(config.eval_every, "--eval_every")
        text += f", and every {interval}"
    if config.stop_at_top1:
        text += f"; the run stops when top-1 reaches {100 * config.stop_at_top1:g} %"
    return text


def _checkpoints(config: Config) -> str:
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    text = f"every {every}{_first_and_last(config, every)}; kept are the newest"
    text += f" {config.keep_checkpoints}, the best"
    if len(config.phases) == 1:
        return f"{text}, and the last"
    ends = [
        f"{first + phase.num_steps:,} ({phase.name})"
        for first, phase in trained_phases(config)
    ]
    return f"{text}, and those at the ends of phases: {', '.join(ends)}"


def _first_and_last(config: Config, every: Interval) -> str:
    """Returns a clause with the first steps at which an interval ends, and the last.

    It is empty for an interval in minutes.
    """
    if every.unit == "minute":
        return ""
    sizes = config.num_train_examples, config.global_batch_size
    begin, end = trained_phases(config)[0][0], config.train_steps
    before = []
    step = begin
    for _ in range(2):
        step = every.next_end(step, *sizes)
        if step < end:
            step = rounds.next_synchronization(config.phases, step)
        if step < end:
            before.append(step)
    ends = [f"{step:,}" for step in before] + ["..."] * (len(before) == 2)
    return f" (after {', '.join([*ends, f'{end:,}'])} steps)"


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
    for first, phase in trained_phases(config):
        last = first + phase.num_steps - 1
        when.append(
            (
                phase.name,
                f"{first:,} to {last:,}",
                f"{config.epoch(first):.2f} to {config.epoch(last + 1):.2f}",
                _count(phase.num_steps * config.global_batch_size),
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


def trained_phases(config: Config) -> list[tuple[int, Phase]]:
    """Returns the first step and the settings of each phase that the run trains."""
    begin = phases.first_step(config.phases, config.first_phase)
    firsts = phases.first_steps(config.phases)
    pairs = zip(firsts, config.phases, strict=True)
    return [(first, phase) for first, phase in pairs if first >= begin]


def _count(images: int) -> str:
    """Returns a number of images as text, in millions from a million on."""
    return f"{images / 1e6:,.2f} million" if images >= 1e6 else f"{images:,}"


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
        if field.name not in _IN_COLUMNS and value != field.default:
            is_number = isinstance(value, float)
            text += (
                f", {field.name} {value:g}" if is_number else f", {field.name} {value}"
            )
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
    trained = trained_phases(config)
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
