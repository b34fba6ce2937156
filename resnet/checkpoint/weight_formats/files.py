"""The files that weights may be in: which kind each is, and how it is opened.

`kind_of` needs neither TensorFlow nor the contents of the file.
"""

import functools
import glob
import hashlib
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from resnet.base import json_file, regular_file
from resnet.base.errors import UserError, naming_failures
from resnet.checkpoint import step_dirs

OURS, TENSORFLOW = "ours", "TensorFlow"
SUFFIXES = (".safetensors", ".npz", ".pt", ".pth")
DESCRIPTION = "resnet_cpu"  # The key of what our exports say about a network.
_INDEX = ".index"
# The keys below which programs keep the weights beside other state, and the prefixes
# that wrappers of networks give to all names.
_BELOW = ("state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")
# What NumPy and zipfile raise for a damaged file. A single array, which isn't in a zip
# archive, is no context manager: TypeError, or AttributeError before Python 3.11.
_DAMAGED = (
    *(ValueError, EOFError, TypeError, AttributeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)

Shapes = Mapping[str, tuple[int, ...]]


class Stored(NamedTuple):
    """The place of one of our variables in a file of another program.

    The axes are those of the stored array in the order of ours; None for the same
    order.
    """

    name: str
    axes: tuple[int, ...] | None = None

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Returns a stored array as the value of our variable."""
        return array if self.axes is None else array.transpose(self.axes)

    def from_ours(self, array: np.ndarray) -> np.ndarray:
        """Returns the value of our variable as it is stored."""
        return array if self.axes is None else array.transpose(np.argsort(self.axes))


@dataclass(frozen=True)
class WeightFile:
    """An open file of weights, whose arrays are read one by one.

    The settings are those of the network that the weights are from, as `config.json` or
    the description of an export has them; empty if they aren't known.
    """

    shapes: Shapes
    read: Callable[[str], np.ndarray]
    settings: Mapping[str, Any]


def of_arrays(
    arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any] | None = None
) -> WeightFile:
    """Returns the file of arrays that are in memory."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    return WeightFile(shapes, arrays.__getitem__, settings or {})


def kind_of(path: Path) -> str:
    """Returns what a path holds: `OURS`, `TENSORFLOW` or one of `SUFFIXES`."""
    if path.suffix in SUFFIXES and path.is_file():
        return path.suffix
    if step_dirs.is_checkpoint(path) or step_dirs.saved_steps(path):
        return OURS
    if _tensorflow_prefix(path) is not None:
        return TENSORFLOW
    problem = "found none" if path.exists() else "there is nothing of that name"
    raise UserError(
        f"{path} must contain a checkpoint, of this program or of TensorFlow, or be a"
        f" file of weights ({', '.join(SUFFIXES)}); {problem}"
    )


def sha256(path: Path) -> str:
    """Returns a digest of the weights in a path, whatever the names of the files.

    It is the SHA-256 of a single file, else that of all files' digests in order.
    """
    kind, prefix = kind_of(path), None
    if kind == OURS:
        steps = step_dirs.saved_steps(path)
        folder = step_dirs.of_step(path, steps[-1]) if steps else path
        prefix = folder / step_dirs.STATE
    elif kind == TENSORFLOW:
        prefix = _tensorflow_prefix(path)
    with naming_failures(f"reading {path}"):
        if prefix is None:
            return regular_file.sha256(path)
        paths = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))
        digests = "".join(map(regular_file.sha256, paths))
    return hashlib.sha256(digests.encode()).hexdigest()


def open_file(path: Path) -> WeightFile:
    """Opens the weights in a path that isn't one of our checkpoints, or UserError."""
    kind = kind_of(path)
    openers: dict[str, Callable[[Path], WeightFile]] = {
        TENSORFLOW: _open_tensorflow,
        ".safetensors": _open_safetensors,
        ".npz": _open_npz,
    }
    try:
        return openers.get(kind, _open_torch)(path)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from error


def _tensorflow_prefix(path: Path) -> Path | None:
    """Returns the prefix of a checkpoint's files, or of the newest one in a folder."""
    if path.name.endswith(_INDEX) and path.is_file():
        return path.with_name(path.name.removesuffix(_INDEX))
    if _has_index(path):
        return path
    try:
        lines = (path / "checkpoint").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:  # It is the text form of TensorFlow's CheckpointState.
        name, _, value = line.partition(":")
        if name == "model_checkpoint_path":
            newest = path / value.strip().strip('"')
            return newest if _has_index(newest) else None
    return None


def _has_index(prefix: Path) -> bool:
    # A path such as "." has no name.
    return bool(prefix.name) and prefix.with_name(prefix.name + _INDEX).is_file()


def _open_tensorflow(path: Path) -> WeightFile:
    import tensorflow as tf

    prefix = _tensorflow_prefix(path)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} must be a TensorFlow checkpoint; {error}") from error

    def read(name: str) -> np.ndarray:
        try:
            return np.asarray(reader.get_tensor(name))
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise UserError(f"{name!r} in {path} can't be read: {error}") from error

    return WeightFile({name: tuple(shape) for name, shape in shapes.items()}, read, {})


def _open_safetensors(path: Path) -> WeightFile:
    import safetensors

    def refused(error: Exception) -> UserError:
        return UserError(f"{path} must be a safetensors file; {error}")

    try:
        # With "pread", a file that is cut short meanwhile is an error and no SIGBUS.
        file = safetensors.safe_open(path, "np", backend="pread")
        names = file.keys()
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        text = (file.metadata() or {}).get(DESCRIPTION)
    except safetensors.SafetensorError as error:
        raise refused(error) from error

    def read(name: str) -> np.ndarray:
        try:
            return file.get_tensor(name)
        except (safetensors.SafetensorError, KeyError, TypeError) as error:
            raise refused(error) from error

    settings = {}
    if text is not None:
        settings = json_file.parse(text, dict, str(path), "a description of weights")
    return WeightFile(shapes, read, settings)


def _open_npz(path: Path) -> WeightFile:
    try:
        # np.load leaves a file open that it can't read, if it has opened it itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return of_arrays(_unwrapped(dict(arrays)))
    except _DAMAGED as error:
        raise UserError(f"{path} must hold arrays in NumPy's .npz: {error}") from error


def _open_torch(path: Path) -> WeightFile:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} needs PyTorch to be read, which isn't installed (pip install"
            " torch). Or save the state dict as .safetensors or .npz where it is."
        ) from error
    expected = f"{path} must hold a state dict of PyTorch"
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        sentence = str(error).split(". ")[0].splitlines()[0]
        raise UserError(f"{expected}; {sentence}") from error
    for name in _BELOW:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
    values = loaded.values() if isinstance(loaded, Mapping) else [None]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise UserError(f"{expected}; it holds other values")
    tensors = _unwrapped(loaded)

    def read(name: str) -> np.ndarray:
        tensor = tensors[name].detach()
        return np.asarray(tensor.float() if tensor.is_floating_point() else tensor)

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return WeightFile(shapes, read, {})


def _unwrapped(named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by their names, without a wrapper's prefix that all names have."""

    def without(values: dict[str, Any], prefix: str) -> dict[str, Any]:
        if not all(name.startswith(prefix) for name in values):
            return values
        return {name.removeprefix(prefix): value for name, value in values.items()}

    return functools.reduce(without, _WRAPPERS, dict(named))
