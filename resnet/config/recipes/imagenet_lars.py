"""The recipes of MLPerf's reference runs on ImageNet, which use LARS."""

from typing import NamedTuple

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes.imagenet import IMAGENET, epochs_of, of_resnet50
from resnet.config.schedules import Schedule

SOURCE = (
    "You et al. 2017, arXiv:1708.03888, with the settings of MLPerf's reference runs"
    " (mlcommons/logging, rcps_resnet.json; code: mlcommons/training,"
    " image_classification/tensorflow2)"
)
_DEVIATIONS = (
    "the reference's code (lars_util.py) counts its decay steps, train_steps -"
    " warmup_steps + 1, from the end of the warmup: its decay ends a step after the"
    " run, here with the run",
    "convolutions are initialized with a variance of 1/fan-in; the reference's with"
    " 2/fan-in (he_normal)",
    "3x3 convolutions of stride 2 are padded by a pixel on each side; the reference's"
    " only at the bottom and on the right (padding 'same')",
    "images are resized by bicubic interpolation, the reference's by bilinear",
    "random crops are tried ten times, from 8 % of the area and with aspect ratios from"
    " 3/4 to 4/3; the reference's 100 times, from 5 % and from 0.75 to 1.33; in both,"
    " min_object_covered overrules areas below 10 %",
    "images are normalized by ImageNet's mean and standard deviation; the reference"
    " only subtracts the mean, on a scale of 0 to 255",
    "the printed loss contains the weight penalty; the reference's doesn't",
)


class _Row(NamedTuple):
    """A row of MLPerf's table."""

    name: str
    batch: int
    peak: float
    warmup_epochs: float
    decay_steps: int
    weight_decay: float
    rank_batch_size: int


def _lars(
    row: _Row,
    published: str,
    reading: str,
    after_warmup: bool = False,
    momentum: float = 0.9,
) -> Recipe:
    """Returns the recipe of a row: LARS with a decay of power 2 to 1e-4.

    `reading` is the reason for counting the decay steps `after_warmup`, or not.
    """
    steps = row.decay_steps
    if after_warmup:
        steps += round(row.warmup_epochs * IMAGENET / row.batch)
    begin = "the end of the warmup" if after_warmup else "the start of the run"
    return of_resnet50(
        name=row.name,
        source=SOURCE,
        global_batch_size=row.batch,
        phases=(
            RecipePhase(
                epochs=epochs_of(steps, row.batch),
                schedule=Schedule(
                    peak_value=row.peak,
                    warmup_length=row.warmup_epochs,
                    power=2.0,
                    end_value=1e-4,
                ),
                momentum=momentum,
                weight_decay=row.weight_decay,
                label_smoothing=0.1,
            ),
        ),
        batch_norm_momentum=0.9,
        optimizer="lars",
        nesterov=False,
        learning_rate_in_velocity=True,
        zero_last_gamma=False,
        scaling="none",
        published=published,
        deviations=(
            "the source's table doesn't say where its decay steps are counted from;"
            f" here its {row.decay_steps:,} are counted from {begin}, so that the run"
            f" has {epochs_of(steps, row.batch):.1f} epochs: {reading}",
            *_DEVIATIONS,
        ),
        rank_batch_size=row.rank_batch_size,
    )


LARS_40EP_4K = _lars(
    _Row("lars_40ep_4k", 4096, 10.0, 5, 13_137, 2e-4, 64),
    published="top-1 75.9 % after 40.0 epochs (39 to 42, 10 runs)",
    reading="the README of the reference trains this row for 42 epochs, 5 of them"
    " warmup",
)

RECIPES = (
    _lars(
        _Row("lars_35ep_1632", 1632, 7.4, 2, 27_476, 5e-5, 204),
        published="top-1 75.9 % after 35.0 epochs (33 to 37, 17 runs)",
        reading="from the start, the decay would end after 35.0 epochs, and reference"
        " runs needed up to 37",
        after_warmup=True,
    ),
    _lars(
        _Row("lars_35ep_3264", 3264, 10.5, 2, 14_523, 5e-5, 204),
        published="top-1 75.9 % after 35.2 epochs (34 to 37, 15 runs)",
        reading="that is what the slowest reference runs needed, and what the row for"
        " a batch of 1,632 has with its warmup",
    ),
    LARS_40EP_4K,
    _lars(
        _Row("lars_42ep_8k", 8192, 17.0, 5, 6095, 2e-4, 64),
        published="top-1 75.9 % after 42.0 epochs (41 to 44, 10 runs)",
        reading="from the start, the decay would end after 39.0 epochs, and reference"
        " runs needed 41 to 44",
        after_warmup=True,
    ),
    _lars(
        _Row("lars_45ep_13k", 13_056, 12.8, 9, 4710, 2.5e-5, 204),
        published="top-1 75.9 % after 45.4 epochs (44 to 46, 10 runs)",
        reading="reference runs needed up to 46; from the end of the warmup, it would"
        " have 57.0",
    ),
    _lars(
        _Row("lars_56ep_32k", 32_768, 21.2, 16, 2267, 2.5e-5, 128),
        published="top-1 75.9 % after 56.0 epochs (55 to 57, 10 runs)",
        reading="reference runs needed up to 57; from the end of the warmup, it would"
        " have 74.0",
        momentum=0.94,
    ),
)
