"""What a run would do, in words, before it starts; `Derived` has the numbers."""

import dataclasses
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resnet.base import intervals
from resnet.base.settings import declarations
from resnet.base.text import WIDTH, counted, hanging, listed
from resnet.config import phases, resolve, rounds, rules
from resnet.config.config import BEST_METRICS, Config, Derived, TrainedPhase
from resnet.config.optimizers import OPTIMIZERS
from resnet.config.phases import DRAWN, Phase, PhaseSettings
from resnet.config.recipe import NO_BOUND, Recipe, TrainingSettings
from resnet.config.rules import num_workers

_LABEL_WIDTH = 13
_FEW_EXAMPLES = 8  # Fewer on a rank at a time are worth a warning.
_FEW_STEPS = 100  # So are fewer of a training that continues from other weights.
_NARROWEST_COLUMN = 16
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_COLUMNS = 48
_COLUMNS = DRAWN[::-1]  # Of the table of phases.
# Settings of phases that have a column of their own, or a fixed place in a column or in
# the line about local SGD.
_IN_COLUMNS = (
    *("name", "schedule", "reset_momentum", *DRAWN),
    *("image_size", "augmentation", "min_crop_area"),
    *("sync_every", "qsr_coefficient", "local_velocities"),
    *("outer_momentum", "outer_nesterov", "outer_learning_rate"),
)
_BLURRED = {"convolutions": "strided convolutions", "all": "all strided layers"}
# Clauses about settings that have not their default.
_OF_NETWORK = {
    "resnet_variant": " of {}",
    "activation": " with {}",
    "se_ratio": ", squeeze-and-excitation of ratio {:g}",
    "blur_pool": ", BlurPool in {}",
}
_OF_NORMALIZATION = {
    "batch_norm_epsilon": ", epsilon {:g}",
    "fixed_gamma": ", gamma fixed to 1",
}
_OF_OPTIMIZER = {
    "learning_rate_in_velocity": (
        ", Caffe-style (the velocity contains the learning rate)"
    ),
    "clip_norm": ", gradients clipped to a global norm of {:g}",
    "ema_decay": ", moving average (EMA) of the weights with decay {:g}",
    "lookahead_every": ", Lookahead every {:,} steps with decay {lookahead_decay:g}",
}
_OF_EVALUATION = {
    "eval_views": ", test-time augmentation {}",
    "recalibration_batches": ", PreciseBN with {:,} batches",
}


def num_parts(config: Config, num_ranks: int) -> int:
    """Returns the parts of a global batch: those of the ranks, or of the workers."""
    return num_workers(num_ranks, config.num_ps) if config.is_async else num_ranks


def list_recipes(recipes: Sequence[Recipe]) -> str:
    """Returns a table of recipes: network, batch, length and published accuracy."""
    header = ("recipe", "network, px", "batch", "epochs", "published")
    rows = [
        (
            recipe.name,
            f"{recipe.model}, {recipe.image_size}",
            f"{recipe.global_batch_size:,}",
            f"{recipe.epochs:.3g}",
            recipe.published or "-",
        )
        for recipe in recipes
    ]
    return "\n".join(_columns(header, rows))


def describe_run(
    recipe: Recipe, overrides: Mapping[str, Any], derived: Derived, exchange: str = ""
) -> str:
    """Returns the plan of a run, with what the ranks send if `exchange` says."""
    lines = []
    for label, text in _facts(recipe, derived, exchange):
        lines += hanging(f"{label:{_LABEL_WIDTH}}", text) if text else []
    lines += ["", *_tables(derived), "", *_bars(derived)]
    changes = describe_changes(recipe, overrides, derived)
    lines += listed("Why", [*recipe.reasons, *_reasons(derived.config)])
    lines += listed("Changed from the recipe", changes)
    lines += listed("Deviations from the source", recipe.deviations)
    lines += listed("Warnings", warnings(derived))
    return "\n".join(lines)


def _reasons(config: Config) -> Iterator[str]:
    """Yields why a run has settings that may look like a mistake."""
    last, size = config.phases[-1], config.image_size
    is_of_area = last.augmentation.startswith("random_resized_crop")
    if is_of_area and (trained := last.image_size or size) < size:
        yield (
            f"evaluated at {size} px, {size / trained:.3g} times the {trained} px of"
            " the last phase: objects look larger in random crops, which more pixels"
            " in evaluation make up for (Touvron et al. 2019, arXiv:1906.06423)"
        )


def warnings(derived: Derived) -> Iterator[str]:
    """Yields a sentence on each number that is valid, but rarely what is wanted."""
    config = derived.config
    if derived.micro_batch_size < _FEW_EXAMPLES <= config.global_batch_size:
        parts = config.global_batch_size // (_FEW_EXAMPLES * config.accumulation_steps)
        yield (
            f"{counted(derived.num_parts, 'rank')} have only"
            f" {counted(derived.micro_batch_size, 'image')}"
            " each at a time, too few to compute fast and for the statistics of batch"
            f" normalization: start at most {counted(max(parts, 1), 'rank')}, or give a"
            " larger --train_batch_size"
        )
    if config.train_steps < _FEW_STEPS and config.initial_weights:
        yield (
            f"the training has only {counted(config.train_steps, 'step')}: give a"
            " smaller --train_batch_size or more --train_epochs"
        )


def _facts(
    recipe: Recipe, derived: Derived, exchange: str
) -> Iterator[tuple[str, str]]:
    """Yields the label and the text of each line about the run as a whole."""
    config, first, steps = derived.config, derived.first_step, derived.num_steps
    batch = batch_of(derived, "worker" if config.is_async else "rank")
    images = _image_count(steps * config.global_batch_size)
    length = f"{steps:,} steps = {config.epoch(steps):.2f} epochs = {images} images"
    if config.last_step < config.train_steps:
        length += f"; training stops after step {config.last_step:,}"
    yield "recipe", f"{recipe.name}, from {recipe.source}"
    yield "published", recipe.published
    yield (
        "network",
        f"{config.model}{_clauses(_OF_NETWORK, config)} in {config.precision},"
        f" evaluated at {config.image_size} px, batch normalization with momentum"
        f" {config.batch_norm_momentum:g}{_clauses(_OF_NORMALIZATION, config)}",
    )
    several = f", several labels an image, {config.num_classes:,} in all"
    yield "examples", f"{config.num_train_examples:,}{several * config.multi_label}"
    yield "global batch", batch
    yield "length", length
    yield "optimizer", _optimizer(config)
    yield "evaluation", _evaluations(config)
    yield "checkpoints", _checkpoints(derived)
    for trained in derived.phases:
        if trained.settings.is_local:
            yield "local SGD", _rounds(config, trained)
    if config.is_async:
        bound = f"of at most {config.max_staleness:,}"
        if config.max_staleness == NO_BOUND:
            bound = "without bound"
        text = f"{counted(config.num_ps, 'parameter server')}, staleness {bound}"
        if config.staleness_rate == "inverse":
            text += ", learning rate divided by it"
        yield "asynchronous", text
    if config.first_phase or config.initial_weights:
        weights = "random initialization (--initial_weights would change that)"
        if config.initial_weights:
            weights = f"weights from {config.initial_weights}"
        name = derived.phases[0].settings.name
        yield "start", f"phase {name} at step {first:,}, {weights}"
    yield "exchange", exchange


def batch_of(derived: Derived, part: str) -> str:
    """Returns the global batch as a product, with a name for those that share it."""
    config = derived.config
    text = f"{config.global_batch_size:,} = {counted(derived.num_parts, part)}"
    text += f" x {derived.micro_batch_size}"
    if config.accumulation_steps > 1:
        text += f" x {config.accumulation_steps} micro-batches"
    return text


def _clauses(forms: Mapping[str, str], config: Config) -> str:
    values = vars(config) | {"blur_pool": _BLURRED.get(config.blur_pool)}
    return "".join(
        form.format(values[name], **values)
        for name, form in forms.items()
        if getattr(config, name) != getattr(Config, name)
    )


def _optimizer(config: Config) -> str:
    text = OPTIMIZERS[config.optimizer].description.format(**vars(config))
    text += " with Nesterov" if config.nesterov else ""
    text += _clauses(_OF_OPTIMIZER, config)
    if config.lookahead_every and config.lookahead_power:
        text += f" * (fraction of the run)^{config.lookahead_power:g}"
    return text


def _rounds(config: Config, trained: TrainedPhase) -> str:
    """Returns how often the ranks average their weights in a phase, and its cost."""
    phase = trained.settings
    index = phases.index_of(config.phases, trained.first_step)
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
    num_sent = len(lengths) * (2 if phase.local_velocities == "average" else 1)
    percent = f"{100 * num_sent / phase.num_steps:.3g} %"
    return f"{text}; sends {percent} of the bytes of an exchange in each step"


def _evaluations(config: Config) -> str:
    if config.mode == "train":
        return "none"
    text = "after the last step"
    if config.last_step < config.train_steps:
        text = "only of the whole run, after its last step"
    text += f", {config.eval_crop} with a center crop of {config.eval_crop_fraction:g}"
    text += _clauses(_OF_EVALUATION, config)
    if config.eval_every:
        text += f", and every {intervals.parse(config.eval_every, '--eval_every')}"
    if config.stop_at:
        name = BEST_METRICS[config.best_metric]
        text += f"; the run stops when {name} reaches {100 * config.stop_at:g} %"
    return text


def _checkpoints(derived: Derived) -> str:
    config = derived.config
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    text = f"every {every}"
    if every.unit != "minute":
        text += f" (after {_first_and_last(derived, every)} steps)"
    best = "the best"
    if config.best_metric != "top1" and not config.multi_label:
        best = f"that of the highest {BEST_METRICS[config.best_metric]}"
    text += f"; kept are the newest {config.keep_checkpoints}, {best}, and "
    ends = [
        f"{trained.end_step:,} ({trained.settings.name})"
        for trained in derived.phases
        if trained.end_step <= config.last_step
    ]
    if len(config.phases) == 1 or not ends:
        return f"{text}the last"
    return f"{text}those at the ends of phases: {', '.join(ends)}"


def _first_and_last(derived: Derived, every: intervals.Interval) -> str:
    """Returns the first two steps at which an interval ends, and the last step."""
    config = derived.config
    step, shown = derived.first_step, []
    for _ in range(2):
        step = every.next_end(step, config.num_train_examples, config.global_batch_size)
        if step < config.last_step:
            step = rounds.next_synchronization(config.phases, step)
        if step < config.last_step:
            shown.append(f"{step:,}")
    shown += ["..."] * (len(shown) == 2)
    return ", ".join([*shown, f"{config.last_step:,}"])


def _image_count(images: int) -> str:
    return f"{images / 1e6:,.2f} million" if images >= 1e6 else f"{images:,}"


def _tables(derived: Derived) -> list[str]:
    """Returns two tables with a row per phase: its steps and rates, its settings."""
    config = derived.config
    when, what = [], []
    for trained in derived.phases:
        phase, first, end = trained.settings, trained.first_step, trained.end_step
        rates = (f"{rate:.4g}" for rate in trained.rates)
        momentum, *others = (f"{getattr(phase, name):g}" for name in _COLUMNS)
        when.append(
            (
                phase.name,
                f"{first:,} to {end - 1:,}",
                f"{config.epoch(first):.2f} to {config.epoch(end):.2f}",
                _image_count(phase.num_steps * config.global_batch_size),
                " > ".join(rate for rate, _ in itertools.groupby(rates)),
            )
        )
        momentum += ", reset" if phase.reset_momentum else ""
        what.append((phase.name, momentum, *others, _training_images(phase)))
    names = [name.replace("_", " ") for name in _COLUMNS]
    note = OPTIMIZERS[config.optimizer].note.format(**vars(config))
    return [
        *_columns(("phase", "steps", "epochs", "images", "learning rate"), when),
        "",
        *_columns(("phase", *names, "training images"), what),
        *textwrap.wrap(note, WIDTH),
    ]


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


def _bars(derived: Derived) -> list[str]:
    """Returns a line of bars for each of the curves; a bar is blank only for 0."""
    begin, steps = derived.first_step, derived.num_steps
    columns = min(_BAR_COLUMNS, steps)
    lines = []
    for name, curve in derived.curves.items():
        corners = (step for trained in derived.phases for step in trained.corners)
        highest = max(map(curve, corners))
        values = [curve(begin + column * steps // columns) for column in range(columns)]
        heights = [value / (highest or 1.0) for value in values]
        bars = "".join(
            _BARS[max(round(height * (len(_BARS) - 1)), int(height > 0))]
            for height in heights
        )
        lines.append(f"{name:15}{bars}  up to {highest:.4g}")
    return lines


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as lines of at most `WIDTH`; its last column is wrapped."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = WIDTH - sum(widths[:-1]) - len("  ") * len(widths[:-1])
    widths[-1] = min(widths[-1], max(left, _NARROWEST_COLUMN))
    lines = []
    for *texts, last in (header, ["-" * width for width in widths], *rows):
        for part in textwrap.wrap(last, widths[-1]) or [""]:
            padded = map(str.ljust, [*texts, part], widths)
            lines.append("  ".join(padded).rstrip())
            texts = [""] * len(texts)
    return lines


def describe_changes(
    recipe: Recipe, overrides: Mapping[str, Any], derived: Derived
) -> list[str]:
    """Returns a phrase for each difference between a run and its recipe."""
    return [
        *_changed_data(recipe, overrides, derived),
        *_changed_length(recipe, overrides, derived.config),
        *_overridden(recipe, overrides, derived.config),
    ]


def _changed_data(
    recipe: Recipe, overrides: Mapping[str, Any], derived: Derived
) -> Iterator[str]:
    """Yields what other numbers of examples mean: of the set, a batch, and a rank."""
    config = derived.config
    keeps_epochs = {"train_steps", "train_epochs"}.isdisjoint(overrides)
    if config.num_train_examples != recipe.num_train_examples:
        text = f"{config.num_train_examples:,} training examples instead of"
        text += f" {recipe.num_train_examples:,}"
        lengths = ": lengths stay those of the recipe in epochs"
        yield text + (lengths if keeps_epochs else "")
    if config.global_batch_size != recipe.global_batch_size:
        text = f"global batch size {config.global_batch_size:,} instead of"
        text += f" {recipe.global_batch_size:,}"
        effects = _scaled_rates(recipe, overrides, config)
        if keeps_epochs:
            ratio = config.global_batch_size / recipe.global_batch_size
            effects.insert(0, f"the number of steps is divided by {ratio:.4g}")
        yield f"{text}: {', '.join(effects)}" if effects else text
    if recipe.rank_batch_size not in (0, derived.micro_batch_size):
        yield (
            "the statistics of batch normalization are over"
            f" {derived.micro_batch_size:,} examples, the micro-batch of a rank,"
            f" instead of {recipe.rank_batch_size:,}"
        )


def _scaled_rates(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> list[str]:
    """Returns clauses about the learning rates for another batch size."""
    if "peak_learning_rate" in overrides:
        return []
    if recipe.scaling == "none":
        return [
            "the learning rates are not scaled, since the source has no rule for that"
        ]
    factor = recipe.rate_factor(config.global_batch_size)
    clauses = [f"the learning rates are multiplied by {factor:.4g}"]
    original, schedule = recipe.phases[0].schedule, config.phases[0].schedule
    is_given = "base_learning_rate" in overrides
    if original and schedule and not original.init_value_scales and not is_given:
        clauses.append(f"except for that of step 0, which is {schedule.init_value:.4g}")
    return clauses


def _changed_length(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> Iterator[str]:
    scale = resolve.length_scale(recipe, overrides, config.steps_per_epoch)
    if abs(scale - 1) <= 1e-3:
        return
    if "train_epochs" in overrides:
        length = counted(overrides["train_epochs"], "epoch", ".6g")
        text = f"{length} instead of {recipe.epochs:.4g}: "
    else:
        length = counted(overrides["train_steps"], "step")
        text = f"{length} instead of {recipe.epochs * config.steps_per_epoch:,.0f}: "
    schedule = recipe.phases[-1].schedule
    is_given = "warmup_steps" in overrides or "warmup_epochs" in overrides
    if len(recipe.phases) > 1:
        text += f"each phase and its warmup are {scale:.4g} times as long"
    elif schedule and schedule.warmup_length and not is_given:
        text += f"{scale:.4g} times as long, but the warmup keeps its length"
    else:
        text += f"{scale:.4g} times as long"
    yield text


def _overridden(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> Iterator[str]:
    for name in rules.RATE_SETTINGS:
        if name in overrides:
            consequence = _consequence(recipe, overrides, config, name)
            yield f"{name} = {overrides[name]} as given{consequence}"
    # The size of the images is a setting of the phases, and one of evaluation.
    for kind, values in ((PhaseSettings, recipe.phases[0]), (TrainingSettings, recipe)):
        for name in declarations(kind):
            original = getattr(values, name)
            value = overrides.get(name, original)
            if name == "global_batch_size" or original in (None, value):
                continue
            consequence = _consequence(recipe, overrides, config, name)
            yield f"{name} = {value} as given instead of {original}{consequence}"


def _consequence(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config, name: str
) -> str:
    """Returns a clause about what else an override changes, or what to change too."""
    original, schedule = recipe.phases[0].schedule, config.phases[0].schedule
    if not original or not schedule:
        return ""
    text, has_peak = "", "peak_learning_rate" in overrides
    if name == "base_learning_rate":
        if not has_peak and original.init_value and overrides[name]:
            text = ": the peak learning rate changes in proportion, to"
            text += f" {schedule.peak_value:.4g}"
        elif not has_peak:
            text = ": the peak learning rate stays"
        if not schedule.warmup_length:
            text += "; it is not used, since there is no warmup"
    elif name == "peak_learning_rate" and "base_learning_rate" not in overrides:
        if schedule.warmup_length and schedule.init_value == schedule.peak_value:
            text = ": the learning rate of step 0 is lowered to it too, since the rate"
            text += " can't fall in a warmup"
    elif name == "optimizer" and not has_peak:
        text = ": the learning rates are not adjusted, so retune them for this"
        text += " optimizer"
        is_of_lars = recipe.learning_rate_in_velocity and not recipe.nesterov
        if overrides[name] == "lars" and not is_of_lars:
            text += "; neither is the form of the momentum (LARS's source has momentum"
            text += " without Nesterov and with the learning rate in the velocity)"
        if overrides[name] == "lars" and config.decay_batch_norm:
            text += "; biases and batch normalization's parameters no longer decay"
        if overrides[name] == "muon":
            text += "; convolutions no longer decay, and have the momentum"
            text += f" {config.muon_momentum:g} (muon_momentum)"
    return text
