"""Which values the settings of a run may have."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError
from resnet import intervals, schedules
from resnet.models.names import MODELS
from resnet.phases import Phase

if TYPE_CHECKING:
    from resnet.config import Config

AUGMENTATIONS = (
    "random_resized_crop",
    "random_resized_crop_2018_02",
    "random_crop",
    "random_shift",
    "pad_crop_flip_cutout",
    "none",
)
EVAL_CROPS = ("crop_then_resize", "resize_then_crop")
VIEWS = ("center", "flip", "five_crops", "ten_crops")
OPTIMIZERS = ("momentum", "lars")
SHARD_BY = ("example", "file")
ON_BAD_RECORD = ("fail", "skip")
PRECISIONS = ("float32", "bf16", "auto")
MODES = ("train", "train_and_eval")
SMALLEST_IMAGE = 32  # The stages halve it five times.
LARGEST_IMAGE = 1024

_MOST = 2**31
_BELOW_ONE = math.nextafter(1, 0)
# The lowest and the highest that is allowed.
_BOUNDS: dict[str, tuple[float, float]] = {
    "image_size": (SMALLEST_IMAGE, LARGEST_IMAGE),
    "global_batch_size": (1, _MOST),
    "eval_batch_size": (1, _MOST),
    "accumulation_steps": (1, _MOST),
    "train_steps": (1, _MOST),
    "train_epochs": (1e-9, 1e6),
    "warmup_steps": (0, _MOST),
    "warmup_epochs": (0, 1e6),
    "base_learning_rate": (0, math.inf),
    "peak_learning_rate": (1e-30, math.inf),
    "momentum": (0, _BELOW_ONE),
    "weight_decay": (0, math.inf),
    "trust_coefficient": (1e-30, math.inf),
    "clip_norm": (0, math.inf),
    "ema_decay": (0, _BELOW_ONE),
    "batch_norm_decay": (0, _BELOW_ONE),
    "label_smoothing": (0, _BELOW_ONE),
    "smallest_crop": (1e-9, 1),
    "random_augment": (0, 10),
    "mixup": (0, math.inf),
    "cutmix": (0, math.inf),
    "eval_crop_fraction": (1e-9, 1),
    "stop_at_top1": (0, 1),
    "recalibration_batches": (0, _MOST),
    "seed": (0, 2**63 - 1),
    "log_step_count_steps": (1, _MOST),
    "keep_checkpoints": (1, _MOST),
    "num_parallel_calls": (0, 4096),
    "decoded_cache_mb": (0, _MOST),
}
NAMES: dict[str, tuple[str, ...]] = {
    "model": MODELS,
    "augmentation": AUGMENTATIONS,
    "optimizer": OPTIMIZERS,
    "precision": PRECISIONS,
    "mode": MODES,
    "eval_crop": EVAL_CROPS,
    "shard_by": SHARD_BY,
    "on_bad_record": ON_BAD_RECORD,
}
_CURVE_BOUNDS: dict[str, tuple[float, float]] = {
    "start": (0, math.inf),
    "peak": (1e-30, math.inf),
    "warmup_steps": (0, _MOST),
    "end": (0, math.inf),
    "power": (1e-9, math.inf),
    "drop_factor": (0, 1),
}
# Flags keep the names that the recipe's ancestor gave them.
_FLAG_NAMES = {
    "global_batch_size": "train_batch_size",
    "batch_norm_decay": "bn_momentum",
}


def problems_of_given(given: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each value that is given and can't be, by its flag."""
    problems = [
        f"--{_FLAG_NAMES.get(name, name)} must be {allowed}; got {value}."
        for name, value in given.items()
        if (allowed := _broken_bound(name, value))
    ]
    for name, units in (
        ("checkpoint_every", intervals.UNITS),
        ("eval_every", intervals.UNITS_OF_STEPS),
    ):
        if given.get(name):
            try:
                intervals.parse(given[name], f"--{name}", units)
            except UserError as error:
                problems.append(str(error))
    return problems


def check(config: "Config") -> None:
    """Refuses settings that can't be, whoever they come from.

    Raises:
        UserError: With a sentence for each of them.
    """
    problems = [
        f"{name} of the recipe {config.recipe} must be {allowed}; got {value}."
        for name, value in vars(config).items()
        if (allowed := _broken_bound(name, value))
    ]
    for phase in config.phases:
        problems += _problems_of_phase(phase)
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
    if problems:
        raise UserError(" ".join(problems))


def _problems_of_phase(phase: Phase) -> list[str]:
    problems = [
        f"{name} of phase {phase.name!r} must be {allowed}; got {value}."
        for name, value in vars(phase).items()
        if (allowed := _broken_bound(name, value))
    ]
    curve = phase.curve
    if curve is None:
        return problems
    problems += [
        f"{name} of the rates of phase {phase.name!r} must be {allowed}; got"
        f" {getattr(curve, name)}."
        for name, bound in _CURVE_BOUNDS.items()
        if (allowed := _outside(bound, getattr(curve, name)))
    ]
    if curve.decay not in schedules.DECAYS:
        problems.append(
            f"decay of the rates of phase {phase.name!r} must be one of"
            f" {', '.join(schedules.DECAYS)}; got {curve.decay}."
        )
    if list(curve.drops) != sorted(curve.drops) or min(curve.drops, default=0) < 0:
        problems.append(
            f"drop_epochs of phase {phase.name!r} must ascend from 0 on; got the steps"
            f" {list(curve.drops)}."
        )
    return problems


def _broken_bound(name: str, value: Any) -> str:
    """Returns what a value must be and isn't, in words; nothing if it is."""
    if value is None:
        return ""
    if bound := _BOUNDS.get(name):
        return _outside(bound, value)
    allowed = NAMES.get(name)
    if allowed and value not in allowed:
        return f"one of {', '.join(allowed)}"
    return ""


def _outside(bound: tuple[float, float], value: float) -> str:
    low, high = bound
    if low <= value <= high and value < math.inf:  # False for NaN.
        return ""
    if high == math.inf and value == math.inf:
        return f"at least {low:g}, and finite"
    if high in (math.inf, _MOST) and not value >= high:
        return f"at least {low:g}"
    return f"in [{low:g}, 1)" if high == _BELOW_ONE else f"in [{low:g}, {high:g}]"
