"""What a recipe consists of: lengths in epochs, rates for the recipe's own batch."""

from dataclasses import dataclass

SCALINGS = ("linear", "root", "none")


@dataclass(frozen=True)
class Rates:
    """A learning rate over the epochs, as `schedules.Curve` is one over the steps.

    Attributes:
        peak: Rate that the warm-up leads to, for the recipe's batch.
        start: Rate at the beginning.
        start_scales: Whether another batch scales `start` as it does `peak`.
        warmup_epochs: Length of the warm-up.
        decay: A name of `schedules.DECAYS`.
        decays_from_start: Whether the decay is counted from the beginning, as Caffe's,
            or from the end of the warm-up.
        decay_epochs: Where the decay ends, from the beginning; None: with the phases
            that the rates are for.
        power: Of a polynomial decay.
        end: Rate at its end.
        drop_epochs: Where a decay in steps drops, from the beginning.
        drop_factor: Of each drop.
    """

    peak: float
    start: float = 0.0
    start_scales: bool = True
    warmup_epochs: float = 0.0
    decay: str = "polynomial"
    decays_from_start: bool = False
    decay_epochs: float | None = None
    power: float = 1.0
    end: float = 0.0
    drop_epochs: tuple[float, ...] = ()
    drop_factor: float = 0.1


@dataclass(frozen=True)
class RecipePhase:
    """A part of a recipe.

    Attributes:
        epochs: Length.
        rates: From the beginning of this phase; None goes on along those of the phase
            before.
        name: Of the phase.
        image_size: Side of the images that it trains on; None is the recipe's.

    The others are those of `phases.Phase`.
    """

    epochs: float
    rates: Rates | None = None
    name: str = "train"
    fresh_momentum: bool = False
    momentum: float = 0.9
    weight_decay: float = 5e-5
    label_smoothing: float = 0.0
    image_size: int | None = None
    augmentation: str = "random_resized_crop"
    smallest_crop: float = 0.08
    random_augment: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """The settings that belong to one another.

    Attributes:
        name: What `--recipe` calls it.
        source: Where the numbers come from.
        model: A name of `resnet.models.build`.
        image_size: Side of the square that evaluation shows the network, in pixels.
        global_batch_size: Examples in one step, over all ranks.
        num_train_examples: Of the data set that the recipe is for.
        phases: In their order.
        batch_norm_decay: Of the moving mean and variance.
        eval_crop_fraction: Side of the central square that evaluation looks at, as a
            share of the picture's shorter side.
        eval_crop: A name of `resnet.config.EVAL_CROPS`.
        optimizer: A name of `resnet.config.OPTIMIZERS`.
        nesterov: Whether momentum looks ahead, as Nesterov's does.
        momentum_correction: Whether the velocity is as if it had the learning rate in
            it (`phases.momentum`).
        trust_coefficient: LARS's eta.
        zero_last_gamma: Whether the last normalization of a block starts at 0.
        clip_norm: Largest norm of all gradients together; 0 for no limit.
        ema_decay: Of the moving average of the weights, by step; 0 for none.
        scaling: What another batch does to the rates: "linear" scales them with it,
            "root" with its square root,
            "none" leaves them, where the source has no rule.
        rank_batch_size: Examples that batch normalization is over in the source, those
            of a rank; 0 where that isn't known, or doesn't matter.
        published: What the source reports.
        deviations: What a run of this program does otherwise than the source.
    """

    name: str
    source: str
    model: str
    image_size: int
    global_batch_size: int
    num_train_examples: int
    phases: tuple[RecipePhase, ...]
    batch_norm_decay: float = 0.95
    eval_crop_fraction: float = 0.875
    eval_crop: str = "crop_then_resize"
    optimizer: str = "momentum"
    nesterov: bool = True
    momentum_correction: bool = False
    trust_coefficient: float = 0.001
    zero_last_gamma: bool = True
    clip_norm: float = 0.0
    ema_decay: float = 0.0
    scaling: str = "linear"
    rank_batch_size: int = 0
    published: str = ""
    deviations: tuple[str, ...] = ()
