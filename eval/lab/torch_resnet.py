"""Measures PyTorch's speed at the work that eval/benchmark.py times.

python eval/lab/torch_resnet.py --model=resnet50 --precision=float32 --ranks=2
python eval/lab/torch_resnet.py --convolutions --batch_size=16 --ranks=2

Needs an environment of its own, with torch. Starts a process for each rank, bound to
physical cores of its own, with a thread for each of them, and prints one line of JSON:
images per second, the sum over ranks of the medians over steps. The ranks run their
steps concurrently. With --average_gradients they train one model, by
DistributedDataParallel over gloo.

With --convolutions it measures the time of the network's convolutions alone: what a
training step would take if all other ops were free. The output and both gradients of
each convolution are timed one by one, on operands that are still in the cache, and
images_per_second is the batch size divided by the sum of the medians.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

if __package__ in (None, ""):  # Run by its path: the packages lie above this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.nn import functional

from resnet.hardware import physical_cores

PORT = 29_533


def conv_norm(channels: int, filters: int, size: int, stride: int = 1) -> nn.Sequential:
    """Returns a convolution without bias, followed by batch normalization."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(filters),
    )


class Bottleneck(nn.Module):
    """A bottleneck block of ResNet-50, with the stride in its 3x3 convolution."""

    def __init__(self, channels: int, filters: int, stride: int, first: bool) -> None:
        super().__init__()
        self.first = conv_norm(channels, filters, 1)
        self.second = conv_norm(filters, filters, 3, stride)
        self.third = conv_norm(filters, 4 * filters, 1)
        self.shortcut = conv_norm(channels, 4 * filters, 1, stride) if first else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the block's output."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = functional.relu(self.first(x), inplace=True)
        x = functional.relu(self.second(x), inplace=True)
        return functional.relu(self.third(x) + shortcut, inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 with 1,000 classes (He et al. 2015, arXiv:1512.03385)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 64, 7, 2)
        blocks, channels = [], 64
        stages = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
        for filters, num_blocks, stride in stages:
            for number in range(num_blocks):
                block_stride = 1 if number else stride
                blocks.append(Bottleneck(channels, filters, block_stride, not number))
                channels = 4 * filters
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        x = functional.relu(self.stem(x), inplace=True)
        x = self.blocks(functional.max_pool2d(x, 3, 2, 1))
        return self.classifier(x.mean((2, 3)))


class ResNet9(nn.Module):
    """The network of davidcpage/cifar10-fast, for 32 px and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for name, channels, filters in (
            ("prep", 3, 64),
            ("one", 64, 128),
            ("one_a", 128, 128),
            ("one_b", 128, 128),
            ("two", 128, 256),
            ("three", 256, 512),
            ("three_a", 512, 512),
            ("three_b", 512, 512),
        ):
            norm = conv_norm(channels, filters, 3)
            self.layers[name] = nn.Sequential(norm, nn.ReLU(inplace=True))
        self.classifier = nn.Linear(512, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        layers = self.layers
        x = functional.max_pool2d(layers["one"](layers["prep"](x)), 2)
        x = x + layers["one_b"](layers["one_a"](x))
        x = functional.max_pool2d(layers["two"](x), 2)
        x = functional.max_pool2d(layers["three"](x), 2)
        x = x + layers["three_b"](layers["three_a"](x))
        return 0.125 * self.classifier(functional.max_pool2d(x, 4).flatten(1))


class InceptionBn28(nn.Module):
    """The small Inception of dmlc/mxnet's examples, for 28 px and 10 classes."""

    def __init__(self) -> None:
        super().__init__()

        def conv(channels: int, filters: int, size: int, stride: int) -> nn.Sequential:
            norm = conv_norm(channels, filters, size, stride)
            return nn.Sequential(norm, nn.ReLU(inplace=True))

        self.stem = conv(3, 96, 3, 1)
        self.modules_3x3, self.modules_1x1 = nn.ModuleList(), nn.ModuleList()
        channels = 96
        for filters_1x1, filters_3x3 in (
            *((32, 32), (32, 48), (0, 80)),
            *((112, 48), (96, 64), (80, 80), (48, 96), (0, 96)),
            *((176, 160), (176, 160)),
        ):
            stride = 1 if filters_1x1 else 2
            self.modules_3x3.append(conv(channels, filters_3x3, 3, stride))
            first = nn.MaxPool2d(3, 2, 1)
            if filters_1x1:
                first = conv(channels, filters_1x1, 1, 1)
            self.modules_1x1.append(first)
            channels = filters_3x3 + (filters_1x1 or channels)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        x = self.stem(x)
        for first, second in zip(self.modules_1x1, self.modules_3x3, strict=True):
            x = torch.cat((first(x), second(x)), 1)
        return self.classifier(x.mean((2, 3)))


MODELS: dict[str, tuple[type[nn.Module], int, int]] = {
    "resnet50": (ResNet50, 224, 1000),
    "resnet9": (ResNet9, 32, 10),
    "inception_bn_28": (InceptionBn28, 28, 10),
}


def inference_step(args: argparse.Namespace) -> Callable[[], torch.Tensor]:
    """Returns a function that classifies one batch, with folded normalization."""
    make, image_size, _ = MODELS[args.model]
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    model = make().eval().to(dtype=dtype, memory_format=torch.channels_last)
    images = torch.randn(args.batch_size, 3, image_size, image_size).to(
        dtype=dtype, memory_format=torch.channels_last
    )
    if args.compile:
        inductor_config.freezing = True
        compiled = torch.compile(model)
    else:
        with torch.no_grad():
            traced = torch.jit.trace(model, images, check_trace=False)
        compiled = torch.jit.optimize_for_inference(traced)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return compiled(images)

    return step


def training_step(args: argparse.Namespace) -> Callable[[], torch.Tensor]:
    """Returns a function that runs one training step and returns the loss."""
    make, image_size, num_classes = MODELS[args.model]
    model = make().train().to(memory_format=torch.channels_last)
    images = torch.randn(args.batch_size, 3, image_size, image_size)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(num_classes, (args.batch_size,))
    if args.average_gradients and args.ranks > 1:
        model = nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False
        )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.01,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-5,
        fused=True,
    )

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(images)
        return functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)

    forward = torch.compile(forward) if args.compile else forward

    def step() -> torch.Tensor:
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def join_ranks(args: argparse.Namespace) -> None:
    """Binds this process to its rank's cores and joins the process group."""
    own = physical_cores.of_rank(args.rank, [physical_cores.usable()] * args.ranks)
    os.sched_setaffinity(0, {cpu for core in own for cpu in core})
    torch.set_num_threads(len(own))
    torch.manual_seed(args.rank)
    if args.ranks > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{PORT}",
            rank=args.rank,
            world_size=args.ranks,
        )


def peak_memory_mb() -> int:
    """Returns the peak memory of this process in MiB (2**20 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Layer(NamedTuple):
    """A convolution without bias, on square images with a square kernel."""

    channels: int
    filters: int
    image_size: int
    kernel_size: int
    stride: int


def layers_of(model: nn.Module, image_size: int) -> list[Layer]:
    """Returns a network's convolutions, in the order in which they are computed."""
    layers: list[Layer] = []

    def record(module: nn.Conv2d, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        kernel_size, stride = module.kernel_size[0], module.stride[0]
        channels, filters = module.in_channels, module.out_channels
        side = inputs[0].shape[-1]
        layers.append(Layer(channels, filters, side, kernel_size, stride))

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
    options = (stride, padding, [1, 1], False, [0, 0], 1)

    def forward() -> torch.Tensor:
        return torch.ops.aten.convolution(images, kernel, None, *options)

    gradient = torch.randn_like(forward())

    def backward(of_images: bool) -> object:
        wanted = [of_images, not of_images, False]
        return torch.ops.aten.convolution_backward(
            gradient, images, kernel, None, *options, wanted
        )

    with torch.no_grad():
        return [
            median_seconds(forward, repeats),
            median_seconds(lambda: backward(True), repeats),
            median_seconds(lambda: backward(False), repeats),
        ]


def convolutions_of_rank(args: argparse.Namespace) -> dict[str, float]:
    """Times all layers on this rank's cores; --steps is the number of timed calls."""
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    make, image_size, _ = MODELS[args.model]
    layers = layers_of(make(), image_size)
    sums = [0.0, 0.0, 0.0]
    for layer, count in Counter(layers).items():
        seconds = layer_seconds(layer, args.batch_size, dtype, args.steps)
        if layer == layers[0]:  # Training needs no gradient of the network's input.
            seconds[1] = 0.0
        sums = [a + count * b for a, b in zip(sums, seconds, strict=True)]
    names = ("output_seconds", "input_gradient_seconds", "kernel_gradient_seconds")
    rate = args.batch_size / sum(sums)
    rates = dict.fromkeys(("median", "min", "max"), rate)
    return {
        **rates,
        "peak_memory_mb": peak_memory_mb(),
        **dict(zip(names, sums, strict=True)),
    }


def steps_of_rank(args: argparse.Namespace) -> dict[str, float]:
    """Times the steps of this rank one after another; returns its figures."""
    step = inference_step(args) if args.infer else training_step(args)
    times = []
    for number in range(args.warmup_steps + args.steps):
        if number == args.warmup_steps and args.ranks > 1:
            torch.distributed.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if args.ranks > 1:
        torch.distributed.barrier()
    rates = [args.batch_size / seconds for seconds in times[args.warmup_steps :]]
    return {
        "median": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
        "peak_memory_mb": peak_memory_mb(),
    }


def results_of_ranks(num_ranks: int) -> list[dict[str, float]]:
    """Runs this program once for each rank, with --rank; returns their results.

    A result is the JSON in the last line of what a rank prints. The program exits if a
    rank fails, and with code 2 if there are more ranks than cores.
    """
    num_cores = len(physical_cores.usable())
    if not 1 <= num_ranks <= num_cores:
        print(
            f"error: --ranks must be from 1 to {num_cores}, the number of physical"
            f" cores that the ranks may use; got {num_ranks}.",
            file=sys.stderr,
        )
        sys.exit(2)
    command = [sys.executable, *sys.argv, "--rank"]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(1)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main() -> None:
    """Starts a process for each rank and prints the sum of their rates as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="Images per step and rank."
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup_steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--average_gradients", action="store_true")
    parser.add_argument("--convolutions", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convolutions and (args.compile or args.infer or args.average_gradients):
        parser.error("--convolutions excludes --compile, --infer, --average_gradients")
    if args.rank is not None:
        join_ranks(args)
        measure = convolutions_of_rank if args.convolutions else steps_of_rank
        print(json.dumps(measure(args)), flush=True)
        return
    results = results_of_ranks(args.ranks)
    figures: dict[str, object] = {
        "images_per_second": sum(result.pop("median") for result in results),
        "min": sum(result.pop("min") for result in results),
        "max": sum(result.pop("max") for result in results),
        "peak_memory_mb": max(result.pop("peak_memory_mb") for result in results),
    }
    for key in results[0]:
        figures[f"{key}_of_ranks"] = [result[key] for result in results]
    settings = {key: value for key, value in vars(args).items() if key != "rank"}
    print(json.dumps({**figures, "torch": torch.__version__, **settings}))


if __name__ == "__main__":
    main()
