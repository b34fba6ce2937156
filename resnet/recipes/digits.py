"""The recipe for scikit-learn's handwritten digits."""

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

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

RECIPES = (DIGITS,)
