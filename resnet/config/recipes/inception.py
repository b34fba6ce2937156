"""The recipes of MXNet's distributed Inception-BN, for CIFAR-10 and ImageNet.

Workers are machines with two GPUs each. The learning rate is for the mean gradient over
the batches of all workers (BSP), or of each worker's batch (asynchronous).
"""

import dataclasses

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes.imagenet import IMAGENET
from resnet.config.schedules import Schedule

SOURCE = "dmlc/mxnet, example/distributed-training, of November 2015"
NUM_WORKERS = 5

_DEVIATIONS = (
    "the mean of each channel is subtracted from the images; the source subtracts the"
    " mean image",
    "the examples have another order in each epoch, and each rank's are drawn from all;"
    " in the source a worker reads its part of a file in the file's order",
    "the moving variance of batch normalization is that of unbiased estimates, and"
    " evaluations use the mean of the ranks' moving statistics; in the source each"
    " worker evaluates with its own",
)


def _phase(epochs: float, rate: float, name: str = "train") -> RecipePhase:
    return RecipePhase(
        name=name,
        epochs=epochs,
        schedule=Schedule(peak_value=rate, decay="none"),
        momentum=0.9,
        weight_decay=1e-5,
        augmentation="random_crop",
    )


CIFAR10_BSP = Recipe(
    name="cifar10_inception_bsp",
    source=f"{SOURCE}: CIFAR-10 on {NUM_WORKERS} workers of 256 examples, BSP",
    model="inception_bn_28",
    image_size=28,  # Cropped from 32.
    global_batch_size=NUM_WORKERS * 256,
    num_train_examples=50_000,
    num_classes=10,
    phases=(
        # What the source calls an epoch has 60,000 of the 50,000 images.
        _phase(40 * 60_000 / 50_000, 0.4, "40_epochs_of_60000"),
    ),
    batch_norm_momentum=0.9,
    batch_norm_epsilon=1e-10,
    nesterov=False,
    learning_rate_in_velocity=True,
    initialization="uniform_0.07",
    decay_batch_norm=True,
    eval_crop="resize_then_crop",
    channel_mean=(0.4914, 0.4822, 0.4465),
    channel_stddev=(1 / 255,) * 3,  # The source doesn't divide values of 0 to 255.
    scaling="none",
    published="top-1 88.83 %",
    deviations=(
        "an epoch of the source has 60,000 examples, which are"
        " 1.2 passes over the 50,000 training images: its 40 epochs are 48 here",
        "an epoch of the source ends with the last whole batch, so its 40 epochs have"
        " 1,840 steps; here they have 1,875",
        "of the source's four runs this is the best; --train_batch_size=2560 and"
        " --peak_learning_rate=0.1 choose the others",
        *_DEVIATIONS,
    ),
    rank_batch_size=128,
)

CIFAR10_ASYNC = dataclasses.replace(
    CIFAR10_BSP,
    name="cifar10_inception_async",
    sync_mode="async",
    source=f"{SOURCE}: CIFAR-10 on {NUM_WORKERS} workers of 256 examples, asynchronous",
    phases=(
        dataclasses.replace(
            CIFAR10_BSP.phases[0], schedule=Schedule(peak_value=0.1, decay="none")
        ),
    ),
    published="",
    deviations=(
        "the source names this run without its settings and results; the batch of 256"
        " for each worker and the learning rate of 0.1 are those of its other runs",
        *(text for text in CIFAR10_BSP.deviations if "four runs" not in text),
    ),
)

IMAGENET_BSP = dataclasses.replace(
    CIFAR10_BSP,
    name="imagenet_inception_bsp",
    source=f"{SOURCE}: ImageNet on {NUM_WORKERS} workers of 96 examples, BSP",
    model="inception_bn",
    image_size=224,
    global_batch_size=NUM_WORKERS * 96,
    num_train_examples=IMAGENET,
    phases=(_phase(20, 0.05),),
    initialization="uniform_0.01",
    channel_mean=(0.485, 0.456, 0.406),
    published="top-1 63.13 % after 19 epochs",
    deviations=(
        "the source's program trains for 30 epochs; this run has 20, since the source"
        " reports no more",
        "the source's program doesn't name the distribution of the initial weights;"
        " here it is MXNet's default",
        "images are cropped from ones whose shorter side is 256 pixels; the source"
        " doesn't say which size its stored images have",
        "the source's accuracy is that of one worker on its own part of the validation"
        " images",
        *_DEVIATIONS,
    ),
    rank_batch_size=48,
)

IMAGENET_ASYNC = dataclasses.replace(
    IMAGENET_BSP,
    name="imagenet_inception_async",
    sync_mode="async",
    source=f"{SOURCE}: ImageNet on {NUM_WORKERS} workers of 96 examples, asynchronous",
    published="top-1 57.96 % after 10 epochs",
    deviations=(
        "of the source's two runs this is that with the learning rate of 0.05;"
        " --peak_learning_rate=0.1 chooses the other (56.55 % after 10 epochs, 58.95 %"
        " after 20); after 20 epochs, the source's log has 59.73 % for this one",
        *IMAGENET_BSP.deviations,
    ),
)

RECIPES = (CIFAR10_BSP, CIFAR10_ASYNC, IMAGENET_BSP, IMAGENET_ASYNC)
