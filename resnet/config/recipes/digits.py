"""The recipes for scikit-learn's handwritten digits."""

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

DIGITS = Recipe(
    name="digits",
    source="this project: scikit-learn's 1,797 handwritten digits, the demo",
    model="resnet18",
    image_size=32,
    global_batch_size=64,
    num_train_examples=1437,
    num_classes=10,
    phases=(
        RecipePhase(
            epochs=12,
            schedule=Schedule(
                init_value=0.01,
                init_value_scales=False,
                peak_value=0.05,
                warmup_length=1,
            ),
            label_smoothing=0.1,
            augmentation="random_shift",  # A mirrored digit is another sign.
        ),
    ),
    eval_crop_fraction=1.0,
)

DIGITS_MLP = Recipe(
    name="digits_mlp",
    source="dmlc/mxnet: dist_sync_mlp.py, its first example of distributed training",
    model="mlp",
    image_size=28,
    global_batch_size=100,
    num_train_examples=DIGITS.num_train_examples,
    num_classes=10,
    phases=(
        RecipePhase(
            name="4_epochs_of_60000",  # The training images of MNIST.
            epochs=4 * 60_000 / DIGITS.num_train_examples,
            schedule=Schedule(peak_value=0.1, decay="none"),
            momentum=0.9,
            weight_decay=4e-4,
            augmentation="none",
        ),
    ),
    nesterov=False,
    learning_rate_in_velocity=True,
    initialization="uniform_0.01",
    eval_crop_fraction=1.0,
    channel_mean=(0.0, 0.0, 0.0),
    channel_stddev=(1.0, 1.0, 1.0),
    scaling="none",
    deviations=(
        "the images are scikit-learn's 1,437 digits, enlarged to 28 pixels, instead of"
        " MNIST's 60,000; the 2,400 steps are those of the source's 4 epochs",
    ),
)

RECIPES = (DIGITS, DIGITS_MLP)
