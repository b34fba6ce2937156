"""The lines of a planned run about the run as a whole. Needs no TensorFlow."""

import itertools

from resnet.base import intervals
from resnet.base.intervals import Interval
from resnet.config import phases, rounds
from resnet.config.asynchrony import NO_BOUND
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.recipe import Recipe


def of_run(recipe: Recipe, config: Config, num_parts: int) -> list[tuple[str, str]]:
    """Returns the label and the text of each line about the run as a whole."""
    batch = config.global_batch_size
    first = phases.first_step(config.phases, config.first_phase)
    steps = config.train_steps - first
    length = f"{steps:,} steps = {config.epoch(steps):.2f} epochs ="
    length += f" {image_count(steps * batch)} images"
    if config.last_step < config.train_steps:
        length += f"; training stops after step {config.last_step:,}"
    of_whom = "worker(s)" if config.is_async else "rank(s)"
    share = (
        f"{num_parts:,} {of_whom} x {batch // num_parts // config.accumulation_steps}"
    )
    if config.accumulation_steps > 1:
        share += f" x {config.accumulation_steps} micro-batches"
    lines = [
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
    lines += [
        ("local SGD", _rounds(config, first_step, phase))
        for first_step, phase in trained_phases(config)
        if phase.is_local
    ]
    if config.is_async:
        lines.append(("asynchronous", _asynchrony(config)))
    if config.first_phase or config.initial_weights:
        begin = phases.at(config.phases, first).name
        weights = "random initialization (--initial_weights would change that)"
        if config.initial_weights:
            weights = f"weights from {config.initial_weights}"
        lines.append(("start", f"phase {begin} at step {first:,}, {weights}"))
    return lines


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
        "adamw": (
            f"AdamW (beta2 {config.adam_beta2:g}, epsilon {config.adam_epsilon:g}),"
            " momentum"
        ),
        "lars": f"LARS, trust coefficient {config.trust_coefficient:g}, momentum",
        "muon": f"Muon for convolutions (momentum {config.muon_momentum:g}), momentum",
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
    text = "after the last step"
    if config.last_step < config.train_steps:
        text = "only of the whole run, after its last step"
    text += f", {config.eval_crop} with a center crop of"
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
        if first + phase.num_steps <= config.last_step
    ]
    if not ends:
        return f"{text}, and the last"
    return f"{text}, and those at the ends of phases: {', '.join(ends)}"


def _first_and_last(config: Config, every: Interval) -> str:
    """Returns a clause with the first steps at which an interval ends, and the last.

    It is empty for an interval in minutes.
    """
    if every.unit == "minute":
        return ""
    sizes = config.num_train_examples, config.global_batch_size
    begin, end = trained_phases(config)[0][0], config.last_step
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


def trained_phases(config: Config) -> list[tuple[int, Phase]]:
    """Returns the first step and the settings of each phase that the run trains."""
    begin = phases.first_step(config.phases, config.first_phase)
    firsts = phases.first_steps(config.phases)
    pairs = zip(firsts, config.phases, strict=True)
    return [(first, phase) for first, phase in pairs if first >= begin]


def image_count(images: int) -> str:
    """Returns a number of images as text, in millions from a million on."""
    return f"{images / 1e6:,.2f} million" if images >= 1e6 else f"{images:,}"
