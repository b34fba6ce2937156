"""Checks the settings of a run as a whole, wherever their values are from."""

from resnet.base import bounds
from resnet.base.errors import UserError
from resnet.config import compression, layer_rates
from resnet.config.asynchrony import NO_BOUND
from resnet.config.config import Config
from resnet.config.phases import Phase
from resnet.config.recipe import PARTS
from resnet.models.names import (
    MODELS_OF_ONE_IMAGE_SIZE,
    MODELS_WITH_IMAGE_STATISTICS,
    MODELS_WITH_RESIDUAL_BLOCKS,
    MODELS_WITHOUT_BATCH_NORM,
    MODELS_WITHOUT_LAST_BIAS,
    RESNETS,
    RESNETS_WITH_PARTS,
)


def problems_of(config: Config) -> list[str]:
    """Returns a sentence about each setting that isn't allowed, wherever it is from."""
    problems = bounds.problems_of(config, f"the recipe {config.recipe}")
    problems += compression.problems(config)
    if config.compress != "none" and config.method == "dgc":
        problems += _problems_of_dgc(config)
    problems += _problems_of_channels(config)
    problems += _problems_of_parts(config)
    problems += _problems_of_image_sizes(config)
    has_residual_blocks = config.model in MODELS_WITH_RESIDUAL_BLOCKS
    if config.fixed_gamma and config.zero_last_gamma and has_residual_blocks:
        problems.append(
            "a fixed_gamma is always 1, which excludes zero_last_gamma; the recipe"
            f" {config.recipe} for {config.model} has both."
        )
    for phase in config.phases:
        problems += _problems_of_phase(phase)
    problems += _problems_of_loss(config)
    problems += _problems_of_adamw(config)
    problems += _problems_of_muon(config)
    problems += _problems_of_layer_rates(config)
    problems += _problems_of_local_sgd(config)
    problems += _problems_of_lookahead(config)
    problems += _problems_of_fine_tuning(config)
    problems += _problems_of_async(config)
    names = [phase.name for phase in config.phases]
    if len(set(names)) < len(names):
        problems.append(
            f"the phases of a recipe must have different names; got {', '.join(names)}."
        )
    if config.first_phase and config.first_phase not in names:
        problems.append(
            f"--first_phase must be one of {', '.join(names)}; got"
            f" {config.first_phase}."
        )
    if config.mode == "train" and (config.eval_every or config.stop_at_top1):
        problems.append(
            "--eval_every and --stop_at_top1 need --mode=train_and_eval; got"
            " --mode=train."
        )
    elif config.stop_at_top1 and not config.eval_every:
        problems.append(
            f"--stop_at_top1={config.stop_at_top1:g} needs --eval_every, such as"
            " 1epoch: without it nothing is evaluated before the last step."
        )
    return problems


def _problems_of_dgc(config: Config) -> list[str]:
    problems = []
    if config.optimizer != "momentum":
        problems.append(
            "--method=dgc replaces the velocity of momentum: it needs"
            f" --optimizer=momentum; got {config.optimizer}."
        )
    if any(phase.layer_rates for phase in config.phases):
        problems.append(
            "--method=dgc excludes --layer_rates: it has one learning rate for all"
            " layers. Leave one of them out."
        )
    return problems


def _problems_of_adamw(config: Config) -> list[str]:
    if config.optimizer != "adamw":
        return []
    problems = _problems_of_rate_in_velocity(config)
    if any(phase.is_local for phase in config.phases):
        problems.append(
            "--optimizer=adamw excludes --sync_every and --qsr_coefficient, since only"
            " velocities are averaged over the ranks. Leave one of them out."
        )
    return problems


def _problems_of_rate_in_velocity(config: Config) -> list[str]:
    """Refuses Caffe-style momentum, for optimizers that have no such form."""
    if not config.learning_rate_in_velocity:
        return []
    return [
        f"--optimizer={config.optimizer} excludes learning_rate_in_velocity, which the"
        f" recipe {config.recipe} has. Take another recipe or optimizer."
    ]


def _problems_of_muon(config: Config) -> list[str]:
    if config.optimizer != "muon":
        return []
    problems = []
    if config.model in MODELS_WITHOUT_BATCH_NORM:
        problems.append(
            "--optimizer=muon needs a network with batch normalization, since it fixes"
            f" the norms of convolutions; got {config.model}."
        )
    if any(phase.freeze_batch_norm for phase in config.phases):
        problems.append(
            "--optimizer=muon excludes --freeze_batch_norm: frozen statistics don't fit"
            " convolutions of another norm. Leave one of them out."
        )
    problems += _problems_of_rate_in_velocity(config)
    return problems


def _problems_of_fine_tuning(config: Config) -> list[str]:
    problems = []
    if config.resnet_variant != Config.resnet_variant and config.model not in RESNETS:
        problems.append(
            f"--resnet_variant={config.resnet_variant} needs a --model among"
            f" {', '.join(RESNETS)}; got {config.model}."
        )
    freezing = [phase.name for phase in config.phases if phase.freeze_batch_norm]
    if freezing and config.model in MODELS_WITHOUT_BATCH_NORM:
        problems.append(
            "--freeze_batch_norm needs a network with batch normalization; got"
            f" {config.model}."
        )
    first = config.first_phase or config.phases[0].name
    if first in freezing and not config.initial_weights:
        problems.append(
            "--freeze_batch_norm in the first phase of a run needs --initial_weights:"
            " the averages of a new network are not those of any images."
        )
    if freezing and config.recalibration_batches:
        problems.append(
            "--freeze_batch_norm excludes --recalibration_batches, which would evaluate"
            " with other statistics than those that the weights are trained for. Leave"
            " one of them out."
        )
    return problems


def _problems_of_channels(config: Config) -> list[str]:
    mean, stddev = config.channel_mean, config.channel_stddev
    if len(mean) == len(stddev) == 3 and min(stddev) > 0:
        return []
    return [
        f"channel_mean and channel_stddev of the recipe {config.recipe} must be three"
        f" numbers each, the second ones above 0; got {list(mean)} and {list(stddev)}."
    ]


def _problems_of_parts(config: Config) -> list[str]:
    chosen = {name: getattr(config, name) for name in PARTS}
    problems = [
        f"--{name}={value} needs a --model among {', '.join(RESNETS_WITH_PARTS)}; got"
        f" {config.model}."
        for name, value in chosen.items()
        if value != getattr(Config, name) and config.model not in RESNETS_WITH_PARTS
    ]
    if config.activation != "relu" and config.resnet_variant == "torchvision":
        problems.append(
            "--resnet_variant=torchvision needs --activation=relu, whose results the"
            f" zeros around the max pooling never exceed; got {config.activation}."
        )
    return problems


def _problems_of_loss(config: Config) -> list[str]:
    names = [phase.name for phase in config.phases]
    if config.first_phase not in ("", *names):
        return []  # Refused elsewhere.
    first = config.phases[names.index(config.first_phase) if config.first_phase else 0]
    is_binary = first.loss == "binary_cross_entropy"
    if not is_binary or config.model not in MODELS_WITHOUT_LAST_BIAS:
        return []
    return [
        "--loss=binary_cross_entropy needs a network whose last layer has biases; got"
        f" {config.model}, which has none."
    ]


def _problems_of_layer_rates(config: Config) -> list[str]:
    unscaled = [
        phase.name for phase in config.phases if not phase.layer_rates_scale_decay
    ]
    if not unscaled or config.optimizer in ("momentum", "muon"):
        return []
    return [
        f"layer_rates_scale_decay of phase {unscaled[0]!r} can be false only with"
        f" --optimizer=momentum or muon; got {config.optimizer}, which scales the"
        " updates of layers itself."
    ]


def _problems_of_lookahead(config: Config) -> list[str]:
    if config.lookahead_every == 0:
        return []
    excluded = {
        "--sync_mode=async": config.is_async,
        "--sync_every and --qsr_coefficient": any(
            phase.is_local for phase in config.phases
        ),
    }
    return [
        f"lookahead_every excludes {name}, with which the ranks have different weights:"
        " leave one of them out."
        for name, is_set in excluded.items()
        if is_set
    ]


def _problems_of_local_sgd(config: Config) -> list[str]:
    problems = []
    if config.compress != "none" and any(phase.is_local for phase in config.phases):
        problems.append(
            "--compress excludes --sync_every and --qsr_coefficient, with which the"
            f" ranks exchange no gradients; got --compress={config.compress}. Leave one"
            " of them out."
        )
    for phase in config.phases:
        described = f"of phase {phase.name!r}"
        if phase.outer_momentum == 0:
            unused = [
                f"{name} {described} needs outer_momentum, which is 0; got {value}."
                for name, value, default in (
                    ("outer_nesterov", phase.outer_nesterov, False),
                    ("outer_learning_rate", phase.outer_learning_rate, 1.0),
                )
                if value != default
            ]
            problems += unused
        if not phase.is_local:
            problems += [
                f"{name} {described} needs --sync_every above 1 or --qsr_coefficient:"
                f" without them no weights are averaged; got {value}."
                for name, value, default in (
                    ("local_velocities", phase.local_velocities, "keep"),
                    ("outer_momentum", phase.outer_momentum, 0.0),
                )
                if value != default
            ]
    return problems


def _problems_of_async(config: Config) -> list[str]:
    if not config.is_async:
        return [
            f"--{name} needs --sync_mode=async; got {value}. Leave it out."
            for name, value, default in (
                ("num_ps", config.num_ps, 1),
                ("max_staleness", config.max_staleness, NO_BOUND),
                ("staleness_rate", config.staleness_rate, "none"),
            )
            if value != default
        ]
    excluded = {
        "--accumulation_steps": config.accumulation_steps > 1,
        "--compress": config.compress != "none",
        "--sync_every and --qsr_coefficient": any(
            phase.is_local for phase in config.phases
        ),
        "--optimizer=lars": config.optimizer == "lars",
        "--optimizer=sgdw": config.optimizer == "sgdw",
        "--optimizer=adamw": config.optimizer == "adamw",
        "--optimizer=muon": config.optimizer == "muon",
        "--ema_decay": config.ema_decay > 0,
        "--layer_rates": any(phase.layer_rates for phase in config.phases),
        "--freeze_batch_norm": any(phase.freeze_batch_norm for phase in config.phases),
        f"--model={config.model}": config.model in MODELS_WITH_IMAGE_STATISTICS,
        f"eval_views={config.eval_views}": config.eval_views != "center",
        "--shard_by=file": config.shard_by == "file",
        "--on_bad_record=skip": config.on_bad_record == "skip",
        "--decoded_cache_mb": config.decoded_cache_mb > 0,
        "--record_log": bool(config.record_log),
        "--recalibration_batches": config.recalibration_batches > 0,
    }
    return [
        f"--sync_mode=async excludes {name}: leave it out, or train with"
        " --sync_mode=bsp."
        for name, is_set in excluded.items()
        if is_set
    ]


def _problems_of_image_sizes(config: Config) -> list[str]:
    sizes = {phase.image_size for phase in config.phases} | {config.image_size}
    if config.model not in MODELS_OF_ONE_IMAGE_SIZE or len(sizes) == 1:
        return []
    return [
        f"{config.model} needs images of the same size in all phases and in evaluation;"
        f" got {', '.join(map(str, sorted(sizes)))} pixels in the recipe"
        f" {config.recipe}. Take a recipe without progressive sizes."
    ]


def _problems_of_phase(phase: Phase) -> list[str]:
    problems = bounds.problems_of(phase, f"phase {phase.name!r}")
    if phase.target_threshold and phase.loss != "binary_cross_entropy":
        problems.append(
            f"target_threshold of phase {phase.name!r} needs"
            f" --loss=binary_cross_entropy; got {phase.loss}."
        )
    try:
        layer_rates.parse(phase.layer_rates)
    except UserError as error:
        problems.append(str(error))
    if (schedule := phase.schedule) is None:
        return problems
    described = f"the schedule of phase {phase.name!r}"
    problems += bounds.problems_of(schedule, described)
    boundaries = list(schedule.boundaries)
    if boundaries != sorted(boundaries) or min(boundaries, default=0) < 0:
        problems.append(
            f"boundaries of {described} must ascend and be at least 0; got, in steps,"
            f" {boundaries}."
        )
    return problems
