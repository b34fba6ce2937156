"""Folders of OpenVINO's intermediate representation (IR). Importing it imports none."""

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from resnet.export.contents import KEY, Contents, Probabilities

if TYPE_CHECKING:  # They import TensorFlow, or may not be installed.
    from resnet.checkpoint.restore import TrainedNetwork

FILE = "model.xml"  # The weights are beside it, in model.bin.


def write(trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
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
    labels = [name.replace(" ", "_") for name in contents.class_names]
    model.set_rt_info(" ".join(labels), ["model_info", "labels"])
    path.mkdir()
    openvino.save_model(model, path / FILE, compress_to_fp16=False)


def description(path: Path) -> str | None:
    """Returns the text of the description, if there is one."""
    try:
        root = ElementTree.parse(path / FILE).getroot()
    except ElementTree.ParseError:
        return None
    entry = root.find(f"./rt_info/{KEY}")
    return None if entry is None else entry.get("value")


def load(path: Path) -> Probabilities:
    """Returns the function of the network in a path (`Format.load`)."""
    import openvino

    # By default it computes in bfloat16 where the CPU has it.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.compile_model(path / FILE, "CPU", settings)
    return lambda images: network({"images": np.asarray(images)})["probabilities"]
