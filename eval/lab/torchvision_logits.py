"""Compares our ResNets with torchvision's own, which have the same weights.

python eval/lab/torchvision_logits.py --depths 18 34 50 101 152

Needs torch and torchvision beside the packages of this project. Weights are random, and
the statistics of batch normalization those of random images, or all of them are those
of the state dict --weights. torchvision's state dict is written to a file, which our
network is initialized from; then ours is written, and loaded by torchvision. Prints a
line of JSON for each network: the largest differences of our logits, and of
torchvision's in float32, from torchvision's in float64; the largest logit; and whether
every array of the state dict that came back is equal bit for bit.
"""

import argparse
import json
import pathlib
import sys
import tempfile

if __package__ in (None, ""):  # Run by its path: the packages are beside this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import numpy as np
import torch
import torchvision

from resnet.checkpoint.weight_formats import initial
from resnet.config.config import Config
from resnet.config.recipes import imagenette
from resnet.config.resolve import resolve
from resnet.export import weight_files
from resnet.optim.train_state import build_model


def random_network(depth: int, image_size: int) -> torch.nn.Module:
    """Returns torchvision's network with random weights, whose logits are of order 1.

    The last scales of the blocks are small, as in a trained network: otherwise a deep
    one computes nearly the same for all images, and only roundings make a difference.
    """
    torch.manual_seed(depth)
    network = torchvision.models.get_model(f"resnet{depth}")
    last = "bn2" if depth < 50 else "bn3"
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # The mean over all batches.
            largest = 0.4 if name.endswith(last) else 1.0
            torch.nn.init.uniform_(module.weight, largest / 2, largest)
            torch.nn.init.normal_(module.bias, 0.0, 0.1)
    network.train()
    with torch.no_grad():
        network(torch.randn(8, 3, image_size, image_size))
    return network.eval()


def settings(depth: int, num_classes: int) -> Config:
    """Returns the settings of a run with torchvision's network."""
    overrides = {"model": f"resnet{depth}", "resnet_variant": "torchvision"}
    names = tuple(map(str, range(num_classes)))
    return resolve(imagenette.FINETUNE, overrides, 10_000, names)


def compare(network: torch.nn.Module, depth: int, images: np.ndarray) -> dict:
    """Returns the differences between torchvision's network and ours.

    The images are `[batch, height, width, 3]`, float32.
    """
    state = network.state_dict()
    config = settings(depth, len(state["fc.bias"]))
    model = build_model(config)
    shapes = {variable.path: tuple(variable.shape) for variable in model.variables}
    with tempfile.TemporaryDirectory() as folder:
        theirs = pathlib.Path(folder, "theirs.pth")
        torch.save(state, theirs)
        values = initial.load(theirs, config, shapes)
        for variable in model.variables:
            variable.assign(values[variable.path])
        ours = pathlib.Path(folder, "ours.pth")
        written = {variable.path: variable.numpy() for variable in model.variables}
        weight_files.write_state_dict(ours, config, written)
        back = torch.load(ours, weights_only=True)
    network.load_state_dict(back)  # Refuses missing and surplus arrays.
    transposed = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    channels_first = torch.from_numpy(transposed)
    with torch.no_grad():
        in_float32 = network(channels_first).numpy()
        expected = network.double()(channels_first.double()).numpy()
    logits = model(images, training=False).numpy()
    return {
        "network": config.model,
        "largest_difference": float(np.abs(logits - expected).max()),
        "torchvision_in_float32": float(np.abs(in_float32 - expected).max()),
        "largest_logit": float(np.abs(expected).max()),
        "is_same_state_dict": all(
            torch.equal(back[name], array)
            for name, array in state.items()
            if not name.endswith("num_batches_tracked")
        ),
    }


def main() -> None:
    """Compares the networks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[18, 34, 50])
    parser.add_argument("--image_size", type=int, default=224, help="In pixels.")
    parser.add_argument("--batch_size", type=int, default=8, help="Images.")
    parser.add_argument("--weights", help="A state dict in PyTorch's format.")
    args = parser.parse_args()
    shape = (args.batch_size, args.image_size, args.image_size, 3)
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for depth in args.depths:
        network = random_network(depth, args.image_size)
        if args.weights:
            network.load_state_dict(torch.load(args.weights, weights_only=True))
        versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
        print(json.dumps({**compare(network, depth, images), **versions}), flush=True)


if __name__ == "__main__":
    main()
