"""Phases of a recipe whose images grow in the course of the training."""

import dataclasses
import itertools
import math

from resnet.config.recipe import RecipePhase


def ramp(
    phase: RecipePhase,
    smallest: int,
    largest: int,
    begin: float,
    end: float,
    increment: int = 32,
) -> tuple[RecipePhase, ...]:
    """Returns a phase divided into phases with larger and larger images.

    The size of an epoch is `smallest` up to epoch `begin`, `largest` from epoch `end`
    on, and a multiple of `increment` near the straight line in between. The phases
    continue the schedule of the first.

    Args:
        phase: The phase, with the schedule for all of its epochs.
        smallest: The side of the first images in pixels.
        largest: The side of the last images.
        begin: The epoch, from 0, up to which images are the smallest.
        end: The epoch from which on they are the largest.
        increment: The difference of two sizes in the ramp, in pixels.

    Source: libffcv/ffcv-imagenet, train_imagenet.py, get_resolution.
    """
    sizes = []
    for epoch in range(math.ceil(phase.epochs)):
        if begin < epoch < end:
            position = (epoch - begin) / (end - begin)
            size = smallest + (largest - smallest) * position
            sizes.append(round(size / increment) * increment)
        else:
            sizes.append(smallest if epoch <= begin else largest)
    phases: list[RecipePhase] = []
    first = 0
    for size, group in itertools.groupby(sizes):
        after = first + len(list(group))
        phases.append(
            dataclasses.replace(
                phase,
                name=f"{size}_px",
                epochs=min(after, phase.epochs) - first,
                image_size=size,
                schedule=None if phases else phase.schedule,
                reset_momentum=not phases and phase.reset_momentum,
            )
        )
        first = after
    return tuple(phases)
