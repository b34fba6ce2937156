"""A recipe for few epochs of ImageNet, from the numbers of MosaicML and FFCV."""

from resnet.config.recipe import RecipePhase
from resnet.config.recipes.imagenet import of_resnet50
from resnet.config.schedules import Schedule

_PEAK = 2.048  # For a batch of 2,048.


IMAGENET_18EP = of_resnet50(
    name="imagenet_18ep",
    source="this project, not run yet: the recipe Mild of MosaicML"
    " (mosaicml/examples, blogs/resnet/recipes/resnet50_mild.yaml) with the image sizes"
    " of FFCV (libffcv/ffcv-imagenet, rn50_configs/rn50_16_epochs.yaml)",
    global_batch_size=2048,
    phases=tuple(
        RecipePhase(
            name=f"{image_size}_px",
            epochs=epochs,
            image_size=image_size,
            schedule=schedule,
            momentum=0.875,
            weight_decay=5e-4 / _PEAK,
            loss="binary_cross_entropy",
            label_smoothing=0.08,
        )
        # The sizes of FFCV's get_resolution (train_imagenet.py), whose multiples of 32
        # near a straight line from 11/16 to 13/16 of the epochs are these two.
        for epochs, image_size, schedule in (
            (
                14,
                160,
                Schedule(
                    peak_value=_PEAK,
                    warmup_length=8 * 18 / 28.8,  # In proportion to the source's.
                    decay="cosine",
                ),
            ),
            (4, 192, None),
        )
    ),
    eval_crop_fraction=224 / 232,
    optimizer="sgdw",
    nesterov=False,
    decay_batch_norm=True,
    batch_norm_momentum=0.9,
    blur_pool="all",
    ema_decay=0.5 ** (1 / 100),
    deviations=(
        "it was not run here, and 18 epochs of it nowhere: MosaicML reports 76.19 % for"
        " 28.8 epochs, and FFCV, with other rates and with horizontal flips at 256 px"
        " in evaluation (--views=flip), 73.8 % for 16 and 75.6 % for 24 epochs",
        "the 28.8 epochs of the source and its warmup of 8 are shortened in proportion,"
        " to 18 and 5",
        "images of 160 px for 14 epochs and of 192 px for 4 are FFCV's, whose 16 epochs"
        " have 160 px for 12; the source resizes crops of 176 px to 88 px at first and"
        " from there, in steps of 4, back to 176 px",
        "the weight decay is a factor of the learning rate; the source's of 5e-4 is for"
        " the highest rate",
        "the moving average of the weights moves in each step, in the source every 20"
        " steps; the half-life is the same, 100 steps",
        "convolutions are initialized with a variance of 1/fan-in, the scales of batch"
        " normalization with 1, the last of each block with 0; the source's with"
        " 2/fan-in and uniformly from 0 to 1",
        "random crops have at least 10 % of an image's area, since min_object_covered"
        " of the TPU code overrules the 8 % of the source",
    ),
)

RECIPES = (IMAGENET_18EP,)
