"""The recipes of published runs on ImageNet, with their sources."""

import functools

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

IMAGENET = 1_281_167  # Training images.
SURFSARA = "SURFsara, Intel and Dell 2018"
CAFFE_SOURCE = (
    "Codreanu et al. 2017, arXiv:1711.04291, with the solvers of sara-nl/caffe"
)


of_resnet50 = functools.partial(
    Recipe,
    model="resnet50",
    image_size=224,
    num_train_examples=IMAGENET,
    eval_crop="resize_then_crop",
)
_of_caffe = functools.partial(
    of_resnet50, nesterov=False, learning_rate_in_velocity=True, zero_last_gamma=False
)


def epochs_of(steps: int, batch: int) -> float:
    """Returns the number of epochs of ImageNet in some steps of a batch size."""
    return steps * batch / IMAGENET


def _gradual_warmup_then_dec(
    batch: int, steps: int, warmup_steps: int, peak: float
) -> tuple[RecipePhase, ...]:
    """Returns the phase of the source's function of this name."""
    return (
        RecipePhase(
            epochs=epochs_of(steps, batch),
            schedule=Schedule(
                init_value=0.1,
                init_value_scales=False,
                peak_value=peak,
                warmup_length=epochs_of(warmup_steps, batch),
            ),
            augmentation="random_resized_crop_2018_02",
        ),
    )


_OF_RANK_0 = (
    "the averages of batch normalization are means over all ranks; the source evaluates"
    " and saves those of rank 0"
)

_TPU_DEVIATIONS = (
    _OF_RANK_0,
    "convolutions are initialized with a variance of 1/fan-in; in the source by"
    " TensorFlow 1.6, whose truncated normal distribution had 0.77/fan-in",
    "each rank's examples are drawn from all; in the source a rank reads its part of"
    " them",
    "the source doesn't say which version of the TPU code it changed; its line numbers"
    " and the names of the metrics in its log are those of February 2018, so images are"
    " cropped as there; --augmentation=random_resized_crop"
    " --eval_crop=crop_then_resize crops them as in April 2018",
    "random crops have at least 10 % of an image's area, as in the source, where"
    " min_object_covered overrules the 8 % of area_range",
)

TPU_90EP_24K = of_resnet50(
    name="tpu_90ep_24k",
    source=f"{SURFSARA}: 256 nodes, 512 ranks of 48 examples",
    global_batch_size=24_576,
    # 9.6 by the linear rule; the source found 4.8 better.
    phases=_gradual_warmup_then_dec(24_576, 4680, 260, 4.8),
    published="top-1 of 75 % and more",
    deviations=(
        "the source counts 1,280,000 images per epoch; its 4,680 steps are 89.77"
        " epochs",
        *_TPU_DEVIATIONS,
    ),
    rank_batch_size=48,
)

TPU_90EP_8K = of_resnet50(
    name="tpu_90ep_8k",
    source=f"{SURFSARA}: its run of 14,075 steps",
    global_batch_size=8192,
    phases=_gradual_warmup_then_dec(8192, 14_075, 782, 3.2),
    published="top-1 75.232 %, top-5 92.41 %",
    deviations=(
        "the source doesn't say which run reached 75.232 %; that it is this one is"
        " inferred from the step in its log, 14,075, which is 90 epochs of batches of"
        " 8,192",
        "the source doesn't state this run's learning rates; 3.2 follows the linear"
        " rule, 0.1 for 256 examples, and the warmup is 5 epochs",
        *_TPU_DEVIATIONS,
    ),
)


def _caffe_phase(
    name: str,
    batch: int,
    steps: int,
    peak: float,
    decay_steps: int | None,
    power: float,
    start: float = 0.0,
    warmup_steps: int = 0,
    init_value_scales: bool = True,
    weight_decay: float = 5e-5,
    augmentation: str = "random_resized_crop",
) -> RecipePhase:
    """Returns the phase of a Caffe solver; without `decay_steps` it ends the decay."""
    decay_epochs = None if decay_steps is None else epochs_of(decay_steps, batch)
    return RecipePhase(
        name=name,
        epochs=epochs_of(steps, batch),
        schedule=Schedule(
            init_value=start,
            init_value_scales=init_value_scales,
            peak_value=peak,
            warmup_length=epochs_of(warmup_steps, batch),
            decay_start=0.0,
            decay_end=decay_epochs,
            power=power,
        ),
        reset_momentum=True,
        weight_decay=weight_decay,
        augmentation=augmentation,
    )


_CAFFE_DEVIATIONS = (
    _OF_RANK_0,
    "images are normalized by ImageNet's mean and standard deviation; the source"
    " subtracts (104, 117, 123) and divides by 128",
    "convolutions are initialized with a variance of 1/fan-in; the source's with"
    " 2/fan-in, except for the first with 2/fan-out, which has a bias",
    "the order of the examples continues from phase to phase; in the source it starts"
    " over",
    "crops are taken from images of their original sizes; the source stored its images"
    " resized",
    "random crops have at least 10 % of an image's area, since min_object_covered of"
    " the TPU code overrules the 8 % of the source",
    "the scales of all batch normalizations begin with 1; in the source's files, those"
    " of the last one of some stages begin with 0",
    "batch normalization's parameters don't decay; in the source, the layers without"
    " decay are merged into layers that may decay",
)

COLLAPSE_72EP_4K = _of_caffe(
    name="collapse_72ep_4k",
    source=f"{CAFFE_SOURCE} (resnet50_custom_lr): 64 nodes, 128 ranks of 32 examples",
    global_batch_size=4096,
    phases=(
        _caffe_phase(
            "init", 4096, 7800, 1.6, 18_720, 1, 0.1, 1560, init_value_scales=False
        ),
        _caffe_phase("cyc1", 4096, 3750, 1.02, 7500, 2),
        _caffe_phase("cyc2", 4096, 4750, 0.764, 7500, 2, 0.255, 1000),
        _caffe_phase("cyc3", 4096, 4750, 0.572, 7500, 2, 0.19, 1000),
        _caffe_phase(
            "collapse",
            4096,
            1560,
            0.143,
            None,
            2,
            weight_decay=2e-4,
            augmentation="random_crop",
        ),
    ),
    published="top-1 76.278 %, top-5 93.186 %",
    deviations=_CAFFE_DEVIATIONS,
    rank_batch_size=32,
)

COLLAPSE_94EP_14K = _of_caffe(
    name="collapse_94ep_14k",
    source=f"{CAFFE_SOURCE} (resnet50_448nodes): 448 nodes, 896 ranks of 16 examples",
    global_batch_size=14_336,
    phases=(
        _caffe_phase("linear", 14_336, 7638, 4.8, 8040, 1, 0.1, 446, False),
        _caffe_phase(
            "collapse",
            14_336,
            402,
            0.254,
            None,
            2,
            weight_decay=1e-4,
            augmentation="random_crop",
        ),
    ),
    published="top-1 76.152 %, top-5 93.176 % (75.6 %, 92.7 % without the collapse)",
    deviations=(
        "the source trained its linear phase to step 8,040 (94 epochs with the collapse"
        " from step 7,638); the steps after 7,638 are left out here, since the collapse"
        " doesn't start from them",
        *_CAFFE_DEVIATIONS,
    ),
    rank_batch_size=16,
)


# The source's velocity contains the rate, but with momentum correction.
GOYAL_90EP_8K = of_resnet50(
    name="goyal_90ep_8k",
    source="Goyal et al. 2017, arXiv:1706.02677: 256 ranks of 32 examples",
    global_batch_size=8192,
    phases=(
        RecipePhase(
            epochs=90,
            schedule=Schedule(
                init_value=0.1,
                init_value_scales=False,
                peak_value=3.2,  # 0.1 for 256 examples.
                warmup_length=5,
                decay="steps",
                boundaries=(30, 60, 80),
            ),
            weight_decay=1e-4,
        ),
    ),
    batch_norm_momentum=0.9,
    published="no loss of accuracy against a batch of 256",
    deviations=(
        "convolutions are initialized with a variance of 1/fan-in; the source's with"
        " 2/fan-in (He et al., arXiv:1502.01852)",
        "random crops have at least 10 % of an image's area, since min_object_covered"
        " of the TPU code overrules 8 %",
    ),
    rank_batch_size=32,
)

RECIPES = (
    TPU_90EP_24K,
    TPU_90EP_8K,
    COLLAPSE_72EP_4K,
    COLLAPSE_94EP_14K,
    GOYAL_90EP_8K,
)
