"""What a run would do, before it starts: `Derived` has the numbers, the rest the words.

Needs no TensorFlow.
"""

import dataclasses
import functools
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet.base import intervals
from resnet.base.text import WIDTH, hanging, listed
from resnet.config import networks, phases, resolve, rounds, rules
from resnet.config.config import Config
from resnet.config.phases import Phase, PhaseSettings
from resnet.config.recipe import NO_BOUND, Recipe, TrainingSettings
from resnet.config.rules import num_workers

_LABEL_WIDTH = 13
_NARROWEST_COLUMN = 16
_BARS = " ▁▂▃▄▅▆▇█"
_BAR_COLUMNS = 48
# RESULTS.md, "Memory": ResNet-50 on 2 ranks with 32 images each took 3,347 MiB in
# float32 and 2,180 MiB in bfloat16. The difference gives the bytes of an activation,
# the rest those of TensorFlow, the program and its input.
_COPIES_OF_ACTIVATIONS = 1.72
_PROGRAM_BYTES = 756 << 20
_BYTES_PER_VALUE = {"bf16": 2}  # Bytes of an activation where they aren't float32's.
# Settings of phases that have a column of their own, or a fixed place in a column or in
# the line about local SGD.
_IN_COLUMNS = (
    *("name", "schedule", "reset_momentum", "momentum", "weight_decay"),
    *("image_size", "augmentation", "min_crop_area"),
    *("sync_every", "qsr_coefficient", "local_velocities"),
    *("outer_momentum", "outer_nesterov", "outer_learning_rate"),
)
_COMPARED = [
    field.name
    for field in dataclasses.fields(TrainingSettings)
    if field.name != "global_batch_size"
]


@dataclass(frozen=True)
class TrainedPhase:
    """A phase that a run trains.

    Attributes:
        settings: The phase.
        first_step: Its first step.
        warmup_steps: The length of the warmup that begins with it.
        peak_rate: The learning rate that this leads to; else that of the first step.
        corners: Its first and last step, and those where the learning rate has a kink;
            between two of them the rate is a smooth function of the step.
        rates: The learning rates at the corners.
    """

    settings: Phase
    first_step: int
    warmup_steps: int
    peak_rate: float
    corners: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def end_step(self) -> int:
        """The step behind the last one."""
        return self.first_step + self.settings.num_steps


@dataclass(frozen=True)
class Derived:
    """What follows from the settings of a run.

    Attributes:
        config: The settings.
        num_parts: The number of parts of a global batch, of `num_parts`.
        num_classes: The number of classes that parameters are counted for; by default
            that of CIFAR-10 or ImageNet, as the network has it.
    """

    config: Config
    num_parts: int
    num_classes: int = 0

    def __post_init__(self) -> None:
        if not self.num_classes:
            usual = networks.MODELS[self.config.model].usual_classes
            object.__setattr__(self, "num_classes", usual)

    @property
    def first_step(self) -> int:
        """The step that the run begins with."""
        return phases.first_step(self.config.phases, self.config.first_phase)

    @property
    def num_steps(self) -> int:
        """The steps from the first one to the end of the schedules."""
        return self.config.train_steps - self.first_step

    @property
    def micro_batch_size(self) -> int:
        """The number of examples that a part works on at a time."""
        parts = self.num_parts * self.config.accumulation_steps
        return self.config.global_batch_size // parts

    @functools.cached_property
    def phases(self) -> tuple[TrainedPhase, ...]:
        """The phases that the run trains."""
        firsts = phases.first_steps(self.config.phases)
        pairs = zip(firsts, self.config.phases, strict=True)
        return tuple(
            self._phase(first, phase)
            for first, phase in pairs
            if first >= self.first_step
        )

    def _phase(self, first: int, phase: Phase) -> TrainedPhase:
        begin, schedule = phases.schedule_at(self.config.phases, first)
        last = first + phase.num_steps - 1
        after_warmup = begin + int(schedule.warmup_length)
        inner = [after_warmup - 1, after_warmup]
        if schedule.decay == "steps":
            inner += [begin + int(boundary) for boundary in schedule.boundaries]
        corners = {first, last, *(step for step in inner if first < step < last)}
        rate = self.curves["learning rate"]
        warmup = 0
        if begin == first:
            warmup = min(int(schedule.warmup_length), phase.num_steps)
        return TrainedPhase(
            settings=phase,
            first_step=first,
            warmup_steps=warmup,
            corners=tuple(sorted(corners)),
            rates=tuple(rate(step) for step in sorted(corners)),
            peak_rate=schedule.peak_value if warmup else rate(first),
        )

    @property
    def curves(self) -> dict[str, Callable[[int], float]]:
        """The values that change over the steps, as functions of the step."""
        of_run = self.config.phases
        return {
            "learning rate": lambda step: phases.learning_rate(of_run, step),
            "weight decay": lambda step: phases.at(of_run, step).weight_decay,
            "momentum": lambda step: phases.at(of_run, step).momentum,
        }

    @property
    def num_parameters(self) -> int:
        """The number of trainable values."""
        config = self.config
        return networks.num_parameters(config.model, self.num_classes, config.se_ratio)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of a step, in float32."""
        return 4 * self.num_parameters

    @property
    def rank_memory_bytes(self) -> int:
        """An estimate of the memory of a rank.

        It is that of the program, of weights, gradients and velocities, of what else
        has their size (EMA, Lookahead, sums of micro-batches, residuals, two copies of
        outer momentum), all in float32, and of the activations of one micro-batch.
        """
        config = self.config
        num_copies = 3 + (config.ema_decay > 0) + (config.lookahead_every > 0)
        num_copies += config.accumulation_steps > 1
        num_copies += config.compress != "none" and config.keeps_residuals
        num_copies += 2 * any(phase.outer_momentum for phase in config.phases)
        image_size = max(phase.image_size for phase in config.phases)
        image_bytes = networks.num_activations(config.model, image_size)
        image_bytes *= _BYTES_PER_VALUE.get(config.precision, 4)
        activations = _COPIES_OF_ACTIVATIONS * self.micro_batch_size * image_bytes
        return (
            _PROGRAM_BYTES
            + num_copies * self.gradient_bytes
            + round(activations)
            + config.decoded_cache_mb * 10**6
        )


def num_parts(config: Config, num_ranks: int) -> int:
    """Returns the number of parts of a global batch: of the ranks, or of the workers.

    Raises:
        UserError: If an asynchronous run has no rank left for a worker.
    """
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
    """Returns the plan of a run: its settings, phases, learning rates and checkpoints.

    Args:
        overrides: The overrides from which `resolve.resolve` made the settings.
        exchange: What the ranks send of their gradients; empty for no such line.
    """
    lines = []
    for label, text in _facts(recipe, derived, exchange):
        lines += hanging(f"{label:{_LABEL_WIDTH}}", text)
    lines += ["", *_tables(derived), "", *_bars(derived)]
    changes = describe_changes(recipe, overrides, derived)
    lines += listed("Changed from the recipe", changes)
    lines += listed("Deviations from the source", recipe.deviations)
    return "\n".join(lines)


def _facts(
    recipe: Recipe, derived: Derived, exchange: str
) -> Iterator[tuple[str, str]]:
    """Yields the label and the text of each line about the run as a whole."""
    config, first, steps = derived.config, derived.first_step, derived.num_steps
    batch = batch_of(derived, "worker(s)" if config.is_async else "rank(s)")
    images = _image_count(steps * config.global_batch_size)
    length = f"{steps:,} steps = {config.epoch(steps):.2f} epochs = {images} images"
    if config.last_step < config.train_steps:
        length += f"; training stops after step {config.last_step:,}"
    yield "recipe", f"{recipe.name}, from {recipe.source}"
    yield "published", recipe.published or "nothing"
    yield "network", _network(config)
    yield "examples", f"{config.num_train_examples:,}"
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
        text = f"{config.num_ps:,} parameter server(s), staleness {bound}"
        if config.staleness_rate == "inverse":
            text += ", learning rate divided by it"
        yield "asynchronous", text
    if config.first_phase or config.initial_weights:
        weights = "random initialization (--initial_weights would change that)"
        if config.initial_weights:
            weights = f"weights from {config.initial_weights}"
        name = derived.phases[0].settings.name
        yield "start", f"phase {name} at step {first:,}, {weights}"
    if exchange:
        yield "exchange", exchange


def batch_of(derived: Derived, parts: str) -> str:
    """Returns the global batch as a product, with a name for those that share it."""
    config = derived.config
    text = f"{config.global_batch_size:,} = {derived.num_parts:,} {parts}"
    text += f" x {derived.micro_batch_size}"
    if config.accumulation_steps > 1:
        text += f" x {config.accumulation_steps} micro-batches"
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
    text += f" in {config.precision}, evaluated at {config.image_size} px, batch"
    text += f" normalization with momentum {config.batch_norm_momentum:g}"
    if config.batch_norm_epsilon != Config.batch_norm_epsilon:
        text += f", epsilon {config.batch_norm_epsilon:g}"
    return f"{text}, gamma fixed to 1" if config.fixed_gamma else text


def _optimizer(config: Config) -> str:
    adamw = f"AdamW (beta2 {config.adam_beta2:g}, epsilon {config.adam_epsilon:g})"
    text = {
        "momentum": "momentum",
        "sgdw": "momentum and decoupled weight decay (SGDW)",
        "adamw": f"{adamw}, momentum",
        "lars": f"LARS, trust coefficient {config.trust_coefficient:g}, momentum",
        "muon": f"Muon for convolutions (momentum {config.muon_momentum:g}), momentum",
    }[config.optimizer]
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


def _rounds(config: Config, trained: TrainedPhase) -> str:
    """Returns how often the ranks average their weights in a phase, and its cost.

    The cost counts exchanged values: those of the weights and, if they are averaged, of
    the velocities, against those of the gradients in each step.
    """
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
    return f"{text}; sends {percent} of the bytes of gradients in each step"


def _evaluations(config: Config) -> str:
    if config.mode == "train":
        return "none"
    text = "after the last step"
    if config.last_step < config.train_steps:
        text = "only of the whole run, after its last step"
    text += f", {config.eval_crop} with a center crop of {config.eval_crop_fraction:g}"
    if config.eval_views != "center":
        text += f", test-time augmentation {config.eval_views}"
    if config.recalibration_batches:
        text += f", PreciseBN with {config.recalibration_batches:,} batches"
    if config.eval_every:
        text += f", and every {intervals.parse(config.eval_every, '--eval_every')}"
    if config.stop_at_top1:
        text += f"; the run stops when top-1 reaches {100 * config.stop_at_top1:g} %"
    return text


def _checkpoints(derived: Derived) -> str:
    config = derived.config
    every = intervals.parse(config.checkpoint_every, "--checkpoint_every")
    text = f"every {every}"
    if every.unit != "minute":
        text += f" (after {_first_and_last(derived, every)} steps)"
    text += f"; kept are the newest {config.keep_checkpoints}, the best, and "
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
    """Returns a number of images as text, in millions from a million on."""
    return f"{images / 1e6:,.2f} million" if images >= 1e6 else f"{images:,}"


def _tables(derived: Derived) -> list[str]:
    """Returns two tables with a row per phase: its steps and rates, its settings."""
    config = derived.config
    when, what = [], []
    for trained in derived.phases:
        phase, first, end = trained.settings, trained.first_step, trained.end_step
        rates = (f"{rate:.4g}" for rate in trained.rates)
        when.append(
            (
                phase.name,
                f"{first:,} to {end - 1:,}",
                f"{config.epoch(first):.2f} to {config.epoch(end):.2f}",
                _image_count(phase.num_steps * config.global_batch_size),
                " > ".join(rate for rate, _ in itertools.groupby(rates)),
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
    return [
        *_columns(("phase", "steps", "epochs", "images", "learning rate"), when),
        "",
        *_columns(("phase", "momentum", "weight decay", "training images"), what),
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
    """Returns a line of bars for each of the curves, over the steps of the run."""
    begin, steps = derived.first_step, derived.num_steps
    columns = min(_BAR_COLUMNS, steps)
    lines = []
    for name, curve in derived.curves.items():
        corners = (step for trained in derived.phases for step in trained.corners)
        highest = max(map(curve, corners))
        values = [curve(begin + column * steps // columns) for column in range(columns)]
        bars = "".join(_bar(value / (highest or 1.0)) for value in values)
        lines.append(f"{name:15}{bars}  up to {highest:.4g}")
    return lines


def _bar(fraction: float) -> str:
    """Returns a bar of a fraction of the full height; it is blank only for 0."""
    return _BARS[max(round(fraction * (len(_BARS) - 1)), int(fraction > 0))]


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as lines with aligned columns.

    The texts of the last column are wrapped, so that lines are at most `WIDTH` long.
    """
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
    """Returns a phrase for each difference between a run and its recipe.

    The arguments are those of `describe_run`.
    """
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
        if keeps_epochs:
            text += ": lengths stay those of the recipe in epochs"
        yield text
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
    text = f"{scale:.4g} times the length of the recipe"
    schedule = recipe.phases[-1].schedule
    is_given = "warmup_steps" in overrides or "warmup_epochs" in overrides
    if len(recipe.phases) > 1:
        text += ", in each phase and its warmup"
    elif schedule and schedule.warmup_length and not is_given:
        text += "; the warmup keeps its length"
    yield text


def _overridden(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config
) -> Iterator[str]:
    for name in rules.RATE_SETTINGS:
        if name in overrides:
            consequence = _consequence(recipe, overrides, config, name)
            yield f"{name} = {overrides[name]} as given{consequence}"
    # The size of the images is a setting of the phases, and one of evaluation.
    originals = [
        *((name, getattr(recipe.phases[0], name)) for name in rules.PHASE_SETTINGS),
        *((name, getattr(recipe, name)) for name in _COMPARED),
    ]
    for name, original in originals:
        value = overrides.get(name, original)
        if original is not None and value != original:
            consequence = _consequence(recipe, overrides, config, name)
            yield f"{name} = {value} as given instead of {original}{consequence}"


def _consequence(
    recipe: Recipe, overrides: Mapping[str, Any], config: Config, name: str
) -> str:
    """Returns a clause about what else an override changes, or what to change too."""
    original, schedule = recipe.phases[0].schedule, config.phases[0].schedule
    text = ""
    if name == "base_learning_rate" and schedule:
        if "peak_learning_rate" not in overrides:
            text = ": the peak learning rate stays"
            if original and original.init_value and overrides[name]:
                text = ": the peak learning rate changes in proportion, to"
                text += f" {schedule.peak_value:.4g}"
        if not schedule.warmup_length:
            text += "; it is not used, since there is no warmup"
    elif name == "peak_learning_rate" and "base_learning_rate" not in overrides:
        is_flat = schedule and schedule.init_value == schedule.peak_value
        if original and schedule and schedule.warmup_length and is_flat:
            text = ": the learning rate of step 0 is lowered to it too, since the rate"
            text += " can't fall in a warmup"
    elif name == "optimizer" and "peak_learning_rate" not in overrides:
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
