"""Named recipes: the numbers of published and of small runs, with their sources."""

from dataclasses import dataclass

from data_prep.errors import UserError

IMAGENET_TRAIN_EXAMPLES = 1_281_167


@dataclass(frozen=True)
class Recipe:
    """The settings that belong to one another.

    Attributes:
        name: What `--recipe` calls it.
        source: Where the numbers come from.
        model: A name of `resnet.models.build`.
        image_size: Side of the square that the network sees, in pixels.
        global_batch_size: Examples in one step, over all ranks.
        train_epochs: Length of the training.
        warmup_epochs: Length of the warm-up.
        base_learning_rate: Rate for a batch of 256, and of step 0.
        peak_share: The rate after the warm-up is `peak_share` times
            `base_learning_rate` x global batch / 256.
        momentum: Of the velocity, with Nesterov's correction.
        weight_decay: Times the variable, added to its gradient; on all variables but
            those of batch normalization.
        batch_norm_decay: Of the moving mean and variance.
        label_smoothing: Share of the label spread evenly over all classes.
        augmentation: A name of `resnet.config.AUGMENTATIONS`.
        eval_crop_fraction: Side of the central square that evaluation looks at, as a
            share of the picture's shorter side.
        eval_crop: A name of `resnet.config.EVAL_CROPS`.
        published_train_steps: The source's number of steps, where its rounding makes
            it differ from what the epochs give; for its own batch and data set.
        num_train_examples: Of that data set.
    """

    name: str
    source: str
    model: str
    image_size: int
    global_batch_size: int
    train_epochs: float
    warmup_epochs: float
    base_learning_rate: float
    peak_share: float
    momentum: float
    weight_decay: float
    batch_norm_decay: float
    label_smoothing: float
    augmentation: str
    eval_crop_fraction: float
    eval_crop: str = "crop_then_resize"
    published_train_steps: int | None = None
    num_train_examples: int | None = None


TPU_90EP_24K = Recipe(
    name="tpu_90ep_24k",
    source="SURFsara, Intel and Dell 2018: 256 nodes, 512 ranks of 48 examples",
    model="resnet50",
    image_size=224,
    global_batch_size=24_576,
    train_epochs=90,
    warmup_epochs=5,
    base_learning_rate=0.1,
    peak_share=0.5,  # 9.6 by the linear rule; the source found 4.8 better.
    momentum=0.9,
    weight_decay=5e-5,
    batch_norm_decay=0.95,
    label_smoothing=0.0,
    augmentation="random_resized_crop",
    eval_crop_fraction=0.875,
    published_train_steps=4680,  # The source counts 1,280,000 images an epoch.
    num_train_examples=IMAGENET_TRAIN_EXAMPLES,
)

IMAGENETTE = Recipe(
    name="imagenette",
    source="this project: ResNet-50 from scratch on 9,469 pictures of 10 classes",
    model="resnet50",
    image_size=128,
    global_batch_size=64,
    train_epochs=16,
    warmup_epochs=1,
    base_learning_rate=0.01,
    peak_share=10.0,  # The linear rule: 0.025 at a batch of 64, 0.1 at 256.
    momentum=0.9,
    weight_decay=5e-5,
    batch_norm_decay=0.95,
    label_smoothing=0.1,
    augmentation="random_resized_crop",
    eval_crop_fraction=0.875,
)

DIGITS = Recipe(
    name="digits",
    source="this project: scikit-learn's 1,797 handwritten digits, the demo",
    model="resnet18",
    image_size=32,
    global_batch_size=64,
    train_epochs=12,
    warmup_epochs=1,
    base_learning_rate=0.01,
    peak_share=20.0,  # 0.05 at a batch of 64.
    momentum=0.9,
    weight_decay=5e-5,
    batch_norm_decay=0.95,
    label_smoothing=0.1,
    augmentation="random_shift",  # A mirrored digit is another sign.
    eval_crop_fraction=1.0,
)

RECIPES = {recipe.name: recipe for recipe in (TPU_90EP_24K, IMAGENETTE, DIGITS)}


def get(name: str) -> Recipe:
    """Returns the recipe of that name.

    Raises:
        UserError: If there is none.
    """
    if name not in RECIPES:
        raise UserError(
            f"expected a recipe among {', '.join(sorted(RECIPES))}; got {name!r}"
        )
    return RECIPES[name]
