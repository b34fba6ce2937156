"""The numbers of a training on so many ranks: batches, steps, rates and memory."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.asynchrony import num_workers
from resnet.config.changes import describe_changes
from resnet.config.config import Config, check_ranks
from resnet.config.recipe import Recipe
from resnet.config.resolve import resolve
from resnet.models import sizes
from resnet.models.names import CIFAR_MODELS

# RESULTS.md, "Memory": ResNet-50 on 2 ranks with 32 images each took 3,347 MiB in
# float32 and 2,180 MiB in bfloat16. The difference gives the bytes of an activation,
# the rest those of TensorFlow, the program and its input.
_COPIES_OF_ACTIVATIONS = 1.72
_PROGRAM_BYTES = 756 << 20
_USABLE_MEMORY = 0.9  # The rest is for the system, and for its cache of the records.
_BYTES_PER_VALUE = {"bf16": 2}  # Bytes of an activation where they aren't float32's.


@dataclass(frozen=True)
class PhaseRates:
    """The learning rates of a phase.

    Attributes:
        name: The phase.
        first_step: Its first step.
        num_steps: Its length.
        init_rate: The rate of its first step.
        peak_rate: The rate that its warmup leads to; `init_rate` without a warmup.
        warmup_steps: The length of its warmup.
        last_rate: The rate of its last step.
    """

    name: str
    first_step: int
    num_steps: int
    init_rate: float
    peak_rate: float
    warmup_steps: int
    last_rate: float


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a run.

    Attributes:
        global_batch_size: The number of examples of a step, over all ranks.
        num_parts: The number of ranks that compute: with `is_async` of the workers.
        rank_batch_size: The number of examples of each of these in a step.
        accumulation_steps: The number of micro-batches that these are divided into.
        num_steps: The number of steps of the run.
        num_epochs: The number of passes over the training examples.
        phases: The learning rates of each phase.
        num_classes: The number of classes that parameters are counted for.
        num_parameters: The number of trainable values.
        gradient_bytes: The bytes of the gradients that are exchanged in a step.
        rank_memory_bytes: An estimate of the memory of a rank.
        changes: How the run differs from the recipe.
        reasons: Why the numbers are so, in sentences.
    """

    global_batch_size: int
    num_parts: int
    rank_batch_size: int
    accumulation_steps: int
    num_steps: int
    num_epochs: float
    phases: tuple[PhaseRates, ...]
    num_classes: int
    num_parameters: int
    gradient_bytes: int
    rank_memory_bytes: int
    changes: tuple[str, ...]
    reasons: tuple[str, ...]


def compute(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    num_ranks: int,
    memory_bytes: int,
    num_train_examples: int,
    class_names: tuple[str, ...] = (),
) -> tuple[RunNumbers, Config]:
    """Returns the numbers of a run, and its settings.

    If the images of a rank don't fit into its memory at once, gradients are accumulated
    over as many micro-batches as it takes, unless `overrides` says over how many.

    Args:
        recipe: The recipe of the run.
        overrides: The settings that the command line overrides.
        num_ranks: The number of ranks, with the servers of an asynchronous training.
        memory_bytes: The memory of a rank; 0 if it isn't known.
        num_train_examples: The number of training examples.
        class_names: The names of the classes; empty if they aren't known.

    Raises:
        UserError: If a setting is wrong, the global batch can't be divided, or not even
            the smallest micro-batch fits into the memory.
    """
    config = resolve(recipe, overrides, num_train_examples, class_names or ("?",))
    num_parts = num_ranks
    if config.is_async:
        num_parts = num_workers(num_ranks, config.num_ps)
    check_ranks(config, num_parts)
    num_classes = len(class_names) or (10 if config.model in CIFAR_MODELS else 1000)
    reasons = []
    if memory_bytes and overrides.get("accumulation_steps") is None:
        accumulated = with_accumulation(config, num_parts, num_classes, memory_bytes)
        if accumulated.accumulation_steps > 1:
            reasons.append(
                f"{config.global_batch_size // num_parts} examples at once would take"
                f" {rank_memory(config, num_parts, num_classes) / 1e9:.1f} GB of a"
                f" rank's {memory_bytes / 1e9:.1f} GB, so gradients are accumulated"
                f" over {accumulated.accumulation_steps} micro-batches"
            )
        config = accumulated
    first = phases.first_step(config.phases, config.first_phase)
    steps = config.last_step - first
    numbers = RunNumbers(
        global_batch_size=config.global_batch_size,
        num_parts=num_parts,
        rank_batch_size=config.global_batch_size // num_parts,
        accumulation_steps=config.accumulation_steps,
        num_steps=steps,
        num_epochs=config.epoch(steps),
        phases=tuple(phase_rates(config)),
        num_classes=num_classes,
        num_parameters=sizes.num_parameters(config.model, num_classes, config.se_ratio),
        gradient_bytes=sizes.gradient_bytes(config.model, num_classes, config.se_ratio),
        rank_memory_bytes=rank_memory(config, num_parts, num_classes),
        changes=tuple(describe_changes(recipe, overrides, config, num_parts)),
        reasons=tuple(reasons),
    )
    return numbers, config


def rank_memory(config: Config, num_parts: int, num_classes: int) -> int:
    """Returns an estimate of the memory of a rank, in bytes.

    It is that of the program, of the weights, gradients, velocities, EMA weights, slow
    weights of Lookahead, residuals of compression, and first weights and velocities of
    outer momentum in float32, and of the activations of one micro-batch.

    Args:
        config: The settings of the run.
        num_parts: The number of ranks that compute.
        num_classes: The number of classes.
    """
    num_copies = 3 + (config.ema_decay > 0) + (config.lookahead_every > 0)
    num_copies += config.accumulation_steps > 1
    num_copies += config.compress != "none" and config.keeps_residuals
    num_copies += 2 * any(phase.outer_momentum for phase in config.phases)
    of_weights = num_copies * sizes.gradient_bytes(
        config.model, num_classes, config.se_ratio
    )
    image_size = max(phase.image_size for phase in config.phases)
    of_image = sizes.num_activations(config.model, image_size)
    of_image *= _BYTES_PER_VALUE.get(config.precision, 4)
    images = config.global_batch_size // num_parts // config.accumulation_steps
    of_images = round(_COPIES_OF_ACTIVATIONS * images * of_image)
    cache = config.decoded_cache_mb * 10**6
    return _PROGRAM_BYTES + of_weights + of_images + cache


def with_accumulation(
    config: Config, num_parts: int, num_classes: int, memory_bytes: int
) -> Config:
    """Returns the settings with the fewest micro-batches that fit into the memory.

    Args:
        config: The settings of the run.
        num_parts: The number of ranks that compute.
        num_classes: The number of classes.
        memory_bytes: The memory of a rank.

    Raises:
        UserError: If even the smallest micro-batch doesn't fit.
    """
    usable = _USABLE_MEMORY * memory_bytes
    examples = config.global_batch_size // num_parts
    is_mixed = any(phase.mixup or phase.cutmix for phase in config.phases)
    needed = 0
    for steps in range(1, 1 if config.is_async else examples + 1):
        is_odd = bool(examples // steps % 2)
        if examples % steps or (is_mixed and is_odd):
            continue
        changed = dataclasses.replace(config, accumulation_steps=steps)
        needed = rank_memory(changed, num_parts, num_classes)
        if needed <= usable:
            return changed
    needed = needed or rank_memory(config, num_parts, num_classes)
    if needed <= usable:
        return config
    raise UserError(
        f"a rank must fit into its part of the memory, {memory_bytes / 1e9:.1f} GB; it"
        f" would take {needed / 1e9:.1f} GB even with the smallest micro-batch. Use"
        " fewer ranks on a node, or a smaller network or --image_size."
    )


def phase_rates(config: Config) -> list[PhaseRates]:
    """Returns the learning rates of each phase that a run trains."""
    begin = phases.first_step(config.phases, config.first_phase)
    found = []
    firsts = phases.first_steps(config.phases)
    for first, phase in zip(firsts, config.phases, strict=True):
        if first < begin:
            continue
        schedule_first, schedule = phases.schedule_at(config.phases, first)
        warmup = 0
        if schedule_first == first:
            warmup = min(int(schedule.warmup_length), phase.num_steps)
        rate = phases.learning_rate(config.phases, first)
        found.append(
            PhaseRates(
                name=phase.name,
                first_step=first,
                num_steps=phase.num_steps,
                init_rate=rate,
                peak_rate=schedule.peak_value if warmup else rate,
                warmup_steps=warmup,
                last_rate=phases.learning_rate(
                    config.phases, first + phase.num_steps - 1
                ),
            )
        )
    return found
