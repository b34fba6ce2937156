"""A recipe for few epochs of ImageNet, from the numbers of MosaicML and FFCV."""

import dataclasses
import itertools
import math

from resnet.config.recipe import RecipePhase
from resnet.config.recipes.imagenet import of_resnet50
from resnet.config.schedules import Schedule

_EPOCHS = 18
_PEAK = 2.048  # For a batch of 2,048.


def ramp(
    phase: RecipePhase,
    smallest: int,
    largest: int,
    begin: float,
    end: float,
    increment: int = 32,
) -> tuple[RecipePhase, ...]:
    """Returns a phase divided into phases with larger and larger images.

    The size of an epoch is `smallest` up to epoch `begin`, from 0, `largest` from epoch
    `end` on, and a multiple of `increment` near the straight line in between. The
    phases continue the schedule of the first.

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


IMAGENET_18EP = of_resnet50(
    name="imagenet_18ep",
    source="this project, not run yet: the recipe Mild of MosaicML"
    " (mosaicml/examples, blogs/resnet/recipes/resnet50_mild.yaml) with the image sizes"
    " of FFCV (libffcv/ffcv-imagenet, rn50_configs/rn50_16_epochs.yaml)",
    global_batch_size=2048,
    phases=ramp(
        RecipePhase(
            epochs=_EPOCHS,
            schedule=Schedule(
                peak_value=_PEAK,
                warmup_length=8 * _EPOCHS / 28.8,  # In proportion to the source's.
                decay="cosine",
            ),
            momentum=0.875,
            weight_decay=5e-4 / _PEAK,
            loss="binary_cross_entropy",
            label_smoothing=0.08,
        ),
        smallest=160,
        largest=192,
        begin=_EPOCHS * 11 / 16,
        end=_EPOCHS * 13 / 16,
    ),
    eval_crop_fraction=224 / 232,
    optimizer="sgdw",
    nesterov=False,
    decay_batch_norm=True,
    batch_norm_momentum=0.9,
    blur_pool="all",
    ema_decay=0.5 ** (1 / 100),
    deviations=(
        "it was not run here, and 18 epochs of it nowhere: MosaicML reports 76.19 % for"
        " 28.8 epochs, and FFCV, with other rates and with horizontal flips at 256 px"
        " in evaluation (--views=flip), 73.8 % for 16 and 75.6 % for 24 epochs",
        "the 28.8 epochs of the source and its warmup of 8 are shortened in proportion,"
        " to 18 and 5",
        "images of 160 px for 14 epochs and of 192 px for 4 are FFCV's, whose 16 epochs"
        " have 160 px for 12; the source resizes crops of 176 px to 88 px at first and"
        " from there, in steps of 4, back to 176 px",
        "the weight decay is a factor of the learning rate; the source's of 5e-4 is for"
        " the highest rate",
        "the moving average of the weights moves in each step, in the source every 20"
        " steps; the half-life is the same, 100 steps",
        "convolutions are initialized with a variance of 1/fan-in, the scales of batch"
        " normalization with 1, the last of each block with 0; the source's with"
        " 2/fan-in and uniformly from 0 to 1",
        "random crops have at least 10 % of an image's area, since min_object_covered"
        " of the TPU code overrules the 8 % of the source",
    ),
)

RECIPES = (IMAGENET_18EP,)
