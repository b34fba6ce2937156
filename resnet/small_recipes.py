"""The recipes for small sets of pictures: Imagenette, CIFAR-10, handwritten digits."""

import dataclasses

from resnet.imagenet_recipes import COLLAPSE_72EP_4K, LARS_40EP_4K, epochs_of
from resnet.recipe import Rates, Recipe, RecipePhase

IMAGENETTE = Recipe(
    name="imagenette",
    source="this project: ResNet-50 from scratch on 9,469 pictures of 10 classes",
    model="resnet50",
    image_size=128,
    global_batch_size=64,
    num_train_examples=9469,
    phases=(
        RecipePhase(
            epochs=16,
            rates=Rates(
                start=0.01,
                start_scales=False,
                peak=0.025,  # The linear rule: 0.1 at 256.
                warmup_epochs=1,
            ),
            label_smoothing=0.1,
        ),
    ),
)


def _shrunk(part: RecipePhase, share: float, factor: float) -> RecipePhase:
    """Returns a phase of that share of its length, its rates times a factor."""
    rates = part.rates or Rates(0.0)
    ends = rates.decay_epochs
    rates = dataclasses.replace(
        rates,
        start=rates.start * factor,
        peak=rates.peak * factor,
        warmup_epochs=rates.warmup_epochs * share,
        decay_epochs=None if ends is None else ends * share,
    )
    return dataclasses.replace(
        part, epochs=part.epochs * share, rates=rates, label_smoothing=0.1
    )


IMAGENETTE_COLLAPSE = dataclasses.replace(
    COLLAPSE_72EP_4K,
    name="imagenette_collapse",
    source="collapse_72ep_4k in 16 epochs, its rates scaled to a batch of 64",
    image_size=128,
    global_batch_size=64,
    num_train_examples=9469,
    phases=tuple(
        _shrunk(part, 16 / epochs_of(22_610, 4096), 64 / 4096)
        for part in COLLAPSE_72EP_4K.phases
    ),
    published="",
    deviations=(),
)

IMAGENETTE_LARS = dataclasses.replace(
    LARS_40EP_4K,
    name="imagenette_lars",
    source="lars_40ep_4k in 16 epochs, its rates scaled by the root of the batch",
    image_size=128,
    global_batch_size=128,
    num_train_examples=9469,
    phases=tuple(
        _shrunk(part, 16 / part.epochs, (128 / 4096) ** 0.5)
        for part in LARS_40EP_4K.phases
    ),
    scaling="root",
    published="",
    deviations=(),
)

CIFAR10 = Recipe(
    name="cifar10",
    source="davidcpage/cifar10-fast: ResNet9, 24 epochs",
    model="resnet9",
    image_size=32,
    global_batch_size=512,
    num_train_examples=50_000,
    phases=(
        RecipePhase(
            epochs=24,
            rates=Rates(peak=0.4, warmup_epochs=5),
            weight_decay=5e-4,
            augmentation="pad_crop_flip_cutout",
        ),
    ),
    batch_norm_decay=0.9,
    eval_crop_fraction=1.0,
    published="top-1 94.08 % (median of 50 runs)",
    deviations=(
        "convolutions start as those of the other networks here; the source's are"
        " PyTorch's",
    ),
)

DIGITS = Recipe(
    name="digits",
    source="this project: scikit-learn's 1,797 handwritten digits, the demo",
    model="resnet18",
    image_size=32,
    global_batch_size=64,
    num_train_examples=1437,
    phases=(
        RecipePhase(
            epochs=12,
            rates=Rates(start=0.01, start_scales=False, peak=0.05, warmup_epochs=1),
            label_smoothing=0.1,
            augmentation="random_shift",  # A mirrored digit is another sign.
        ),
    ),
    eval_crop_fraction=1.0,
)

RECIPES = (IMAGENETTE, IMAGENETTE_COLLAPSE, IMAGENETTE_LARS, CIFAR10, DIGITS)
