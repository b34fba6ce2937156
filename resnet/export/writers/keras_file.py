"""Writes a network as a file of Keras, which needs stock Keras only to be loaded."""

import zipfile
from pathlib import Path

import keras

from resnet.checkpoint.restore import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import CONTENTS_FILE


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a `.keras` file with the input and outputs of `stock_graph.outputs_of`.

    Args:
        trained: The network.
        contents: The description of the export.
        path: The file to write.
    """
    network = stock_network.build(trained.model, contents)
    probabilities = network.output
    classes = keras.ops.argmax(probabilities, axis=-1)
    outputs = {"classes": classes, "probabilities": probabilities}
    keras.Model(network.input, outputs, name=network.name).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(CONTENTS_FILE, contents.as_json())
