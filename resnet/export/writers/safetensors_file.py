"""Writes the weights of a network as a file of safetensors."""

import dataclasses
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from resnet.checkpoint.restore import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import KEY


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a `.safetensors` file; its metadata hold the description.

    Unfolded, the names are those of the network's variables, such as
    `stage1_block1_1/kernel`, `gamma`, `beta`, `moving_mean` and `moving_variance`.
    Folded, each convolution has `kernel` and `bias`. The kernels of convolutions are
    `[height, width, channels, filters]`, those of dense layers `[features, units]`.
    In bfloat16, the classifier stays in float32, and so do all weights if unfolded.

    Args:
        trained: The network.
        contents: The description of the export.
        path: The file to write.
    """
    variables = trained.model.variables
    if contents.is_folded:
        whole = dataclasses.replace(contents, precision="float32")
        variables = stock_network.build(trained.model, whole).trainable_variables
    is_bf16 = contents.precision == "bf16" and contents.is_folded

    def stored(variable: keras.Variable) -> np.ndarray:
        is_short = is_bf16 and not variable.path.startswith("classifier/")
        dtype = ml_dtypes.bfloat16 if is_short else np.float32
        return np.ascontiguousarray(variable.numpy(), dtype)

    values = {variable.path: stored(variable) for variable in variables}
    save_file(values, path, {KEY: contents.as_json(), "format": "np"})
