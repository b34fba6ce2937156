"""Writes a network as a file of TensorFlow Lite (LiteRT)."""

import zipfile
from pathlib import Path

import tensorflow as tf

from resnet.checkpoint.restore import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import CONTENTS_FILE
from resnet.export.writers import stock_graph

_LABELS_FILE = "labels.txt"  # Where the tools of Android look for them.


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a `.tflite` file with the input and outputs of `stock_graph.frozen`.

    With the precision "int8" the weights have 8 bits, and values are quantized while
    the network is computed ("dynamic range quantization").

    Args:
        trained: The network.
        contents: The description of the export.
        path: The file to write.
    """
    network = stock_network.build(trained.model, contents)
    graph = stock_graph.frozen(network).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([graph], tf.Module())
    if contents.precision == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    path.write_bytes(converter.convert())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(CONTENTS_FILE, contents.as_json())
        archive.writestr(_LABELS_FILE, "\n".join(contents.class_names) + "\n")
