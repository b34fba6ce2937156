"""Writes the weights of a network as a state dict for torchvision."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from resnet.base import atomic_files
from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import safetensors_file, torchvision
from resnet.config.config import Config
from resnet.config.recipe import PARTS

SUFFIXES = (".safetensors", ".npz", ".pt", ".pth")


def write(path: Path, config: Config, values: Mapping[str, np.ndarray]) -> None:
    """Writes a file that torchvision's network of the same name loads, atomically.

    `torchvision.models.resnet50(num_classes=N).load_state_dict(...)` takes what
    `safetensors.torch.load_file` or `torch.load` return of it, or tensors of the arrays
    of an .npz file. The logits then are equal.

    Args:
        path: The file, with a suffix of `SUFFIXES`; .pt and .pth need PyTorch.
        config: The settings of the run that the weights are from.
        values: The values of all variables of the network by their paths, float32.

    Raises:
        UserError: If torchvision has no such network, the suffix is another, PyTorch is
            missing, or the file can't be written.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"a file of weights for torchvision must end in {', '.join(SUFFIXES)}; got"
            f" {path}"
        )
    _require_equal_network(config)
    state = torchvision.state_dict(values)
    try:
        with atomic_files.atomic_file(path) as file:
            if path.suffix == ".safetensors":
                # Without it, some programs don't take the file for PyTorch's.
                safetensors_file.write(file, state, {"format": "pt"})
            elif path.suffix == ".npz":
                np.savez(file, **state)  # type: ignore[arg-type]
            else:
                file.write(_in_pytorchs_format(path, state))
    except OSError as error:
        raise UserError(
            f"{path} can't be written: {error.strerror or error}. Name another file."
        ) from error


def _require_equal_network(config: Config) -> None:
    """Refuses a network whose logits would be others in torchvision."""
    if config.resnet_variant != torchvision.VARIANT:
        raise UserError(
            f"the weights of this {config.model} would give other logits in"
            " torchvision, which pads the images of the max pooling on all sides: only"
            f" networks of --resnet_variant={torchvision.VARIANT} can be written for"
            f" it; got {config.resnet_variant}"
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


def _in_pytorchs_format(path: Path, state: Mapping[str, Any]) -> bytes:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} needs PyTorch to be written, which isn't installed (pip install"
            " torch). Name a file that ends in .safetensors or .npz."
        ) from error
    buffer = io.BytesIO()
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    torch.save(tensors, buffer)
    return buffer.getvalue()
