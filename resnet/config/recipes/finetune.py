"""The recipe for fine-tuning a network that was trained on other images."""

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

FINETUNE = Recipe(
    name="finetune",
    source="this project: ResNet-50 of --initial_weights, for the size of Imagenette",
    model="resnet50",
    image_size=224,
    global_batch_size=64,
    num_train_examples=9469,
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
)

RECIPES = (FINETUNE,)
