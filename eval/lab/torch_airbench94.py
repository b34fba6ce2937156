"""Trains airbench94 on CIFAR-10 in PyTorch: the peer of cifar10_airbench94.

python eval/lab/torch_airbench94.py --data_dir=cifar-10-batches-bin --compile

Needs an environment of its own, with torch and numpy. `--data_dir` holds CIFAR-10's
binary version. Starts a process for each rank, bound to physical cores of its own;
ranks divide each batch and average their gradients over gloo. The graphs are compiled
before the clock starts, as in the source. Prints a line per epoch, then one line of
JSON: the accuracy, with and without test-time augmentation, and the seconds of training
and of the evaluation with it.

Source: Jordan 2024, arXiv:2404.00498, with the constants of KellerJordan/
cifar10-airbench, legacy/airbench94.py. As in cifar10_airbench94, the first layer
computes in float32. It differs from that recipe in the order of the images, in leaving
out the incomplete batch of each epoch, and in averaging logits over the views: as the
source.
"""

import argparse
import functools
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

if __package__ in (None, ""):  # Run by its path: the packages lie above this folder.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional

from eval.lab import torch_resnet

MEAN = (0.4914, 0.4822, 0.4465)
STDDEV = (0.2470, 0.2435, 0.2616)
BATCH_SIZE = 1024
MAX_SHIFT = 2
EPOCHS = 9.9
BIAS_EPOCHS = 3  # In which the bias of the first layer is trained.
MOMENTUM = 0.85
# Rates are for the sum of the losses of a batch, without the factor of the momentum.
NESTEROV_FACTOR = 1 + 1 / (1 - MOMENTUM)
RATE = 11.5 / 1024 / NESTEROV_FACTOR
# Decay of a step, for each example of its batch.
DECAY = 0.0153 / 1024 / NESTEROV_FACTOR
BIAS_FACTOR = 64
LABEL_SMOOTHING = 0.2
LOOKAHEAD_STEPS = 5
EVAL_BATCH_SIZE = 500


class ConvGroup(nn.Module):
    """Two convolutions, each with normalization and GELU; the first is pooled."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv1 = identity_conv(channels, filters)
        self.norm1 = bias_norm(filters)
        self.conv2 = identity_conv(filters, filters)
        self.norm2 = bias_norm(filters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the feature map, of half the height and width."""
        x = functional.max_pool2d(self.conv1(x), 2)
        x = functional.gelu(self.norm1(x))
        return functional.gelu(self.norm2(self.conv2(x)))


class Airbench94(nn.Module):
    """The network, from normalized images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        nn.init.zeros_(self.whitening.bias)
        self.groups = nn.ModuleList(
            ConvGroup(*sizes) for sizes in ((24, 64), (64, 256), (256, 256))
        )
        self.head = nn.Linear(256, 10, bias=False)

    def forward(self, x: torch.Tensor, trains_bias: bool = False) -> torch.Tensor:
        """Returns the logits, `[batch, 10]`."""
        bias = self.whitening.bias if trains_bias else self.whitening.bias.detach()
        with torch.autocast("cpu", enabled=False):
            x = functional.gelu(functional.conv2d(x, self.whitening.weight, bias))
        for group in self.groups:
            x = group(x)
        return self.head(functional.max_pool2d(x, 3).flatten(1)) / 9


def identity_conv(channels: int, filters: int) -> nn.Conv2d:
    """Returns a 3x3 convolution whose first filters copy the channels."""
    conv = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:channels])
    return conv


def bias_norm(filters: int) -> nn.BatchNorm2d:
    """Returns batch normalization without a trained scale."""
    norm = nn.BatchNorm2d(filters, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad = False
    return norm


def whiten(network: Airbench94, images: torch.Tensor) -> None:
    """Sets the kernel of the first layer by the patches of normalized images."""
    patches = functional.unfold(images, 2).transpose(1, 2).reshape(-1, 12).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    scaled = (vectors / torch.sqrt(values + 5e-4)).T.flip(0).reshape(12, 3, 2, 2)
    network.whitening.weight.data.copy_(torch.cat((scaled, -scaled)))


def read(
    data_dir: pathlib.Path, split: str, count: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images, `[count, 3, 32, 32]` uint8 channels last, and their labels."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    files = names if split == "train" else ["test_batch.bin"]
    parts = [np.fromfile(data_dir / name, np.uint8) for name in files]
    rows = np.concatenate(parts).reshape(-1, 3073)[:count]
    images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy())
    labels = torch.from_numpy(rows[:, 0].astype(np.int64))
    return images.contiguous(memory_format=torch.channels_last), labels


def normalized(images: torch.Tensor) -> torch.Tensor:
    """Returns uint8 images as float32, normalized per channel."""
    mean, stddev = (255 * torch.tensor([MEAN, STDDEV])).reshape(2, 1, 3, 1, 1)
    return (images.float() - mean) / stddev


def train_batches(
    images: torch.Tensor, labels: torch.Tensor, args: argparse.Namespace
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields this rank's parts of the batches, epoch after epoch.

    All ranks draw the same orders, shifts and flips.
    """
    generator = torch.Generator().manual_seed(args.seed)
    side, count = images.shape[-1], len(images)
    padded = functional.pad(images.float(), (MAX_SHIFT,) * 4, "reflect").byte()
    is_flipped = torch.rand(count, generator=generator) < 0.5
    while True:
        order = torch.randperm(count, generator=generator)
        shifts = torch.randint(2 * MAX_SHIFT + 1, (count, 2), generator=generator)
        for first in range(0, count - args.batch_size + 1, args.batch_size):
            own = order[first : first + args.batch_size].chunk(args.ranks)[args.rank]
            batch = torch.empty((len(own), 3, side, side), dtype=torch.uint8)
            batch = batch.contiguous(memory_format=torch.channels_last)
            at = shifts[own]
            for top in range(2 * MAX_SHIFT + 1):
                for left in range(2 * MAX_SHIFT + 1):
                    here = ((at[:, 0] == top) & (at[:, 1] == left)).nonzero()[:, 0]
                    window = padded[own[here]]
                    batch[here] = window[..., top : top + side, left : left + side]
            flips = is_flipped[own].reshape(-1, 1, 1, 1)
            yield normalized(torch.where(flips, batch.flip(-1), batch)), labels[own]
        is_flipped = ~is_flipped


def rate_factor(step: int, num_steps: int) -> float:
    """Returns the learning rate of a step, as a part of the highest one."""
    warmup = int(0.23 * num_steps)
    if step < warmup:
        return 0.2 + 0.8 * step / warmup
    return 1 - 0.93 * (step - warmup) / (num_steps - warmup)


def make_optimizer(network: Airbench94, batch_size: int) -> torch.optim.SGD:
    """Returns the optimizer; all parameters decay equally fast."""
    named = [pair for pair in network.named_parameters() if pair[1].requires_grad]
    decay = DECAY * batch_size
    groups = [
        {"params": params, "lr": rate, "highest": rate, "weight_decay": decay / rate}
        for params, rate in (
            ([value for name, value in named if "norm" in name], RATE * BIAS_FACTOR),
            ([value for name, value in named if "norm" not in name], RATE),
        )
    ]
    return torch.optim.SGD(
        groups, lr=RATE, momentum=MOMENTUM, nesterov=True, fused=True
    )


class Lookahead:
    """Slow copies of the network's weights and moving averages."""

    def __init__(self, network: Airbench94) -> None:
        tensors = network.state_dict().values()
        self._own = [tensor for tensor in tensors if tensor.is_floating_point()]
        self._slow = [tensor.clone() for tensor in self._own]

    def exchange(self, decay: float) -> None:
        """Moves the slow copies, then sets the weights to them."""
        for slow, own in zip(self._slow, self._own, strict=True):
            slow.lerp_(own, 1 - decay)
            own.copy_(slow)


def summed_gradients(network: Airbench94, args: argparse.Namespace) -> None:
    """Adds up the gradients of the ranks, in one message."""
    if args.ranks == 1:
        return
    parameters = network.parameters()
    gradients = [value.grad for value in parameters if value.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def average_buffers(network: Airbench94, args: argparse.Namespace) -> None:
    """Averages the moving averages of the ranks' normalizations."""
    for buffer in network.buffers():
        if args.ranks > 1 and buffer.is_floating_point():
            distributed.all_reduce(buffer)
            buffer /= args.ranks


def evaluate(
    predict: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    args: argparse.Namespace,
    is_augmented: bool,
) -> float:
    """Returns the accuracy over all images, which the ranks divide.

    With `is_augmented`, the logits are weighted means over six views: each image and
    its flip, and with half the weight these shifted by a pixel in two directions.
    """

    def logits_of(views: torch.Tensor) -> torch.Tensor:
        logits = predict(views)
        return logits + predict(views.flip(-1)) if is_augmented else logits

    num_right = torch.zeros(())
    batches = list(range(0, len(images), EVAL_BATCH_SIZE))[args.rank :: args.ranks]
    for first in batches:
        batch = normalized(images[first : first + EVAL_BATCH_SIZE])
        logits = logits_of(batch)
        if is_augmented:
            padded = functional.pad(batch, (1,) * 4, "reflect")
            for at in (0, 2):
                shifted = padded[..., at : at + 32, at : at + 32]
                logits = logits + logits_of(shifted) / 2
        is_right = logits.argmax(1) == labels[first : first + EVAL_BATCH_SIZE]
        num_right += is_right.sum()
    if args.ranks > 1:
        distributed.all_reduce(num_right)
    return float(num_right) / len(images)


class Graphs:
    """The network's training and inference, compiled if that is asked for."""

    def __init__(self, network: Airbench94, args: argparse.Namespace) -> None:
        def loss(
            images: torch.Tensor, labels: torch.Tensor, trains_bias: bool
        ) -> torch.Tensor:
            with autocast():
                logits = network(images, trains_bias)
            return functional.cross_entropy(
                logits.float(), labels, label_smoothing=LABEL_SMOOTHING, reduction="sum"
            )

        def predict(images: torch.Tensor) -> torch.Tensor:
            with torch.no_grad(), autocast():
                return network(images).float()

        is_bf16 = args.precision == "bf16"
        autocast = functools.partial(
            torch.autocast, "cpu", torch.bfloat16, enabled=is_bf16
        )
        self.loss = torch.compile(loss) if args.compile else loss
        self.predict = torch.compile(predict) if args.compile else predict

    def warm_up(self, network: Airbench94, rows: int) -> None:
        """Compiles all graphs; the network's state stays as it is."""
        before = {name: value.clone() for name, value in network.state_dict().items()}
        images = torch.zeros(rows, 3, 32, 32)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(rows, dtype=torch.int64)
        for trains_bias in (True, False):
            self.loss(images, labels, trains_bias).backward()
        network.zero_grad(set_to_none=True)
        network.eval()
        self.predict(normalized(images[:1].expand(EVAL_BATCH_SIZE, -1, -1, -1)))
        network.train()
        network.load_state_dict(before)


def run_rank(args: argparse.Namespace) -> dict[str, float]:
    """Trains on this rank; returns the accuracies and times."""
    torch_resnet.join_ranks(args)
    torch.manual_seed(args.seed)
    data_dir = pathlib.Path(args.data_dir)
    images, labels = read(data_dir, "train", args.num_images)
    test_images, test_labels = read(data_dir, "test", args.num_images)
    network = Airbench94().to(memory_format=torch.channels_last)
    graphs = Graphs(network, args)
    begin = time.perf_counter()
    graphs.warm_up(network, args.batch_size // args.ranks)
    compile_seconds = time.perf_counter() - begin
    if args.ranks > 1:
        distributed.barrier()
    begin = time.perf_counter()
    whiten(network, normalized(images[:5000]))
    optimizer = make_optimizer(network, args.batch_size)
    lookahead = Lookahead(network)
    steps_per_epoch = len(images) // args.batch_size
    num_steps = math.ceil(steps_per_epoch * args.epochs)
    batches = train_batches(images, labels, args)
    for step in range(num_steps):
        trains_bias = step < BIAS_EPOCHS * steps_per_epoch
        factor = rate_factor(step, num_steps)
        for group in optimizer.param_groups:
            group["lr"] = group["highest"] * factor
        loss = graphs.loss(*next(batches), trains_bias)
        loss.backward()
        summed_gradients(network, args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % LOOKAHEAD_STEPS == 0:
            lookahead.exchange(0.95**5 * (done / num_steps) ** 3)
        if done % steps_per_epoch == 0 and args.rank == 0:
            print(
                f"epoch {done // steps_per_epoch}: loss of the last batch"
                f" {loss.item() * args.ranks / args.batch_size:.4f},"
                f" {time.perf_counter() - begin:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    lookahead.exchange(1.0)
    average_buffers(network, args)
    train_seconds = time.perf_counter() - begin
    network.eval()
    begin = time.perf_counter()
    augmented = evaluate(graphs.predict, test_images, test_labels, args, True)
    eval_seconds = time.perf_counter() - begin
    plain = evaluate(graphs.predict, test_images, test_labels, args, False)
    return {
        "top1": augmented,
        "top1_without_views": plain,
        "train_seconds": train_seconds,
        "eval_seconds": eval_seconds,
        "compile_seconds": compile_seconds,
        "steps": num_steps,
        "peak_memory_mb": torch_resnet.peak_memory_mb(),
    }


def main() -> None:
    """Starts a process for each rank, and prints the results of rank 0 as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True, help="cifar-10-batches-bin.")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="bf16")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE)
    parser.add_argument("--num_images", type=int, help="Of each split, for a trial.")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        print(json.dumps(run_rank(args)), flush=True)
        return
    results = torch_resnet.results_of_ranks(args.ranks)
    settings = {key: value for key, value in vars(args).items() if key != "rank"}
    print(json.dumps({**results[0], "torch": torch.__version__, **settings}))


if __name__ == "__main__":
    main()
