"""The recipes for small sets of pictures: Imagenette, CIFAR-10, handwritten digits."""

import dataclasses

from resnet.imagenet_recipes import COLLAPSE_72EP_4K, LARS_40EP_4K
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


def _for_imagenette(
    base: Recipe, name: str, source: str, global_batch_size: int, factor: float
) -> Recipe:
    """Returns a recipe for ImageNet in 16 epochs of Imagenette.

    Args:
        base: The recipe.
        name: Of the new one.
        source: Of its numbers.
        global_batch_size: Of the new one.
        factor: Of its rates to those of the base.
    """
    share = 16 / sum(part.epochs for part in base.phases)
    return dataclasses.replace(
        base,
        name=name,
        source=source,
        image_size=128,
        global_batch_size=global_batch_size,
        num_train_examples=9469,
        phases=tuple(_shrunk(part, share, factor) for part in base.phases),
        published="",
        deviations=(),
        rank_batch_size=0,
    )


def _shrunk(part: RecipePhase, share: float, factor: float) -> RecipePhase:
    """Returns a phase of that share of its length, its rates times a factor."""
    rates = part.rates
    if rates is not None:
        ends = rates.decay_epochs
        rates = dataclasses.replace(
            rates,
            start=rates.start * factor,
            peak=rates.peak * factor,
            end=rates.end * factor,
            warmup_epochs=rates.warmup_epochs * share,
            decay_epochs=None if ends is None else ends * share,
            drop_epochs=tuple(drop * share for drop in rates.drop_epochs),
        )
    return dataclasses.replace(
        part, epochs=part.epochs * share, rates=rates, label_smoothing=0.1
    )


IMAGENETTE_COLLAPSE = _for_imagenette(
    COLLAPSE_72EP_4K,
    "imagenette_collapse",
    "collapse_72ep_4k in 16 epochs, its rates scaled to a batch of 64",
    global_batch_size=64,
    factor=64 / 4096,
)

IMAGENETTE_LARS = dataclasses.replace(
    _for_imagenette(
        LARS_40EP_4K,
        "imagenette_lars",
        "lars_40ep_4k in 16 epochs; rates and trust coefficient are this project's",
        global_batch_size=64,
        factor=0.01,
    ),
    # What LARS doesn't scale, normalizations and biases, moves by the rate itself,
    # which in a small batch, with its noise, must be far below that of 4,096.
    trust_coefficient=0.02,
    scaling="root",
)

IMAGENETTE_BEST = Recipe(
    name="imagenette_best",
    source="this project: chosen on a tenth of the training pictures held back",
    model="resnet50d",
    image_size=128,
    global_batch_size=32,
    num_train_examples=9469,
    phases=tuple(
        RecipePhase(
            epochs=epochs,
            rates=rates,
            name=f"{image_size}_px",
            image_size=image_size,
            weight_decay=5e-4,
            label_smoothing=0.1,
            smallest_crop=0.35,
        )
        for epochs, image_size, rates in (
            (
                *(6, 96),
                Rates(
                    start=0.005,
                    start_scales=False,
                    peak=0.05,
                    warmup_epochs=1,
                    decay="cosine",
                ),
            ),
            (5, 112, None),
            (5, 128, None),
        )
    ),
    optimizer="lars",
    # The rates are those of what LARS doesn't scale: normalizations and biases.
    trust_coefficient=0.02,
    ema_decay=0.998,
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
        "pictures are normalized by ImageNet's mean and deviation; the source's by"
        " CIFAR-10's",
        "weights of normalizations don't decay; the source's do",
    ),
    rank_batch_size=512,
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

RECIPES = (
    IMAGENETTE,
    IMAGENETTE_BEST,
    IMAGENETTE_COLLAPSE,
    IMAGENETTE_LARS,
    CIFAR10,
    DIGITS,
)
