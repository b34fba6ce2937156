"""Writes a network as a file of ONNX, which onnxruntime and others compute."""

import json
import logging
from pathlib import Path

import onnx
import tf2onnx
from onnxruntime import quantization

from resnet.checkpoint.restore import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import KEY
from resnet.export.writers import stock_graph

_OPSET = 18  # The highest that tf2onnx 1.17 makes.


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes an `.onnx` file with the input and outputs of `stock_graph.frozen`.

    With the precision "int8" the weights have 8 bits, and values are quantized while
    the network is computed ("dynamic quantization").

    Args:
        trained: The network.
        contents: The description of the export.
        path: The file to write.
    """
    network = stock_network.build(trained.model, contents)
    model, _ = tf2onnx.convert.from_function(
        stock_graph.frozen(network),
        [stock_graph.images_of(network)],
        opset=_OPSET,
    )
    if contents.precision == "int8":
        model = _quantized(model, path)
    for name, text in (
        (KEY, contents.as_json()),
        ("labels", json.dumps(contents.class_names)),
    ):
        model.metadata_props.add(key=name, value=text)
    onnx.save(model, path)


def _quantized(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Returns a model with weights of 8 bits; needs a name for a file."""
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
