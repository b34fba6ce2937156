"""The exchange of gradients that the settings of a run ask for."""

from collections.abc import Mapping, Sequence

from resnet.config.config import Config
from resnet.distributed.communicator import Communicator
from resnet.exchange.compressed import CompressedExchange
from resnet.exchange.dgc import DgcExchange
from resnet.exchange.gradients import GradientExchange


def make_exchange(
    config: Config, shapes: Mapping[str, Sequence[int]], communicator: Communicator
) -> GradientExchange:
    """Returns the exchange of gradients that the settings of a run ask for.

    Args:
        config: The settings; the exchange must not be "auto".
        shapes: Shape of each variable by its name, in the order of the gradients.
        communicator: The ranks.

    Raises:
        AgreedError: On all ranks, if the settings don't fit the variables.
    """
    if config.compress == "none":
        return GradientExchange(communicator.collectives, list(shapes))
    if config.method == "dgc":
        return DgcExchange(communicator, shapes, config)
    return CompressedExchange(communicator, shapes, config, config.seed)
