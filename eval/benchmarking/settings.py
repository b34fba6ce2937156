"""What the benchmark measures: its settings, as flags and as those of a run."""

import dataclasses
from dataclasses import dataclass

from data_prep.errors import UserError
from data_prep.records.manifest import Manifest
from resnet import shared_flags
from resnet.config.config import Config
from resnet.config.recipe import Recipe
from resnet.config.resolve import resolve
from resnet.models import names
from resnet.recipes import imagenet, registry

MANY_STEPS = 1_000_000
_BOUNDS = {  # What `config` does not look at.
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
        if not self.data_dir:
            self.config(1, None)

    def arguments(self) -> list[str]:
        """Returns the command-line flags that have these values."""
        values = dataclasses.asdict(self).items()
        return [f"--{name}={value}" for name, value in values if value is not None]

    def config(self, num_ranks: int, data: Manifest | None) -> Config:
        """Returns the settings of a run whose first steps these are.

        Args:
            num_ranks: All ranks.
            data: Of the data set, if there is one.

        Raises:
            UserError: If one of them is out of its range, or there are too few images.
        """
        small = self.model in names.CIFAR_MODELS
        image_size = self.image_size or (32 if small else 224)
        num_examples = imagenet.IMAGENET
        class_names = tuple(str(label) for label in range(10 if small else 1000))
        if data is not None:
            num_examples = data.splits["train"].num_examples
            class_names = data.class_names
        batch_size = self.batch_size * num_ranks
        if batch_size > num_examples:
            raise UserError(
                f"--batch_size times {num_ranks} rank(s) must be at most the number of"
                f" training examples; got {batch_size}, {num_examples} examples."
            )
        return resolve(
            recipe_of(self.model, image_size),
            {
                "model": self.model,
                "precision": self.precision,
                "image_size": image_size,
                "global_batch_size": batch_size,
                "train_steps": MANY_STEPS,  # Reading goes on to the last timed one.
                "warmup_steps": 0,
                "data_dir": self.data_dir,
                "num_parallel_calls": self.num_parallel_calls,
                "on_bad_record": self.on_bad_record,
            },
            num_examples,
            class_names,
        )


def recipe_of(model: str, image_size: int) -> Recipe:
    """Returns the recipe for a network and a size of images, for its augmentation."""
    for recipe in registry.RECIPES.values():
        if (recipe.model, recipe.image_size) == (model, image_size):
            return recipe
    return imagenet.TPU_90EP_24K
