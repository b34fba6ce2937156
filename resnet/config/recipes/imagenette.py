"""The recipes for Imagenette, ten classes of ImageNet, and for fine-tuning."""

import dataclasses
import functools
from typing import Any

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes.imagenet import COLLAPSE_72EP_4K
from resnet.config.recipes.imagenet_lars import LARS_40EP_4K
from resnet.config.schedules import Schedule

_of_imagenette = functools.partial(
    Recipe, global_batch_size=64, num_train_examples=9469, num_classes=10
)

IMAGENETTE = _of_imagenette(
    name="imagenette",
    source="this project: ResNet-50 from scratch on 9,469 images of 10 classes",
    model="resnet50",
    image_size=128,
    phases=(
        RecipePhase(
            epochs=16,
            schedule=Schedule(
                init_value=0.01,
                init_value_scales=False,
                peak_value=0.025,  # The linear rule: 0.1 at 256.
                warmup_length=1,
            ),
            label_smoothing=0.1,
        ),
    ),
)


def _shrunk_recipe(base: Recipe, name: str, source: str, factor: float) -> Recipe:
    """Returns a recipe for ImageNet in 16 epochs, with its rates times `factor`."""
    fraction = 16 / base.epochs
    return dataclasses.replace(
        base,
        name=name,
        source=source,
        image_size=128,
        global_batch_size=64,
        num_train_examples=9469,
        num_classes=10,
        phases=tuple(
            dataclasses.replace(
                scaled_phase(phase, fraction, factor), label_smoothing=0.1
            )
            for phase in base.phases
        ),
        published="",
        deviations=(),
        rank_batch_size=0,
    )


def scaled_phase(phase: RecipePhase, fraction: float, factor: float) -> RecipePhase:
    """Returns a phase with its length times `fraction` and its rates times `factor`."""
    schedule = phase.schedule
    if schedule is not None:
        schedule = dataclasses.replace(
            schedule,
            init_value=schedule.init_value * factor,
            peak_value=schedule.peak_value * factor,
            end_value=schedule.end_value * factor,
            warmup_length=schedule.warmup_length * fraction,
            decay_end=schedule.decay_end and schedule.decay_end * fraction,
            boundaries=tuple(epoch * fraction for epoch in schedule.boundaries),
        )
    return dataclasses.replace(phase, epochs=phase.epochs * fraction, schedule=schedule)


IMAGENETTE_COLLAPSE = _shrunk_recipe(
    COLLAPSE_72EP_4K,
    "imagenette_collapse",
    "collapse_72ep_4k in 16 epochs, its learning rates scaled to a batch of 64",
    factor=64 / 4096,
)

IMAGENETTE_LARS = dataclasses.replace(
    _shrunk_recipe(
        LARS_40EP_4K,
        "imagenette_lars",
        "lars_40ep_4k in 16 epochs; learning rates and trust coefficient are this"
        " project's",
        factor=0.01,
    ),
    eval_crop="crop_then_resize",
    zero_last_gamma=True,
    # LARS doesn't scale the updates of normalizations and biases. Since gradients of a
    # small batch are noisy, the learning rate itself must be far below that for 4,096.
    trust_coefficient=0.02,
    scaling="root",
)


def _muon_phases(
    epochs_of: dict[int, float], warmup_epochs: float, **settings: Any
) -> tuple[RecipePhase, ...]:
    """Returns phases of so many epochs by image size, with one cosine over all."""
    schedule = Schedule(
        init_value=0.007,
        init_value_scales=False,
        peak_value=0.07,
        warmup_length=warmup_epochs,
        decay="cosine",
    )
    return tuple(
        RecipePhase(
            epochs=epochs,
            schedule=None if number else schedule,
            name=f"{image_size}_px",
            image_size=image_size,
            weight_decay=5e-4,
            label_smoothing=0.1,
            # Fractions of Muon's rate for the variables that it doesn't orthogonalize.
            layer_rates="/gamma:0.35,/beta:0.35,classifier:0.35",
            **settings,
        )
        for number, (image_size, epochs) in enumerate(epochs_of.items())
    )


IMAGENETTE_BEST = _of_imagenette(
    name="imagenette_best",
    source="this project: chosen on a tenth of the training images, held back",
    model="resnet34d",
    blur_pool="convolutions",
    # That of the last phase. With 144 or 176 px, which the network's stride of 32
    # doesn't divide, fewer held-back images were classified correctly.
    image_size=160,
    phases=_muon_phases({96: 5, 128: 9, 160: 6}, warmup_epochs=1, min_crop_area=0.35),
    optimizer="muon",
    muon_momentum=0.6,
    ema_decay=0.996,
    # The rule for updates whose size doesn't depend on the gradient's (Malladi et al.
    # 2022, arXiv:2205.10287, for Adam).
    scaling="root",
)

IMAGENETTE_5EP = dataclasses.replace(
    IMAGENETTE_BEST,
    name="imagenette_5ep",
    activation="mish",
    phases=_muon_phases(
        {128: 2.5, 160: 2.5},
        warmup_epochs=0.5,
        min_crop_area=0.75,
        flips="alternating",
    ),
    ema_decay=0.0,  # The averages of 740 steps were less accurate than the weights.
)

FINETUNE = _of_imagenette(
    name="finetune",
    source="this project: ResNet-50 of --initial_weights, for the size of Imagenette",
    model="resnet50",
    image_size=224,
    phases=(
        RecipePhase(
            epochs=8,
            schedule=Schedule(
                peak_value=0.0025,  # A tenth of the recipe imagenette's.
                warmup_length=1,
                decay="cosine",
            ),
            label_smoothing=0.1,
            # The classifier is new, and learns as fast as in a training from scratch.
            layer_rates="classifier:10",
        ),
    ),
    needs_weights=True,
)

RECIPES = (
    IMAGENETTE,
    IMAGENETTE_BEST,
    IMAGENETTE_5EP,
    IMAGENETTE_COLLAPSE,
    IMAGENETTE_LARS,
    FINETUNE,
)
