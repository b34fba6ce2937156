"""Measures the time of a network's convolutions alone: oneDNN's, called by PyTorch.

python eval/lab/torch_convolutions.py --precision=float32 --batch_size=16 --ranks=2

This is the time that a training step would take if all other ops were free. The output
and both gradients of each convolution (channels last) are timed one by one, on operands
that are still in the cache. Requirements, ranks and output are those of
torch_resnet.py, and of its flags those that have an effect here. --steps is the number
of timed calls. images_per_second is the batch size divided by the sum of all times.
"""

import argparse
import pathlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

if __package__ in (None, ""):  # Run by its path: the packages lie above this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import torch
from torch import nn

from eval.lab import torch_resnet


@dataclass(frozen=True)
class Layer:
    """A convolution without bias, on square images with a square kernel.

    Attributes:
        channels: The number of channels of the input.
        filters: The number of channels of the output.
        image_size: The side of the input images in pixels.
        kernel_size: The side of the kernel in pixels.
        stride: The stride in both directions.
    """

    channels: int
    filters: int
    image_size: int
    kernel_size: int
    stride: int


def layers_of(model: nn.Module, image_size: int) -> list[Layer]:
    """Returns a network's convolutions, in the order in which they are computed."""
    layers: list[Layer] = []

    def record(module: nn.Conv2d, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        layers.append(
            Layer(
                module.in_channels,
                module.out_channels,
                inputs[0].shape[-1],
                module.kernel_size[0],
                module.stride[0],
            )
        )

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(record)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, image_size, image_size))
    return layers


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Returns the median time of a call, after one untimed call."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def layer_seconds(
    layer: Layer, batch_size: int, dtype: torch.dtype, repeats: int
) -> list[float]:
    """Returns the seconds of a layer's output, input gradient and kernel gradient."""

    def operand(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype, memory_format=torch.channels_last)

    size, kernel_size = layer.image_size, layer.kernel_size
    images = operand(batch_size, layer.channels, size, size)
    kernel = operand(layer.filters, layer.channels, kernel_size, kernel_size)
    stride, padding = [layer.stride] * 2, [kernel_size // 2] * 2

    def forward() -> torch.Tensor:
        return torch.ops.aten.convolution(
            images, kernel, None, stride, padding, [1, 1], False, [0, 0], 1
        )

    gradient = torch.randn_like(forward())

    def backward(of_images: bool) -> object:
        return torch.ops.aten.convolution_backward(
            gradient,
            images,
            kernel,
            None,
            stride,
            padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [of_images, not of_images, False],
        )

    with torch.no_grad():
        return [
            median_seconds(forward, repeats),
            median_seconds(lambda: backward(True), repeats),
            median_seconds(lambda: backward(False), repeats),
        ]


def run_rank(args: argparse.Namespace) -> dict[str, float]:
    """Times all layers on this rank's cores."""
    torch_resnet.join_ranks(args)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    make, image_size, _ = torch_resnet.MODELS[args.model]
    layers = layers_of(make(), image_size)
    sums = [0.0, 0.0, 0.0]
    for layer, count in Counter(layers).items():
        seconds = layer_seconds(layer, args.batch_size, dtype, args.steps)
        if layer == layers[0]:  # Training needs no gradient of the network's input.
            seconds[1] = 0.0
        sums = [a + count * b for a, b in zip(sums, seconds, strict=True)]
    rate = args.batch_size / sum(sums)
    names = ("output_seconds", "input_gradient_seconds", "kernel_gradient_seconds")
    return {
        "median": rate,
        "min": rate,
        "max": rate,
        "peak_memory_mb": torch_resnet.peak_memory_mb(),
        **dict(zip(names, sums, strict=True)),
    }


def main() -> None:
    """Measures as the arguments say, and prints the figures as JSON."""
    torch_resnet.main(run_rank, torch_resnet.make_parser(__doc__))


if __name__ == "__main__":
    main()
