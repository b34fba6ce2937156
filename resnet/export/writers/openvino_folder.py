"""Writes a network as OpenVINO's intermediate representation (IR)."""

from pathlib import Path

import openvino

from resnet.checkpoint.restore import TrainedNetwork
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import KEY, OPENVINO_FILE
from resnet.export.writers import stock_graph


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes a folder with the files of OpenVINO.

    The network has the input and outputs of `stock_graph.frozen`, and weights in
    float32. OpenVINO itself chooses what it computes in; it is bfloat16 by default
    where the CPU has it.

    Args:
        trained: The network.
        contents: The description of the export.
        path: The folder to write.
    """
    network = stock_network.build(trained.model, contents)
    graph = stock_graph.frozen(network).get_concrete_function()
    model = openvino.convert_model(graph)
    model.inputs[0].get_tensor().set_names({"images"})
    names = sorted(graph.structured_outputs)
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    model.set_rt_info(contents.as_json(), KEY)
    # Where OpenVINO's Model API looks for them, in its form: divided by spaces.
    labels = [name.replace(" ", "_") for name in contents.class_names]
    model.set_rt_info(" ".join(labels), ["model_info", "labels"])
    path.mkdir()
    openvino.save_model(model, path / OPENVINO_FILE, compress_to_fp16=False)
