"""The phases of a recipe in steps, for the tests of `resnet.config.resolve`."""

from resnet.config.phases import Phase
from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.recipes import imagenet
from resnet.config.resolve import phases_in_steps
from resnet.config.schedules import Schedule

TPU = imagenet.TPU_90EP_24K
COLLAPSE = imagenet.COLLAPSE_72EP_4K
# 40 examples in batches of 4: 10 steps an epoch.
TWO_PHASES = Recipe(
    name="two",
    source="here",
    model="resnet18",
    image_size=32,
    global_batch_size=4,
    num_train_examples=40,
    phases=(
        RecipePhase(
            epochs=4, schedule=Schedule(peak_value=1.0, warmup_length=1), name="first"
        ),
        RecipePhase(epochs=2, name="second", weight_decay=1e-4),
    ),
)


def fit(
    recipe: Recipe = TPU,
    batch: int | None = None,
    num_train_examples: int | None = None,
    **given,
) -> tuple[Phase, ...]:
    return phases_in_steps(
        recipe,
        given,
        batch or recipe.global_batch_size,
        num_train_examples or recipe.num_train_examples,
    )


def schedule_of(*arguments, **given) -> Schedule:
    """Returns the rates of a run of one phase."""
    (phase,) = fit(*arguments, **given)
    assert phase.schedule is not None
    return phase.schedule
