"""The recipes for CIFAR-10."""

import dataclasses

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

_DEVIATIONS = (
    "the rate of a step is that of the step before it in the source, so the first step"
    " changes nothing",
    "all training images count: the source drops the incomplete batch of each epoch",
)
_STUDY = "Dutta et al. 2019, arXiv:1911.08250: sands-lab/layer-wise-aaai20"
_STUDY_DEVIATIONS = (
    "the batch is 512 in all; in the source it is 512 on each of two or more ranks, and"
    " each of them reads the whole data set in an order of its own",
    *_DEVIATIONS,
)

RESNET9 = Recipe(
    name="cifar10_resnet9_24ep",
    source="davidcpage/cifar10-fast: ResNet9, 24 epochs",
    model="resnet9",
    image_size=32,
    global_batch_size=512,
    num_train_examples=50_000,
    phases=(
        RecipePhase(
            epochs=24,
            schedule=Schedule(peak_value=0.4, warmup_length=5),
            momentum=0.9,
            weight_decay=5e-4,
            augmentation="pad_crop_flip_cutout",
        ),
    ),
    batch_norm_momentum=0.9,
    eval_crop_fraction=1.0,
    initialization="pytorch",
    decay_batch_norm=True,
    channel_mean=(0.4914, 0.4822, 0.4465),
    channel_stddev=(0.2471, 0.2435, 0.2616),
    published="top-1 94.08 % (median of 50 runs)",
    deviations=_DEVIATIONS,
    rank_batch_size=512,
)

ALEXNET_BN = dataclasses.replace(
    RESNET9,
    name="cifar10_alexnet_bn_24ep",
    source=f"{_STUDY}, Alexnet",
    model="alexnet_bn",
    published="",
    deviations=(
        "momentum is 0.9 with Nesterov, as in cifar10-fast; the source has none by"
        " default",
        *_STUDY_DEVIATIONS,
    ),
)

ALEXNET = dataclasses.replace(
    ALEXNET_BN,
    name="cifar10_alexnet_24ep",
    source=f"{_STUDY}, Alexnet1",
    model="alexnet",
    # The source's default. With 0.9 it had not learned anything when the learning rate
    # became too high for it.
    phases=(dataclasses.replace(RESNET9.phases[0], momentum=0.0),),
    nesterov=False,
    deviations=_STUDY_DEVIATIONS,
    rank_batch_size=0,
)

# An alias of the recipe for ResNet-9, whose name this was.
CIFAR10 = dataclasses.replace(RESNET9, name="cifar10")

RECIPES = (CIFAR10, RESNET9, ALEXNET_BN, ALEXNET)
