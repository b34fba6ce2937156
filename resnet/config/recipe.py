"""The settings of a recipe: lengths in epochs, rates for the recipe's own batch."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from resnet.base.settings import (
    ABOVE_ZERO,
    AT_LEAST_ZERO,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    LARGEST_COUNT,
    recipe_setting,
    setting,
)
from resnet.config import topics
from resnet.config.compression import CompressionSettings
from resnet.config.networks import ACTIVATIONS, MODELS, UNIFORM_LIMITS
from resnet.config.optimizers import OPTIMIZERS
from resnet.config.phases import LARGEST_IMAGE, SMALLEST_IMAGE, PhaseSettings

EVAL_CROPS = ("crop_then_resize", "resize_then_crop")
# The mean and standard deviation of ImageNet's channels, on a scale of 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STDDEV = (0.229, 0.224, 0.225)
NO_BOUND = -1  # Of the staleness.
# The settings that only networks with `has_parts` can have.
PARTS = ("activation", "se_ratio", "blur_pool")


class Views(NamedTuple):
    """The views of test-time augmentation."""

    num_crops: int = 1  # The number of crops of each image that the input makes.
    has_flips: bool = False  # Also the horizontal flips of all views.
    # Also images shifted by a pixel (`test_time_augmentation`), if the two largest
    # probabilities in the other views differ by less than this; above 1: all images.
    shift_below: float = 0.0


VIEWS = {
    "center": Views(),
    "flip": Views(has_flips=True),
    "flip_and_shift": Views(has_flips=True, shift_below=2.0),
    "flip_then_shift": Views(has_flips=True, shift_below=0.5),
    "five_crops": Views(num_crops=5),
    "ten_crops": Views(num_crops=5, has_flips=True),
}


@dataclass(frozen=True, kw_only=True)
class AsyncSettings:
    """Whether workers wait for each other, and what becomes of stale gradients.

    Source: dmlc/mxnet, example/distributed-training of 2015, for the two modes.
    """

    TOPIC: ClassVar[str] = topics.ASYNC

    sync_mode: str = setting(
        "bsp",
        "The mode of synchronization, one of {names}: with bsp (bulk synchronous"
        " parallel) each update is by the mean gradient of all ranks, with async"
        " workers update the weights on parameter servers by themselves.",
        names=("bsp", "async"),
        common=True,
    )
    max_staleness: int = setting(
        NO_BOUND,
        "With --sync_mode=async, the most updates by others between a worker's read"
        " and its update (stale synchronous parallel); 0 is one worker at a time, -1"
        " no bound.",
        bounds=(NO_BOUND, LARGEST_COUNT),
    )
    staleness_rate: str = setting(
        "none",
        "With --sync_mode=async, how staleness scales a gradient's learning rate, one"
        " of {names}: not, or by 1 / staleness where that is above 1.",
        names=("none", "inverse"),
    )

    @property
    def is_async(self) -> bool:
        """Whether the run trains asynchronously."""
        return self.sync_mode == "async"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(CompressionSettings, AsyncSettings):
    """The settings that a recipe and a run share, apart from those of phases."""

    TOPIC: ClassVar[str] = topics.RECIPE

    model: str = setting(
        help="The network to train, one of {names}.",
        names=tuple(MODELS),
        aliases=(("network", "n"),),  # Of sands-lab/layer-wise-aaai20.
        elsewhere="arch backbone net",
        common=True,
    )
    resnet_variant: str = setting(
        "tpu",
        "The program whose ResNet-18 to 200 to build, one of {names}, which pad the"
        " max pooling and begin the first stage in their way.",
        names=("tpu", "torchvision"),
    )
    activation: str = setting(
        "relu",
        "The activation of a ResNet-18 to 200 or ResNet-D, one of {names}.",
        names=ACTIVATIONS,
    )
    se_ratio: float = setting(
        0.0,
        "The units of squeeze-and-excitation in a ResNet-18 to 200 or ResNet-D, as a"
        " fraction of a block's channels; 0 turns it off.",
        bounds=(0, 1),
    )
    blur_pool: str = setting(
        "none",
        "Where a ResNet-18 to 200 or ResNet-D has BlurPool, one of {names}: in"
        " strided convolutions, or in the stem's max pooling too.",
        names=("none", "convolutions", "all"),
    )
    image_size: int = setting(
        help="The side in pixels of the images in training and evaluation.",
        elsewhere="img_size imgsz resolution crop_size",
        bounds=(SMALLEST_IMAGE, LARGEST_IMAGE),
    )
    global_batch_size: int = setting(
        help="The number of examples in one step, over all ranks.",
        bounds=COUNT,
        flag="train_batch_size",
        elsewhere="bs b",
        common=True,
    )
    eval_crop_fraction: float = recipe_setting(
        0.875, "The side of the center crop, in shorter sides.", bounds=(1e-9, 1)
    )
    eval_crop: str = setting(
        "crop_then_resize",
        "The order of center crop and resizing in evaluation, one of {names}.",
        names=EVAL_CROPS,
        topic=topics.EVALUATION,
    )
    eval_views: str = recipe_setting(
        "center", "Test-time augmentation of evaluations (--views).", names=tuple(VIEWS)
    )
    batch_norm_momentum: float = setting(
        0.95,
        "The momentum of batch normalization's moving mean and variance.",
        bounds=FRACTION,
        flag="bn_momentum",
        topic=topics.RATES,
    )
    batch_norm_epsilon: float = recipe_setting(
        1e-5, "What batch normalization adds to the variance.", bounds=ABOVE_ZERO
    )
    fixed_gamma: bool = recipe_setting(
        False, "Whether the scale of batch normalization is 1 and not trained."
    )
    optimizer: str = setting(
        "momentum",
        "The optimizer, one of {names}; sgdw and adamw have a decoupled weight decay,"
        " which acts on the variables directly, and muon orthogonalizes the updates"
        " of convolutions.",
        names=tuple(OPTIMIZERS),
        topic=topics.RATES,
        common=True,
    )
    nesterov: bool = recipe_setting(True, "Whether the momentum is Nesterov's.")
    learning_rate_in_velocity: bool = recipe_setting(
        False, "Whether the velocity contains the learning rate (Caffe-style momentum)."
    )
    trust_coefficient: float = recipe_setting(
        0.001, "The trust coefficient eta of LARS.", bounds=ABOVE_ZERO
    )
    adam_beta2: float = recipe_setting(
        0.999, "The decay of AdamW's mean squared gradients.", bounds=FRACTION
    )
    adam_epsilon: float = recipe_setting(
        1e-8, "What AdamW adds to the root of a mean square.", bounds=ABOVE_ZERO
    )
    muon_momentum: float = recipe_setting(
        0.6, "The momentum of convolutions with Muon.", bounds=FRACTION
    )
    sampling: str = setting(
        "natural",
        "How often images of each class are read, one of {names}: each image once per"
        " epoch, all classes equally often, or in proportion to the roots of their"
        " numbers of training images.",
        names=("natural", "balanced", "root"),
        topic=topics.DATA,
    )
    class_weights: str = setting(
        "none",
        "The weights of the classes in the loss: none, balanced (in inverse proportion"
        " to their numbers of training images), root (to the roots of these), or a"
        " JSON or CSV file of class names with weights.",
        decides_the_result=False,  # The weights do (`Config.class_weight_values`).
        elsewhere="class_weight pos_weight",
        topic=topics.LABELS,
    )
    zero_last_gamma: bool = recipe_setting(
        True, "Whether the last scale of a residual block begins with 0 instead of 1."
    )
    initialization: str = recipe_setting(
        "variance_scaling",
        "The initial weights: truncated normal with a variance of 1/fan-in; PyTorch's;"
        " these with first filters that copy their inputs; or uniform from -x to x.",
        names=("variance_scaling", "pytorch", "dirac", *UNIFORM_LIMITS),
    )
    decay_batch_norm: bool = recipe_setting(
        False, "Whether the parameters of batch normalization have weight decay, too."
    )
    channel_mean: tuple[float, ...] = recipe_setting(
        IMAGENET_MEAN, "What is subtracted from channels, of values from 0 to 1."
    )
    channel_stddev: tuple[float, ...] = recipe_setting(
        IMAGENET_STDDEV, "What the channels are then divided by."
    )
    clip_norm: float = setting(
        0.0,
        "The global norm to which larger gradients are clipped; 0 turns it off.",
        elsewhere="clip_grad max_grad_norm gradient_clip_val",
        bounds=AT_LEAST_ZERO,
        topic=topics.RATES,
    )
    ema_decay: float = setting(
        0.0,
        "The decay per step of an exponential moving average (EMA) of the weights,"
        " which is evaluated too; 0 turns it off.",
        bounds=FRACTION,
        topic=topics.RATES,
    )
    lookahead_every: int = recipe_setting(
        0,
        "The steps from one move of Lookahead's slow weights to the next; 0 is off.",
        bounds=COUNT_OR_ZERO,
    )
    lookahead_decay: float = recipe_setting(
        0.5, "The part of the slow weights that it keeps at the end.", bounds=FRACTION
    )
    lookahead_power: float = recipe_setting(
        0.0,
        "That part grows as this power of the fraction of the steps done; 0: constant.",
        bounds=AT_LEAST_ZERO,
    )


@dataclass(frozen=True, kw_only=True)
class RecipePhase(PhaseSettings):
    """A phase of a recipe; its schedule is in epochs and for the recipe's batch."""

    epochs: float = recipe_setting(bounds=(1e-9, 1e6))


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """Hyperparameters that belong together, usually from one published source."""

    name: str
    source: str  # The publication or program that the numbers come from.
    num_train_examples: int = recipe_setting(bounds=COUNT)
    num_classes: int = recipe_setting(1000, bounds=COUNT)  # Of its data set.
    phases: tuple[RecipePhase, ...]
    # The rule for the learning rates of another batch size: they are multiplied by the
    # ratio of the sizes, or its root; "none" is that the source has no rule.
    scaling: str = recipe_setting("linear", names=("linear", "root", "none"))
    # What batch normalization's statistics are over in the source; 0 if it isn't known.
    rank_batch_size: int = recipe_setting(0, bounds=COUNT_OR_ZERO)
    needs_weights: bool = False  # Whether it is for trained --initial_weights.
    published: str = ""  # The accuracy that the source reports.
    deviations: tuple[str, ...] = ()  # How a run deviates from the source.
    reasons: tuple[str, ...] = ()  # Why the settings fit the data set.

    def rate_factor(self, global_batch_size: int) -> float:
        """Returns the factor of the learning rates for another global batch size."""
        ratio = global_batch_size / self.global_batch_size
        return {"linear": ratio, "root": math.sqrt(ratio), "none": 1.0}[self.scaling]

    @property
    def epochs(self) -> float:
        """The length of all phases together."""
        return sum(phase.epochs for phase in self.phases)
