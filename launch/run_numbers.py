"""The numbers of a training on so many ranks: batches, steps, rates and memory."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resnet.base.errors import UserError
from resnet.config import explain
from resnet.config.config import Config
from resnet.config.explain import Derived, TrainedPhase
from resnet.config.recipe import Recipe
from resnet.config.resolve import resolve
from resnet.config.rules import check_ranks

_USABLE_MEMORY = 0.9  # The rest is for the system, and for its cache of the records.


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
    num_parts = explain.num_parts(config, num_ranks)
    check_ranks(config, num_parts)
    derived = Derived(config, num_parts, len(class_names))
    reasons = []
    if memory_bytes and overrides.get("accumulation_steps") is None:
        accumulated = with_accumulation(derived, memory_bytes)
        if accumulated.config.accumulation_steps > 1:
            reasons.append(
                f"{config.global_batch_size // num_parts} examples at once would take"
                f" {derived.rank_memory_bytes / 1e9:.1f} GB of a"
                f" rank's {memory_bytes / 1e9:.1f} GB, so gradients are accumulated"
                f" over {accumulated.config.accumulation_steps} micro-batches"
            )
        derived = accumulated
    config = derived.config
    steps = config.last_step - derived.first_step
    numbers = RunNumbers(
        global_batch_size=config.global_batch_size,
        num_parts=num_parts,
        rank_batch_size=config.global_batch_size // num_parts,
        accumulation_steps=config.accumulation_steps,
        num_steps=steps,
        num_epochs=config.epoch(steps),
        phases=tuple(map(_rates, derived.phases)),
        num_classes=derived.num_classes,
        num_parameters=derived.num_parameters,
        gradient_bytes=derived.gradient_bytes,
        rank_memory_bytes=derived.rank_memory_bytes,
        changes=tuple(explain.describe_changes(recipe, overrides, derived)),
        reasons=tuple(reasons),
    )
    return numbers, config


def with_accumulation(derived: Derived, memory_bytes: int) -> Derived:
    """Returns the run with the fewest micro-batches that fit into a rank's memory.

    Raises:
        UserError: If even the smallest micro-batch doesn't fit.
    """
    config = derived.config
    usable = _USABLE_MEMORY * memory_bytes
    examples = config.global_batch_size // derived.num_parts
    is_mixed = any(phase.mixup or phase.cutmix for phase in config.phases)
    needed = 0
    for steps in range(1, 1 if config.is_async else examples + 1):
        is_odd = bool(examples // steps % 2)
        if examples % steps or (is_mixed and is_odd):
            continue
        changed = dataclasses.replace(config, accumulation_steps=steps)
        accumulated = dataclasses.replace(derived, config=changed)
        needed = accumulated.rank_memory_bytes
        if needed <= usable:
            return accumulated
    needed = needed or derived.rank_memory_bytes
    if needed <= usable:
        return derived
    raise UserError(
        f"a rank must fit into its part of the memory, {memory_bytes / 1e9:.1f} GB; it"
        f" would take {needed / 1e9:.1f} GB even with the smallest micro-batch. Use"
        " fewer ranks on a node, or a smaller network or --image_size."
    )


def _rates(trained: TrainedPhase) -> PhaseRates:
    return PhaseRates(
        name=trained.settings.name,
        first_step=trained.first_step,
        num_steps=trained.settings.num_steps,
        init_rate=trained.rates[0],
        peak_rate=trained.peak_rate,
        warmup_steps=trained.warmup_steps,
        last_rate=trained.rates[-1],
    )
