"""The recipe for CIFAR-10."""

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

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
            schedule=Schedule(peak_value=0.4, warmup_length=5),
            weight_decay=5e-4,
            augmentation="pad_crop_flip_cutout",
        ),
    ),
    batch_norm_momentum=0.9,
    eval_crop_fraction=1.0,
    published="top-1 94.08 % (median of 50 runs)",
    deviations=(
        "convolutions are initialized as in the other networks here; in the source as"
        " PyTorch does",
        "images are normalized by ImageNet's mean and standard deviation; in the source"
        " by CIFAR-10's",
        "batch normalization's parameters don't decay; in the source they do",
    ),
    rank_batch_size=512,
)

RECIPES = (CIFAR10,)
