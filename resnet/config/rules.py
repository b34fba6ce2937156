"""Which settings need or exclude which: one table, read by all that makes a run."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from resnet.base import names, settings
from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.config import Config
from resnet.config.networks import MODELS, ModelRow
from resnet.config.phases import Phase, PhaseSettings
from resnet.config.recipe import Recipe


@dataclass(frozen=True)
class Needs:
    """Settings that need others.

    All are terms, separated by spaces: "ema_decay" holds if the setting hasn't its
    default, "optimizer=sgdw|adamw" if it has one of these values. A rule is broken by a
    phase in which one of `names` and all of `when` hold, and none of `others`.
    """

    names: str
    others: str
    because: str = ""
    when: str = ""
    in_first_phase: bool = False  # Only the phase counts that the run begins with.


class Excludes(Needs):
    """Settings that exclude others: a phase has none of these, or none of those."""


def _models(is_meant: Callable[[ModelRow], bool]) -> str:
    """Returns the term of the networks for whose rows a condition holds."""
    return "model=" + "|".join(name for name, row in MODELS.items() if is_meant(row))


def _methods(fact: str) -> str:
    """Returns the term of the methods of compression that have a fact in their row."""
    methods = METHODS.items()
    return "method=" + "|".join(name for name, row in methods if getattr(row, fact))


RULES = (
    Needs("error_feedback", "compress", "without it nothing is left out"),
    Excludes(
        _methods("has_momentum"),
        "error_feedback",
        "it keeps residuals in any case",
        when="compress",
    ),
    Needs(
        f"{_methods('needs_matrices')} dense_below",
        "compress=layerwise",
        "both are about single variables",
        when="compress",
    ),
    Excludes(
        _methods("is_summed"),
        "exchange",
        "an all-reduce sums its messages",
        when="compress",
    ),
    Needs(
        _methods("has_momentum"),
        "optimizer=momentum",
        "it replaces the velocity of momentum",
        when="compress",
    ),
    Excludes(
        _methods("has_momentum"),
        "layer_rates is_local",
        "it sends the momentum of each step, for one learning rate",
        when="compress",
    ),
    Needs("qsgd_bucket qsgd_norm", "method=qsgd", when="compress"),
    Needs("powersgd_rank", "method=powersgd", when="compress"),
    Needs("dgc_warmup_epochs", "method=dgc", when="compress"),
    Needs(
        "kept_values",
        "method=topk|thresholdv|adaptivethreshold|dgc",
        "others send no such values",
        when="compress",
    ),
    Needs("residual_decay", "error_feedback"),
    Excludes("compress", "local_velocities=average is_partly_local"),
    Needs("outer_nesterov outer_learning_rate", "outer_momentum"),
    Needs(
        "local_velocities outer_momentum", "is_local", "else no weights are averaged"
    ),
    Excludes(
        "lookahead_every",
        "sync_mode=async is_local",
        "the ranks have different weights with it",
    ),
    Needs("activation se_ratio blur_pool", _models(lambda row: row.has_parts)),
    Needs("resnet_variant", _models(lambda row: row.has_variants)),
    Needs(
        "resnet_variant=torchvision",
        "activation=relu",
        "the zeros around its max pooling must not exceed any value",
    ),
    Excludes(
        "fixed_gamma",
        "zero_last_gamma=True",
        "a fixed gamma is always 1",
        when=_models(lambda row: row.depth > 0),
    ),
    Needs("target_threshold", "loss=binary_cross_entropy"),
    Excludes(
        "loss=binary_cross_entropy",
        _models(lambda row: not row.has_last_bias),
        "it begins with biases of the last layer, and this network has none",
        in_first_phase=True,
    ),
    Needs(
        "layer_rates_scale_decay",
        "optimizer=momentum|muon",
        "others scale the updates of layers themselves",
    ),
    Excludes("optimizer=adamw", "is_local", "only velocities are averaged over ranks"),
    Excludes("optimizer=adamw|muon", "learning_rate_in_velocity"),
    Excludes(
        "optimizer=muon freeze_batch_norm",
        _models(lambda row: not row.has_batch_norm),
        "this network has no batch normalization",
    ),
    Excludes(
        "optimizer=muon",
        "freeze_batch_norm",
        "frozen statistics don't fit convolutions of another norm",
    ),
    Needs(
        "freeze_batch_norm",
        "initial_weights",
        "the averages of a new network are not those of any images",
        in_first_phase=True,
    ),
    Excludes(
        "freeze_batch_norm",
        "recalibration_batches",
        "the weights are trained for the frozen statistics",
    ),
    Needs("num_ps max_staleness staleness_rate", "sync_mode=async"),
    Needs(
        "sync_mode=async",
        "optimizer=momentum",
        "the parameter servers compute no other update",
    ),
    Excludes(
        "sync_mode=async",
        "accumulation_steps compress is_local ema_decay layer_rates freeze_batch_norm"
        " eval_views shard_by on_bad_record decoded_cache_mb record_log"
        " recalibration_batches audit_every "
        + _models(lambda row: row.has_image_statistics),
    ),
    Needs("on_bad_rank", "audit_every"),
    Excludes(
        "audit_every",
        "is_local shard_by=file",
        "a rank needs the weights and the records of another one to audit it",
    ),
    Excludes(
        "multi_label",
        "loss=cross_entropy sampling class_weights eval_views"
        " best_metric=top1|balanced_accuracy|macro_f1",
        "that is for images of one class",
    ),
    Excludes("multi_label", "sync_mode=async", "its workers evaluate classes only"),
    Needs("best_metric=mean_average_precision", "multi_label"),
    Needs(
        "eval_every stop_at best_metric=balanced_accuracy|macro_f1",
        "mode=train_and_eval",
    ),
    Needs("stop_at", "eval_every", "else nothing is evaluated before the end"),
)
PHASE_SETTINGS = tuple(settings.declarations(PhaseSettings))
RATE_SETTINGS = (
    *("base_learning_rate", "peak_learning_rate"),
    *("warmup_steps", "warmup_epochs"),
)
_DECLARED = settings.declarations(Config, PhaseSettings)
_DEFAULTS = {
    "is_local": False,
    "is_partly_local": False,
    **{
        field.name: field.default
        for kind in (Phase, Config)
        for field in dataclasses.fields(kind)
    },
}
# What sentences call settings that follow from others or from the data set, where they
# are needed and where they are refused.
_WITHOUT_FLAG = {
    "is_local": (
        "--sync_every above 1 or --qsr_coefficient",
        "--sync_every and --qsr_coefficient",
    ),
    "is_partly_local": ("phases with and without local SGD",) * 2,
    "multi_label": ("a data set with several labels an image",) * 2,
}


class _Term(NamedTuple):
    """A setting with one of some values; without values, with any but its default."""

    name: str
    values: tuple[str, ...]

    def holds(self, values: dict[str, Any]) -> bool:
        value = values[self.name]
        if self.values:
            return str(value) in self.values
        return bool(value != _DEFAULTS[self.name])

    def needed(self) -> str:
        """Returns the term as a sentence names it that asks for it."""
        if self.name in _WITHOUT_FLAG:
            return _WITHOUT_FLAG[self.name][0]
        flag = _flag(self.name)
        if len(self.values) > 3:
            return f"a {flag} among {', '.join(self.values)}"
        return f"{flag}={' or '.join(self.values)}" if self.values else flag

    def refused(self, values: dict[str, Any]) -> str:
        """Returns the term as a sentence names it that refuses its value."""
        if self.name in _WITHOUT_FLAG:
            return _WITHOUT_FLAG[self.name][1]
        flag, value = _flag(self.name), values[self.name]
        if flag == self.name:  # It is from a recipe.
            source = f"the recipe {values['recipe']}"
            if self.name in PHASE_SETTINGS:
                source = f"phase {values['name']!r}"
            return f"{flag}={value} of {source}"
        return flag if value is True else f"{flag}={value}"


def _terms(text: str) -> list[_Term]:
    parts = [word.partition("=") for word in text.split()]
    return [_Term(name, tuple(filter(None, v.split("|")))) for name, _, v in parts]


def _flag(name: str) -> str:
    declaration = _DECLARED[name]
    has_flag = declaration.flag is not None
    return f"--{settings.flag_name(name, declaration)}" if has_flag else name


def broken(run: CompressionSettings) -> list[str]:
    """Returns a sentence about each rule that settings break.

    To settings of compression alone, rules don't apply that name other settings.
    """
    of_phases = [vars(run)]
    if isinstance(run, Config):
        mixed = {"is_partly_local": len({phase.is_local for phase in run.phases}) > 1}
        of_phases = [
            {**vars(run), **vars(phase), "is_local": phase.is_local, **mixed}
            for phase in run.phases
        ]
        names = [phase.name for phase in run.phases]
        begin = names.index(run.first_phase or names[0])
        of_phases = of_phases[begin:] + of_phases[:begin]  # The run's first one first.
    problems = [sentence for rule in RULES for sentence in _sentences(rule, of_phases)]
    reason = METHODS[run.method].why_unbounded(run)
    if run.compress != "none" and run.error_feedback and reason:
        problems.append(
            "--error_feedback needs a method whose error is smaller than the gradient,"
            f" or what is left out grows without bounds: {reason}. Leave it out, or"
            " choose another method."
        )
    return problems


def _sentences(rule: Needs, of_phases: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields a sentence about each pair of terms that breaks the rule in some phase."""
    if rule.in_first_phase:
        of_phases = of_phases[:1]
    names, others, when = map(_terms, (rule.names, rule.others, rule.when))
    if not {term.name for term in (*names, *others, *when)} <= set(of_phases[0]):
        return
    reason = f", since {rule.because}" if rule.because else ""
    for name in names:
        concerned = [
            values
            for values in of_phases
            if all(term.holds(values) for term in (name, *when))
        ]
        if isinstance(rule, Excludes):
            for other in others:
                if values := next(filter(other.holds, concerned), None):
                    yield (
                        f"{name.refused(values)} excludes {other.refused(values)}"
                        f"{reason}. Leave one of them out."
                    )
            continue
        for values in concerned:
            if not any(other.holds(values) for other in others):
                needed = " or ".join(other.needed() for other in others)
                got = [str(values[other.name]) for other in others if other.values]
                end = f"; got {', '.join(got)}" if got else ""
                yield f"{name.refused(values)} needs {needed}{reason}{end}."
                break


def problems_of(config: Config) -> list[str]:
    """Returns a sentence about each setting that isn't allowed, wherever it is from."""
    problems = settings.problems_of(config, f"the recipe {config.recipe}")
    mean, stddev = map(list, (config.channel_mean, config.channel_stddev))
    if not len(mean) == len(stddev) == 3 or min(stddev) <= 0:
        problems.append(
            f"channel_mean and channel_stddev of the recipe {config.recipe} must be"
            f" three numbers each, the second ones above 0; got {mean} and {stddev}."
        )
    sizes = {phase.image_size for phase in config.phases} | {config.image_size}
    model = MODELS.get(config.model)
    if model and model.has_one_image_size and len(sizes) > 1:
        problems.append(
            f"{config.model} needs images of the same size in all phases and in"
            f" evaluation; got {', '.join(map(str, sorted(sizes)))} pixels. Take a"
            " recipe without progressive sizes."
        )
    for phase in config.phases:
        problems += _problems_of_phase(phase)
    of_phases = [phase.name for phase in config.phases]
    if len(set(of_phases)) < len(of_phases):
        problems.append(
            "the phases of a recipe must have different names; got"
            f" {', '.join(of_phases)}."
        )
    if config.first_phase in ("", *of_phases):
        return problems + broken(config)
    return [*problems, names.unknown("--first_phase", config.first_phase, of_phases)]


def _problems_of_phase(phase: Phase) -> list[str]:
    problems = settings.problems_of(phase, f"phase {phase.name!r}")
    try:
        phases.parse(phase.layer_rates)
    except UserError as error:
        problems.append(str(error))
    if (schedule := phase.schedule) is None:
        return problems
    described = f"the schedule of phase {phase.name!r}"
    problems += settings.problems_of(schedule, described)
    steps = list(schedule.boundaries)
    if steps != sorted(steps) or min(steps, default=0) < 0:
        problems.append(
            f"boundaries of {described} must ascend from 0; got, in steps, {steps}."
        )
    return problems


def problems_of_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> list[str]:
    """Returns a sentence about each override that can't apply to the recipe."""
    problems = [
        f"--{what}_steps and --{what}_epochs exclude each other; got both."
        for what in ("train", "warmup")
        if {f"{what}_steps", f"{what}_epochs"} <= set(overrides)
    ]
    differing = {
        name
        for name in PHASE_SETTINGS
        if len({getattr(phase, name) for phase in recipe.phases}) > 1
    }
    if sum(phase.schedule is not None for phase in recipe.phases) > 1:
        differing.update(RATE_SETTINGS)
    problems += [
        f"--{name} can't be one for the whole run: it differs among the"
        f" {len(recipe.phases)} phases of {recipe.name}. Change it in a recipe file."
        for name in overrides
        if name in differing
    ]
    if recipe.compress == "none" and "compress" not in overrides:
        problems += [
            f"--{field.name} has no effect without --compress, which is none: add"
            " --compress=layerwise or --compress=entiremodel, or leave"
            f" --{field.name} out."
            for field in dataclasses.fields(CompressionSettings)
            if field.name in overrides and field.name != "error_feedback"
        ]
    return problems


def num_workers(num_ranks: int, num_servers: int) -> int:
    """Returns the number of workers of an asynchronous job; none is a UserError."""
    workers = num_ranks - 1 - num_servers
    if workers < 1:
        raise UserError(
            "--sync_mode=async needs one rank that coordinates, --num_ps ranks that"
            f" serve and at least one that works; got num_ranks={num_ranks},"
            f" --num_ps={num_servers}. Start at least {num_servers + 2} ranks, as by"
            f" mpirun -np {num_servers + 2}."
        )
    return workers


def check_start(recipe: Recipe, config: Config, num_ranks: int) -> None:
    """Refuses a run without the weights that its recipe needs, or by `check_ranks`."""
    if recipe.needs_weights and not config.initial_weights:
        raise UserError(
            f"the recipe {recipe.name} trains a network further, and needs"
            " --initial_weights, such as a run's folder or a file of weights; got none."
            " Name them, or take a recipe that trains from scratch."
        )
    check_ranks(config, num_ranks)


def check_ranks(config: Config, num_ranks: int) -> None:
    """Refuses a global batch that the ranks, or workers, can't share."""
    batch = config.global_batch_size
    if batch > config.num_train_examples:
        raise UserError(
            "--train_batch_size must be at most the number of training examples; got"
            f" train_batch_size={batch}, {config.num_train_examples} examples. Lower"
            f" it{', or take --recipe=own' * (config.recipe != 'own')}."
        )
    parts = num_ranks * config.accumulation_steps
    if batch % parts:
        below = batch - batch % parts
        most = config.num_train_examples
        sizes = [str(size) for size in (below, below + parts) if 0 < size <= most]
        advice = f"Use {' or '.join(sizes)}" if sizes else "Start fewer ranks"
        steps = config.accumulation_steps
        times = f" times --accumulation_steps={steps}" if steps > 1 else ""
        ranks = "workers" if config.is_async else "ranks"
        raise UserError(
            f"--train_batch_size must be a multiple of the number of {ranks}{times};"
            f" got train_batch_size={batch}, {num_ranks} {ranks}. {advice}."
        )
    # The features of a ResNet's last stage have 1/32 of the side of the images.
    has_single_values = MODELS[config.model].has_parts and any(
        phase.image_size <= 32 and not phase.freeze_batch_norm
        for phase in config.phases
    )
    if batch == parts and has_single_values:
        raise UserError(
            "batch normalization needs at least two values, and the last layers of"
            f" {config.model} have one for each image of this size; got one image on"
            " each rank at a time. Start fewer ranks, or change --train_batch_size or"
            " --accumulation_steps."
        )
    is_mixed = any(phase.mixup or phase.cutmix for phase in config.phases)
    if is_mixed and (batch // parts) % 2:
        raise UserError(
            "mixup and cutmix need an even number of examples on each rank at a time,"
            f" since they mix pairs; got {batch // parts}. Change --train_batch_size or"
            " --accumulation_steps."
        )
