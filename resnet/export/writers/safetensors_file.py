"""Writes the weights of a network as a file of safetensors."""

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from resnet.checkpoint.trained_network import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import KEY


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a `.safetensors` file; its metadata hold the description.

    Unfolded, the names are those of the network's variables, such as
    `stage1_block1_1/kernel`, `gamma`, `beta`, `moving_mean` and `moving_variance`.
    Folded, each convolution has `kernel` and `bias`. The kernels of convolutions are
    `[height, width, channels, filters]`, those of dense layers `[features, units]`.

    Args:
        trained: The network.
        contents: The description of the export.
        path: The file to write.
    """
    variables = trained.model.variables
    if contents.is_folded:
        whole = dataclasses.replace(contents, precision="float32")
        variables = stock_network.build(trained.model, whole).trainable_variables
    dtype = ml_dtypes.bfloat16 if contents.precision == "bf16" else np.float32
    values = {
        variable.path: np.ascontiguousarray(variable.numpy(), dtype)
        for variable in variables
    }
    save_file(values, path, {KEY: contents.as_json(), "format": "np"})
