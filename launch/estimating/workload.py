"""The description of a training: its steps, and what the ranks exchange in them."""

import itertools
from dataclasses import dataclass, field

from resnet.base.errors import UserError
from resnet.config import rounds
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.config import Config
from resnet.models import names


@dataclass(frozen=True)
class Workload:
    """A training, as far as its duration depends on it.

    Attributes:
        global_batch_size: The number of images in a step, over all nodes.
        num_steps: The number of steps.
        num_values: The number of trained values, whose gradients are exchanged.
        num_exchanges: The number of steps in which the ranks exchange gradients.
        num_averages: How often the ranks average as many values as the network has,
            after the steps of a round of local SGD.
        compression: The settings of compressed gradients.
        relative_pixels: The pixels of an image in training, in the mean over the steps,
            divided by those of the images that the nodes' rate is for.
        image_bytes: The bytes of an image's record in the data set.
    """

    global_batch_size: int
    num_steps: int
    num_values: int
    num_exchanges: int
    num_averages: int = 0
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    relative_pixels: float = 1.0
    image_bytes: float = 0.0

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients, float32."""
        return 4 * self.num_values


def of_config(
    config: Config, num_classes: int, rate_image_size: int, image_bytes: float
) -> Workload:
    """Returns the workload of a run.

    Args:
        config: The settings of the run, with the recipe's number of images.
        num_classes: The number of classes; 0 for 10 with the networks for CIFAR-10's
            images, and for 1,000 with the others.
        rate_image_size: The side in pixels of the images that the nodes' rate is for.
        image_bytes: The bytes of an image's record.

    Raises:
        UserError: If the training is asynchronous, or compresses gradients by powersgd.
    """
    if config.is_async:
        raise UserError(
            f"expected a recipe of synchronous training; {config.recipe} has parameter"
            " servers (sync_mode=async), whose steps are not estimated."
        )
    if config.compress != "none" and METHODS[config.method].needs_matrices:
        raise UserError(
            f"--method={config.method} is not estimated: its messages depend on the"
            " shapes of all kernels. resnet_main.py --explain --num_ranks=N prints"
            " their bytes."
        )
    classes = num_classes or names.MODELS[config.model].usual_classes
    num_exchanges = num_averages = 0
    pixels = 0.0
    for index, phase in enumerate(config.phases):
        pixels += phase.num_steps * phase.image_size**2
        if phase.is_local:
            each = 2 if phase.local_velocities == "average" else 1
            num_averages += each * _num_rounds(config, index)
        else:
            num_exchanges += phase.num_steps
    return Workload(
        global_batch_size=config.global_batch_size,
        num_steps=config.train_steps,
        num_values=names.num_parameters(config.model, classes, config.se_ratio),
        num_exchanges=num_exchanges,
        num_averages=num_averages,
        compression=config,
        relative_pixels=pixels / config.train_steps / rate_image_size**2,
        image_bytes=image_bytes,
    )


def _num_rounds(config: Config, index: int) -> int:
    """Returns the number of rounds of local SGD in a phase."""
    bounds = rounds.bounds_of_phase(config.phases, index)
    return sum(1 for _ in itertools.pairwise(bounds))
