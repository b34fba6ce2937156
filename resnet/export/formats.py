"""The formats that a network can be exported to, and what each of them can hold.

Does not import TensorFlow. A format is an entry of `FORMATS` and a module with a
function `write`.
"""

import importlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resnet.base.errors import UserError
from resnet.checkpoint.weight_formats import torchvision_file
from resnet.export import atomic_path
from resnet.export.contents import Contents

if TYPE_CHECKING:  # It imports TensorFlow.
    from resnet.checkpoint.restore import TrainedNetwork

FLOAT32, BF16, INT8 = "float32", "bf16", "int8"
PRECISIONS = (FLOAT32, BF16, INT8)


@dataclass(frozen=True)
class Format:
    """A format of exported networks.

    Attributes:
        writer: The module whose function `write(trained, contents, path)` writes the
            format. It takes a `TrainedNetwork`, its `Contents` and the path of a file
            or a folder that doesn't exist.
        suffixes: The ends of which the name of a file must have one; empty if the
            format is a folder.
        precisions: The precisions that the format can hold.
        can_be_unfolded: Whether the format can hold layers of batch normalization.
        can_be_folded: Whether the format can hold convolutions that contain batch
            normalization. One that can't is unfolded without being asked for it.
        packages: The packages that write it, which the programs don't need otherwise:
            the requirement of each by the name of its module.
    """

    writer: str
    suffixes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = (FLOAT32,)
    can_be_unfolded: bool = False
    can_be_folded: bool = True
    packages: dict[str, str] = field(default_factory=dict)


# requirements-export.in has the same packages.
FORMATS = {
    "savedmodel": Format(
        "resnet.export.writers.saved_model", precisions=(FLOAT32, BF16)
    ),
    "keras": Format(
        "resnet.export.writers.keras_file",
        (".keras",),
        (FLOAT32, BF16),
        can_be_unfolded=True,
    ),
    "onnx": Format(
        "resnet.export.writers.onnx_file",
        (".onnx",),
        (FLOAT32, INT8),
        packages={
            "onnx": "onnx==1.23.2",
            "tf2onnx": "tf2onnx==1.17.0",
            "onnxruntime": "onnxruntime>=1.23.2",
        },
    ),
    "tflite": Format(
        "resnet.export.writers.tflite_file", (".tflite",), (FLOAT32, INT8)
    ),
    "openvino": Format(
        "resnet.export.writers.openvino_folder",
        packages={"openvino": "openvino==2026.4.1"},
    ),
    "safetensors": Format(
        "resnet.export.writers.safetensors_file",
        (".safetensors",),
        (FLOAT32, BF16),
        can_be_unfolded=True,
        packages={"safetensors": "safetensors==0.8.0"},
    ),
    "torchvision": Format(
        "resnet.export.writers.torchvision_file",
        torchvision_file.SUFFIXES,
        can_be_unfolded=True,
        can_be_folded=False,
    ),
}


def check(name: str, precision: str, is_folded: bool, path: Path) -> None:
    """Refuses what a format can't hold, and a path that it can't be written to.

    Args:
        name: The name of the format, a key of `FORMATS`.
        precision: One of `PRECISIONS`.
        is_folded: Whether batch normalization is folded into the convolutions.
        path: The file or folder to write.

    Raises:
        UserError: With a sentence for the first problem.
    """
    kind = FORMATS[name]
    if precision not in kind.precisions:
        able = [other for other, one in FORMATS.items() if precision in one.precisions]
        raise UserError(
            f"--format={name} has --precision={' and '.join(kind.precisions)}; got"
            f" {precision}, which {', '.join(able)} have."
        )
    if not is_folded and not kind.can_be_unfolded:
        able = [other for other, one in FORMATS.items() if one.can_be_unfolded]
        raise UserError(
            f"--nofold_batch_norm is for the formats that can be trained on,"
            f" {' and '.join(able)}; got --format={name}."
        )
    if kind.suffixes and path.suffix not in kind.suffixes:
        raise UserError(
            f"--out must end in {' or '.join(kind.suffixes)} for --format={name}; got"
            f" {path}."
        )
    for module, requirement in kind.packages.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"--format={name} needs the package {module}, which is not installed."
                f" Run python -m pip install '{requirement}'"
            )
    if path.suffix in (".pt", ".pth") and importlib.util.find_spec("torch") is None:
        raise UserError(
            f"a file that ends in {path.suffix} needs PyTorch to be written, which"
            " isn't installed (pip install torch). Name one that ends in .safetensors"
            " or .npz."
        )
    atomic_path.check(path)


def write(name: str, trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes a network in a format. Imports TensorFlow.

    Args:
        name: The name of the format, a key of `FORMATS`.
        trained: The network.
        contents: The description of the export.
        path: The file or folder to write, which must not exist.

    Raises:
        UserError: If it can't be written.
    """
    import tensorflow as tf

    writer = importlib.import_module(FORMATS[name].writer)
    try:
        with atomic_path.create(path) as unfinished:
            writer.write(trained, contents, unfinished)
    except tf.errors.OpError as error:  # So TensorFlow tells of a full disk.
        raise UserError(f"{path} can't be written: {error.message}") from error
