"""Reads exported networks, to predict with them.

Importing it, and reading the description of a network, imports no TensorFlow.
"""

import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from resnet.base.errors import UserError, naming_failures
from resnet.export import contents
from resnet.export.contents import Contents
from resnet.export.formats import FORMATS
from resnet.export.names import (
    CONTENTS_FILE,
    CONTENTS_OF_SAVED_MODEL,
    KEY,
    OF_DECODED_IMAGES,
    OPENVINO_FILE,
)

if TYPE_CHECKING:
    import numpy as np

# The file in a folder of each format that is one.
_FILE_IN = {"savedmodel": "saved_model.pb", "openvino": OPENVINO_FILE}
# The packages that compute a network of a format, if TensorFlow doesn't.
_RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino"}

Probabilities = Callable[[Any], "np.ndarray"]


class ExportedNetwork:
    """A network that `formats.write` has written.

    Attributes:
        contents: Its description.
    """

    def __init__(self, path: Path) -> None:
        """Reads the description of a network.

        Args:
            path: The file or folder of the network.

        Raises:
            UserError: If it isn't such a network, or needs a package that is missing.
        """
        self._path = path
        self._format = _format_of(path)
        _require_runtime(self._format, path)
        with naming_failures(f"reading {path}"):
            text = _TEXTS[self._format](path)
        self.contents: Contents = contents.from_text(text, str(path))

    def load(self) -> Probabilities:
        """Returns the function that computes the network. Imports TensorFlow.

        It takes images, `[batch, image_size, image_size, 3]` float32, RGB from 0 to
        255, cropped and resized; and returns the probabilities of the classes, `[batch,
        num_classes]` float32.

        Raises:
            UserError: If the network can't be loaded.
        """
        try:
            return _LOADERS[self._format](self._path)
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{self._path} can't be loaded: {reason[0]}") from error


def _format_of(path: Path) -> str:
    """Returns the name of the format of a network.

    Raises:
        UserError: If it is none of those that can be computed.
    """
    if not path.exists():
        raise UserError(f"{path} must be an exported network; there is no such file.")
    for name, file in _FILE_IN.items():
        if (path / file).is_file():
            return name
    for name in _LOADERS:
        if path.is_file() and path.suffix in FORMATS[name].suffixes:
            return name
    raise UserError(
        f"{path} must be an exported network that can be computed; its format is none"
        f" of {', '.join(_LOADERS)}."
    )


def _require_runtime(name: str, path: Path) -> None:
    module = _RUNTIMES.get(name)
    if module and importlib.util.find_spec(module) is None:
        raise UserError(
            f"{path} needs the package {module}, which is not installed. Run python -m"
            f" pip install '{FORMATS[name].packages[module]}'"
        )


def _text_in_folder(path: Path) -> str | None:
    file = path / CONTENTS_OF_SAVED_MODEL
    return file.read_text(encoding="utf-8") if file.exists() else None


def _text_in_archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(CONTENTS_FILE).decode()
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError):
        return None


def _text_in_onnx(path: Path) -> str | None:
    metadata = _onnx_session(path).get_modelmeta().custom_metadata_map
    return metadata.get(KEY)


def _text_in_openvino(path: Path) -> str | None:
    try:
        root = ElementTree.parse(path / OPENVINO_FILE).getroot()
    except ElementTree.ParseError:
        return None
    entry = root.find(f"./rt_info/{KEY}")
    return None if entry is None else entry.get("value")


def _load_saved_model(path: Path) -> Probabilities:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[OF_DECODED_IMAGES]

    def probabilities(images: Any) -> "np.ndarray":
        # The signature lives as long as what was loaded.
        return loaded and signature(images=tf.constant(images))["probabilities"].numpy()

    return probabilities


def _load_keras(path: Path) -> Probabilities:
    import keras
    import tensorflow as tf

    network = keras.models.load_model(path, compile=False)

    @tf.function(autograph=False, reduce_retracing=True)
    def compute(images: tf.Tensor) -> tf.Tensor:
        return network(images, training=False)["probabilities"]

    return lambda images: compute(tf.constant(images)).numpy()


def _onnx_session(path: Path) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no common base.
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} can't be loaded: {reason}") from error


def _load_onnx(path: Path) -> Probabilities:
    import numpy as np

    session = _onnx_session(path)

    def probabilities(images: Any) -> "np.ndarray":
        return session.run(["probabilities"], {"images": np.asarray(images)})[0]

    return probabilities


def _load_tflite(path: Path) -> Probabilities:
    import warnings

    import numpy as np
    import tensorflow as tf

    with warnings.catch_warnings():  # Hides the notice of deprecation.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(path))
    run = interpreter.get_signature_runner()
    return lambda images: run(images=np.asarray(images))["probabilities"]


def _load_openvino(path: Path) -> Probabilities:
    import numpy as np
    import openvino

    # By default it computes in bfloat16 where the CPU has it.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.compile_model(path / OPENVINO_FILE, "CPU", settings)
    return lambda images: network({"images": np.asarray(images)})["probabilities"]


_TEXTS: dict[str, Callable[[Path], str | None]] = {
    "savedmodel": _text_in_folder,
    "keras": _text_in_archive,
    "onnx": _text_in_onnx,
    "tflite": _text_in_archive,
    "openvino": _text_in_openvino,
}
_LOADERS: dict[str, Callable[[Path], Probabilities]] = {
    "savedmodel": _load_saved_model,
    "keras": _load_keras,
    "onnx": _load_onnx,
    "tflite": _load_tflite,
    "openvino": _load_openvino,
}
