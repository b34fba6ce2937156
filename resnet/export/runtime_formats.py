"""Files of ONNX, which onnxruntime and others compute, and folders of OpenVINO.

The latter have its intermediate representation (IR). Importing it imports neither.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from resnet.base.errors import UserError
from resnet.export.contents import KEY, Contents, Probabilities

if TYPE_CHECKING:  # They import TensorFlow, or may not be installed.
    from resnet.checkpoint.restore import TrainedNetwork

_OPSET = 18  # The highest that tf2onnx 1.17 makes.
OPENVINO_FILE = "model.xml"  # The weights are beside it, in model.bin.


def write_onnx(trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes an `.onnx` file with the input and outputs of `stock_network.frozen`.

    With the precision "int8" the weights have 8 bits, and values are quantized while
    the network is computed ("dynamic quantization").
    """
    import onnx
    import tf2onnx

    from resnet.export import stock_network

    network = stock_network.build(trained.model, contents)
    model, _ = tf2onnx.convert.from_function(
        stock_network.frozen(network), [stock_network.images_of(network)], opset=_OPSET
    )
    if contents.precision == "int8":
        model = _quantized(model, path)
    for name, text in (
        (KEY, contents.as_json()),
        ("labels", json.dumps(contents.class_names)),
    ):
        model.metadata_props.add(key=name, value=text)
    onnx.save(model, path)


def _quantized(model: Any, path: Path) -> Any:
    """Returns a model with weights of 8 bits; needs a name for a file."""
    import onnx
    from onnxruntime import quantization

    logging.disable(logging.WARNING)  # Hides the advice to simplify the model.
    try:
        quantization.quantize_dynamic(
            model,
            path,
            # onnxruntime has no convolution with signed weights.
            weight_type=quantization.QuantType.QUInt8,
        )
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(path)


def _session(path: Path) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # The errors of onnxruntime have no common base.
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} can't be loaded: {reason}") from error


def description_of_onnx(path: Path) -> str | None:
    """Returns the text of the description, if there is one."""
    return _session(path).get_modelmeta().custom_metadata_map.get(KEY)


def load_onnx(path: Path) -> Probabilities:
    """Returns the function of the network in a path (`Format.load`)."""
    session = _session(path)

    def probabilities(images: Any) -> np.ndarray:
        return session.run(["probabilities"], {"images": np.asarray(images)})[0]

    return probabilities


def write_openvino(trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes a folder with the files of OpenVINO.

    The network has the input and outputs of `stock_network.frozen`, and weights in
    float32. OpenVINO itself chooses what it computes in; it is bfloat16 by default
    where the CPU has it.
    """
    import openvino

    from resnet.export import stock_network

    network = stock_network.build(trained.model, contents)
    graph = stock_network.frozen(network).get_concrete_function()
    model = openvino.convert_model(graph)
    model.inputs[0].get_tensor().set_names({"images"})
    names = sorted(graph.structured_outputs)
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    model.set_rt_info(contents.as_json(), KEY)
    # Where OpenVINO's Model API looks for them, in its form: divided by spaces.
    labels = ["_".join(name.split()) for name in contents.class_names]
    model.set_rt_info(" ".join(labels), ["model_info", "labels"])
    path.mkdir()
    openvino.save_model(model, path / OPENVINO_FILE, compress_to_fp16=False)


def description_of_openvino(path: Path) -> str | None:
    """Returns the text of the description, if there is one."""
    try:
        root = ElementTree.parse(path / OPENVINO_FILE).getroot()
    except ElementTree.ParseError:
        return None
    entry = root.find(f"./rt_info/{KEY}")
    return None if entry is None else entry.get("value")


def load_openvino(path: Path) -> Probabilities:
    """Returns the function of the network in a path (`Format.load`)."""
    import openvino

    # By default it computes in bfloat16 where the CPU has it.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.compile_model(path / OPENVINO_FILE, "CPU", settings)
    return lambda images: network({"images": np.asarray(images)})["probabilities"]
