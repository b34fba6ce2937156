"""Writes the weights of a network as a state dict for torchvision."""

from pathlib import Path

from resnet.checkpoint.restore import TrainedNetwork
from resnet.checkpoint.weight_formats import torchvision_file
from resnet.export.contents import Contents


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a file of the weights, without batch normalization folded.

    Args:
        trained: The network.
        contents: The description of the export, which the format has no place for.
        path: The file to write, with a suffix of `torchvision_file.SUFFIXES`.

    Raises:
        UserError: If torchvision has no such network, or PyTorch is missing for its own
            format.
    """
    values = {one.path: one.numpy() for one in trained.model.variables}
    torchvision_file.write(path, trained.config, values)
