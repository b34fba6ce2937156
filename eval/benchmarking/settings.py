"""The settings of the benchmark, and what follows from them: image size and phase."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from resnet.base.errors import UserError
from resnet.base.settings import setting
from resnet.config import networks
from resnet.config.phases import LARGEST_IMAGE, SMALLEST_IMAGE, Phase, PhaseSettings
from resnet.config.recipes import RECIPES, imagenet

MANY_STEPS = 1_000_000
_COUNT = (1, MANY_STEPS)


@dataclass(frozen=True)
class Settings:
    """The settings of one measurement; each field is the flag of its name."""

    TOPIC: ClassVar[str] = "What is measured"

    model: str = setting("resnet50", "Network: {names}.", names=tuple(networks.MODELS))
    precision: str = setting(
        "float32",
        "Precision: float32, bf16, or auto for the faster one.",
        names=("float32", "bf16", "auto"),
    )
    batch_size: int = setting(
        32,
        "Images per step and rank; with --sweep_ranks, images per step of all ranks.",
        bounds=_COUNT,
    )
    image_size: int | None = setting(
        None,
        "Side of the images in pixels. By default the network's.",
        bounds=(SMALLEST_IMAGE, LARGEST_IMAGE),
        unset="the network's",
    )
    infer: bool = setting(False, "Measure evaluation instead of training.")
    stock_ops: bool = setting(
        False, "Use TensorFlow's own ops instead of the compiled ones."
    )
    average_gradients: bool = setting(
        True, "Whether the ranks all-reduce their gradients."
    )
    steps: int = setting(
        8, "Number of timed steps.", bounds=_COUNT, topic="How it is measured"
    )
    warmup_steps: int = setting(
        2,
        "Number of untimed warmup steps before the timed ones.",
        bounds=_COUNT,
        topic="How it is measured",
    )
    data_dir: str | None = None
    num_intra_threads: int = 0
    num_inter_threads: int = 0
    num_parallel_calls: int = 0
    on_bad_record: str = "fail"
    kmp_blocktime: int = 1

    def arguments(self) -> list[str]:
        """Returns the command-line flags that have these values."""
        values = dataclasses.asdict(self).items()
        return [f"--{name}={value}" for name, value in values if value is not None]

    @property
    def side(self) -> int:
        """The side of the images in pixels: `image_size` or the network's default."""
        return self.image_size or networks.MODELS[self.model].image_size

    @property
    def num_random_classes(self) -> int:
        """The number of classes of random images: that of CIFAR-10 or of ImageNet."""
        return 10 if networks.MODELS[self.model].image_size <= 32 else 1000

    @property
    def phase(self) -> Phase:
        """The endless phase whose steps are timed.

        It has the augmentation, the label smoothing and the optimizer's hyperparameters
        of the first recipe for the network and the size of the images; without such a
        recipe, those of `tpu_90ep_24k`.
        """
        recipes = [
            recipe
            for recipe in RECIPES.values()
            if (recipe.model, recipe.image_size) == (self.model, self.side)
        ]
        first = (recipes or [imagenet.TPU_90EP_24K])[0].phases[0]
        values = {
            field.name: getattr(first, field.name)
            for field in dataclasses.fields(PhaseSettings)
        }
        values.update(schedule=None, image_size=self.side)
        return Phase(**values, num_steps=MANY_STEPS)


def check_batch_size(batch_size: int, num_ranks: int, num_examples: int) -> None:
    """Refuses a global batch that is larger than the data set, with a UserError."""
    if batch_size * num_ranks > num_examples:
        raise UserError(
            f"--batch_size times the ranks, {num_ranks}, must be at most the number of"
            f" training examples; got {batch_size * num_ranks} images per step,"
            f" {num_examples} examples."
        )
