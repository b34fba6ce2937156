"""The settings of the benchmark, and what follows from them: image size and phase."""

import dataclasses
from dataclasses import dataclass

from resnet import shared_flags
from resnet.base import bounds
from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.config.phases import Phase, PhaseSettings
from resnet.config.recipe import Recipe
from resnet.config.recipes import RECIPES, imagenet
from resnet.models import names

MANY_STEPS = 1_000_000
_BOUNDS = {  # The bounds of settings that aren't fields of a run's `Config`.
    "batch_size": (1, MANY_STEPS),
    "steps": (1, MANY_STEPS),
    "warmup_steps": (1, MANY_STEPS),
    "num_intra_threads": (0, shared_flags.MOST_THREADS),
    "num_inter_threads": (0, shared_flags.MOST_THREADS),
    "kmp_blocktime": (0, 2**31 - 1),
}


@dataclass(frozen=True)
class Settings:
    """The settings of one measurement; each field is the flag of its name.

    Attributes:
        model: The network.
        precision: "float32", "bf16" or "auto".
        batch_size: The number of images per step and rank.
        image_size: The side of the images in pixels; None for the network's default.
        steps: The number of timed steps.
        warmup_steps: The number of untimed steps before the timed ones.
        infer: Whether to measure evaluation instead of training.
        data_dir: The folder of a record set; None for random images from memory.
        stock_ops: Whether to use TensorFlow's own ops instead of the compiled ones.
        average_gradients: Whether the ranks all-reduce their gradients.
        num_intra_threads: The number of intra-op threads per rank; 0 for one per core
            of the rank.
        num_inter_threads: The number of inter-op threads per rank; 0 for one.
        num_parallel_calls: The number of images decoded at the same time; 0 for one
            per processor of the rank.
        on_bad_record: The action on a corrupt record: "fail" or "skip".
        kmp_blocktime: The milliseconds that OpenMP threads spin before they sleep.
    """

    model: str = "resnet50"
    precision: str = "float32"
    batch_size: int = 32
    image_size: int | None = None
    steps: int = 8
    warmup_steps: int = 2
    infer: bool = False
    data_dir: str | None = None
    stock_ops: bool = False
    average_gradients: bool = True
    num_intra_threads: int = 0
    num_inter_threads: int = 0
    num_parallel_calls: int = 0
    on_bad_record: str = "fail"
    kmp_blocktime: int = 1

    def check(self) -> None:
        """Checks that these settings can be measured.

        Raises:
            UserError: If a setting is out of range, or two contradict each other.
        """
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                limit = f"at least {low}" if value < low else f"at most {high}"
                raise UserError(f"--{name} must be {limit}; got {value}.")
        if self.infer and self.data_dir:
            raise UserError(
                "--infer measures the network alone, on images from memory; leave"
                " --data_dir out."
            )
        given = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value is not None
        }
        if problems := bounds.validate_overrides(given, Config):
            raise UserError(" ".join(problems))

    def arguments(self) -> list[str]:
        """Returns the command-line flags that have these values."""
        values = dataclasses.asdict(self).items()
        return [f"--{name}={value}" for name, value in values if value is not None]

    @property
    def side(self) -> int:
        """The side of the images in pixels: `image_size` or the network's default."""
        return self.image_size or names.default_image_size(self.model)

    @property
    def num_random_classes(self) -> int:
        """The number of classes of random images: that of CIFAR-10 or of ImageNet."""
        return 10 if self.model in names.CIFAR_MODELS else 1000

    @property
    def phase(self) -> Phase:
        """The phase whose steps are timed.

        It has the augmentation, the label smoothing and the optimizer's hyperparameters
        of the first recipe for the network and the size of the images; without such a
        recipe, those of `tpu_90ep_24k`. It is so long that it never ends.
        """
        first = recipe_for(self.model, self.side).phases[0]
        values = {
            field.name: getattr(first, field.name)
            for field in dataclasses.fields(PhaseSettings)
        }
        values.update(schedule=None, image_size=self.side)
        return Phase(**values, num_steps=MANY_STEPS)


def check_batch_size(batch_size: int, num_ranks: int, num_examples: int) -> None:
    """Checks that the global batch is not larger than the data set.

    Args:
        batch_size: The number of images per step and rank.
        num_ranks: The number of ranks.
        num_examples: The number of training examples of the data set.

    Raises:
        UserError: If the global batch has more images than the data set.
    """
    if batch_size * num_ranks > num_examples:
        raise UserError(
            f"--batch_size times {num_ranks} rank(s) must be at most the number of"
            f" training examples; got {batch_size * num_ranks} images per step,"
            f" {num_examples} examples."
        )


def recipe_for(model: str, image_size: int) -> Recipe:
    """Returns the first recipe for a network and a size of images, or tpu_90ep_24k."""
    for recipe in RECIPES.values():
        if (recipe.model, recipe.image_size) == (model, image_size):
            return recipe
    return imagenet.TPU_90EP_24K
