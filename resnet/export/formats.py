"""The formats that a network can be exported to, and networks read from them.

Importing it imports no TensorFlow and no package of a format.
"""

import contextlib
import dataclasses
import importlib.util
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resnet.base.atomic_files import require_place, sync_folder
from resnet.base.errors import UserError, naming_failures
from resnet.base.text import without_graph_names
from resnet.checkpoint.weight_formats import files
from resnet.config.config import Config
from resnet.export import runtime_formats, tensorflow_formats, weight_files
from resnet.export.contents import Contents, Probabilities, from_text

if TYPE_CHECKING:  # They import TensorFlow.
    from resnet.checkpoint.restore import TrainedNetwork
    from resnet.evaluation.predictor import Preprocessor

FLOAT32, BF16, INT8 = "float32", "bf16", "int8"
PRECISIONS = (FLOAT32, BF16, INT8)


@dataclass(frozen=True)
class Format:
    """A format of exported networks.

    `load` returns the function of a network: from images, `[batch, image_size,
    image_size, 3]` float32, RGB from 0 to 255, cropped and resized, to the
    probabilities of the classes, `[batch, num_classes]` float32; it is None if the
    format holds weights only. Unfolded, a format has layers of batch normalization,
    folded, they are part of the convolutions.
    """

    write: Callable[["TrainedNetwork", Contents, Path], None]
    description: Callable[[Path], str | None] = lambda path: None  # Its text, if any.
    load: Callable[[Path], Probabilities] | None = None
    suffixes: tuple[str, ...] = ()  # Of which a file has one; a folder has none.
    file: str = ""  # It tells of which format a folder is.
    precisions: tuple[str, ...] = (FLOAT32,)
    can_be_unfolded: bool = False
    can_be_folded: bool = True  # Otherwise it is unfolded without being asked for it.
    # The requirements of the packages that write it, by the names of their modules.
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    runtime: str = ""  # The package that computes it; empty if TensorFlow does.
    # Refuses the network of a run that it can't hold.
    check_network: Callable[[Config], None] = lambda config: None


# requirements-export.in has the same packages.
FORMATS = {
    "savedmodel": Format(
        tensorflow_formats.write_saved_model,
        tensorflow_formats.description_of_saved_model,
        tensorflow_formats.load_saved_model,
        file="saved_model.pb",
        precisions=(FLOAT32, BF16),
    ),
    "keras": Format(
        tensorflow_formats.write_keras,
        tensorflow_formats.description_in_archive,
        tensorflow_formats.load_keras,
        suffixes=(".keras",),
        precisions=(FLOAT32, BF16),
        can_be_unfolded=True,
    ),
    "onnx": Format(
        runtime_formats.write_onnx,
        runtime_formats.description_of_onnx,
        runtime_formats.load_onnx,
        suffixes=(".onnx",),
        precisions=(FLOAT32, INT8),
        packages={
            "onnx": "onnx==1.23.2",
            "tf2onnx": "tf2onnx==1.17.0",
            "onnxruntime": "onnxruntime>=1.23.2",
        },
        runtime="onnxruntime",
    ),
    "tflite": Format(
        tensorflow_formats.write_tflite,
        tensorflow_formats.description_in_archive,
        tensorflow_formats.load_tflite,
        suffixes=(".tflite",),
        precisions=(FLOAT32, INT8),
    ),
    "openvino": Format(
        runtime_formats.write_openvino,
        runtime_formats.description_of_openvino,
        runtime_formats.load_openvino,
        file=runtime_formats.OPENVINO_FILE,
        packages={"openvino": "openvino==2026.4.1"},
        runtime="openvino",
    ),
    "safetensors": Format(
        weight_files.write_safetensors,
        suffixes=(".safetensors",),
        precisions=(FLOAT32, BF16),
        can_be_unfolded=True,
    ),
    "torchvision": Format(
        weight_files.write_torchvision,
        suffixes=files.SUFFIXES,
        can_be_unfolded=True,
        can_be_folded=False,
        check_network=weight_files.require_torchvision_network,
    ),
}
COMPUTED = {name: kind for name, kind in FORMATS.items() if kind.load}


def check(
    name: str, precision: str, is_folded: bool, path: Path, config: Config
) -> None:
    """Refuses what a format can't hold, and a path that it can't be written to."""
    kind = FORMATS[name]
    if precision not in kind.precisions:
        able = [other for other in FORMATS if precision in FORMATS[other].precisions]
        raise UserError(
            f"--format={name} has --precision={' and '.join(kind.precisions)}; got"
            f" {precision}, which {', '.join(able)} have."
        )
    if not is_folded and not kind.can_be_unfolded:
        able = [other for other in FORMATS if FORMATS[other].can_be_unfolded]
        raise UserError(
            "--nofold_batch_norm is for the formats that can be trained on,"
            f" {' and '.join(able)}; got --format={name}."
        )
    if kind.suffixes and path.suffix not in kind.suffixes:
        raise UserError(
            f"--out must end in {' or '.join(kind.suffixes)} for --format={name}; got"
            f" {path}."
        )
    by_suffix = [of for of in FORMATS if path.suffix in FORMATS[of].suffixes]
    if by_suffix and not kind.suffixes:
        raise UserError(
            f"--out={path} ends as a file of --format={by_suffix[0]} does, and"
            f" --format={name} writes a folder. Add --format={by_suffix[0]}, or leave"
            f" {path.suffix} out."
        )
    for module in kind.packages:
        _require(kind, module, f"--format={name}")
    if path.suffix in (".pt", ".pth") and importlib.util.find_spec("torch") is None:
        raise UserError(
            f"a file that ends in {path.suffix} needs PyTorch to be written, which"
            " isn't installed (pip install torch). Name one that ends in .safetensors"
            " or .npz."
        )
    kind.check_network(config)
    _check_path(path)


def _require(kind: Format, module: str, what: str) -> None:
    """Refuses a format whose package is missing."""
    if importlib.util.find_spec(module) is None:
        needed = " ".join(f"'{package}'" for package in kind.packages.values())
        raise UserError(
            f"{what} needs the package {module}, which is not installed. Run python -m"
            f" pip install --no-deps {needed}"
        )


def _format_of(path: Path) -> Format:
    """Returns the format of a network, or a UserError if it can't be computed here."""
    if not path.exists():
        raise UserError(f"{path} must be an exported network; there is no such file.")
    for kind in COMPUTED.values():
        if (kind.file and (path / kind.file).is_file()) or (
            path.is_file() and path.suffix in kind.suffixes
        ):
            if kind.runtime:
                _require(kind, kind.runtime, str(path))
            return kind
    raise UserError(
        f"{path} must be an exported network that can be computed; its format is none"
        f" of {', '.join(COMPUTED)}."
    )


class ExportedPredictor(NamedTuple):
    """What `evaluation.predictor.Predictor` does, with an exported network."""

    preprocess: "Preprocessor"
    probabilities: Probabilities


class ExportedNetwork:
    """A network that `write` has written, with its description, `contents`.

    UserError if it isn't such a network, or needs a package that is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._format = path, _format_of(path)
        with naming_failures(f"reading {path}"):
            text = self._format.description(path)
        self.contents = from_text(text, str(path))

    def load(self) -> ExportedPredictor:
        """Loads the network, or raises UserError. Imports TensorFlow."""
        from resnet.data.augmentation import preprocessing
        from resnet.evaluation.predictor import Preprocessor

        assert self._format.load is not None  # noqa: S101 - As `format_of` promises.
        try:
            probabilities = self._format.load(self._path)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{self._path} can't be loaded: {reason[0]}") from error
        described = self.contents
        preprocess = Preprocessor(
            described.image_size,
            described.crop_fraction,
            described.crop,
            preprocessing.NOT_NORMALIZED,
        )
        return ExportedPredictor(preprocess, probabilities)


def write(name: str, trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes a network in a format, or raises UserError. Imports TensorFlow.

    The path of the file or folder must not exist.
    """
    import tensorflow as tf

    try:
        with _created(path) as unfinished:
            FORMATS[name].write(trained, contents, unfinished)
    except tf.errors.OpError as error:  # So TensorFlow tells of a full disk.
        reason = without_graph_names(error.message)
        raise UserError(f"{path} can't be written: {reason}") from error


def _check_path(path: Path) -> None:
    """Refuses a path that exists already, or that can't be made."""
    if os.path.lexists(path):
        raise UserError(
            f"{path} exists already, and exports replace nothing. Name another path."
        )
    require_place(path, "--out")


@contextlib.contextmanager
def _created(path: Path) -> Iterator[Path]:
    """Yields a path to write to; its content appears at `path` after the block.

    The yielded path has the last part of `path` as its last part, and doesn't exist. It
    lies in a hidden folder, which is removed after an error; a crash can leave it. The
    files get the permissions of new files: some libraries write private ones.
    """
    _check_path(path)
    parent = path.absolute().parent
    hidden = parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    with naming_failures(f"writing {path}"):
        try:
            parent.mkdir(parents=True, exist_ok=True)
            hidden.mkdir()
            unfinished = hidden / path.name
            yield unfinished
            _sync(unfinished, mode=hidden.stat().st_mode & 0o666)
            _check_path(path)
            unfinished.rename(path)
            sync_folder(parent)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def _sync(path: Path, mode: int) -> None:
    """Makes a file, or a folder with all its files, durable (fsync), of a mode."""
    paths = [path]
    for root, _, names in os.walk(path):
        sync_folder(root)
        paths += [Path(root, name) for name in names]
    for file in filter(Path.is_file, paths):
        file.chmod(mode)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
