"""Exports of weights alone: safetensors, and state dicts for torchvision.

Importing it imports no TensorFlow and no PyTorch.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import torchvision
from resnet.config.config import Config
from resnet.config.recipe import PARTS
from resnet.export.contents import KEY, Contents

if TYPE_CHECKING:  # They import TensorFlow.
    import keras

    from resnet.checkpoint.restore import TrainedNetwork


def write_safetensors(
    trained: "TrainedNetwork", contents: Contents, path: Path
) -> None:
    """Writes a `.safetensors` file; its metadata hold the description.

    Unfolded, the names are those of the network's variables, such as
    `stage1_block1_1/kernel`, `gamma`, `beta`, `moving_mean` and `moving_variance`.
    Folded, each convolution has `kernel` and `bias`. The kernels of convolutions are
    `[height, width, channels, filters]`, those of dense layers `[features, units]`.
    In bfloat16, the classifier stays in float32, and so do all weights if unfolded.
    """
    import ml_dtypes
    from safetensors.numpy import save_file

    from resnet.export import stock_network

    variables = trained.model.variables
    if contents.is_folded:
        whole = dataclasses.replace(contents, precision="float32")
        variables = stock_network.build(trained.model, whole).trainable_variables
    is_bf16 = contents.precision == "bf16" and contents.is_folded

    def stored(variable: "keras.Variable") -> np.ndarray:
        is_short = is_bf16 and not variable.path.startswith("classifier/")
        dtype = ml_dtypes.bfloat16 if is_short else np.float32
        return np.ascontiguousarray(variable.numpy(), dtype)

    values = {variable.path: stored(variable) for variable in variables}
    save_file(values, path, {KEY: contents.as_json(), "format": "np"})


def write_torchvision(
    trained: "TrainedNetwork", contents: Contents, path: Path
) -> None:
    """Writes a state dict; the format has no place for a description."""
    values = {variable.path: variable.numpy() for variable in trained.model.variables}
    write_state_dict(path, trained.config, values)


def write_state_dict(
    path: Path, config: Config, values: Mapping[str, np.ndarray]
) -> None:
    """Writes a file that torchvision's network of the same name loads.

    `torchvision.models.resnet50(num_classes=N).load_state_dict(...)` takes what
    `safetensors.torch.load_file` or `torch.load` return of it, or tensors of the arrays
    of an .npz file. The values are those of all variables of the network by their
    paths, float32. Raises UserError if torchvision has no such network.
    """
    require_torchvision_network(config)
    state = torchvision.state_dict(values)
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        # Without "pt", some programs don't take the file for PyTorch's.
        save_file(state, path, {"format": "pt"})
    elif path.suffix == ".npz":
        np.savez(path, **state)  # type: ignore[arg-type]
    else:
        import torch  # `formats.check` has found it.

        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        torch.save(tensors, path)


def require_torchvision_network(config: Config) -> None:
    """Refuses a network whose logits would be others in torchvision."""
    if config.resnet_variant != torchvision.VARIANT:
        raise UserError(
            "only networks of --resnet_variant=torchvision can be written for"
            " torchvision, which pads the images of the max pooling on all sides; got"
            f" {config.resnet_variant}"
        )
    for name in PARTS:
        value = getattr(config, name)
        if value != getattr(Config, name):
            raise UserError(
                f"torchvision has no {config.model} of --{name}={value}. Export it in"
                " another format."
            )
    if config.batch_norm_epsilon != torchvision.EPSILON:
        raise UserError(
            "torchvision's networks have a batch_norm_epsilon of"
            f" {torchvision.EPSILON}; got {config.batch_norm_epsilon}"
        )
    if config.fixed_gamma:
        raise UserError("torchvision's networks train gamma; got fixed_gamma")
