r"""Measures what the exchange of a network's gradients costs, without training.

mpirun -np 8 python eval/lab/exchange_cost.py --model=resnet18
mpirun -np 8 python eval/lab/exchange_cost.py -c layerwise --method=terngrad

Each rank draws normally distributed gradients, which the ranks average as in a
step of training, with the settings of compression that are given. Prints the
bytes of a rank's messages, the bytes that each rank sends, and the time; with
--interface also the bytes that the host's network interface has sent, including
those of all protocols. If each host has one rank, these are the rank's.
"""

import dataclasses
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from eval.benchmarking.jobs import spread
from resnet.base import cli
from resnet.base import program as base_program
from resnet.base.errors import UserError
from resnet.base.settings import COUNT, setting
from resnet.config import networks, rules
from resnet.config.command_line import JobSettings
from resnet.config.compression import METHODS, CompressionSettings
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import program, startup

if TYPE_CHECKING:
    import tensorflow as tf

NUM_CLASSES = 1000


@dataclass(frozen=True)
class ExchangeSettings:
    """What is measured."""

    TOPIC: ClassVar[str] = "What is measured"

    model: str = setting(
        "resnet50",
        "Network whose gradients are exchanged, one of {names}.",
        names=tuple(networks.MODELS),
    )
    steps: int = setting(10, "Number of timed exchanges.", bounds=COUNT)
    warmup_steps: int = setting(3, "Number of untimed exchanges before.", bounds=COUNT)
    interface: str = setting(
        "", "Network interface, such as eth0, whose sent bytes are counted."
    )


FLAGS: cli.Groups = (
    cli.Flags(ExchangeSettings, common=True),
    CompressionSettings,
    cli.Flags(JobSettings, without=("stall_seconds", "use_tpu")),
)


def main(argv: Sequence[str]) -> int:
    """Measures as the flags say, as one of the ranks of a job."""
    return program.run(run_exchanges, argv)


def run_exchanges(
    argv: Sequence[str], process: ProcessInfo, communicator: Communicator
) -> None:
    """Measures, and prints the costs on rank 0."""
    with communicator.collective_errors():
        line = cli.parse(argv, __doc__, FLAGS)
        settings, job = line.of(ExchangeSettings), line.of(JobSettings)
        compression = line.of(CompressionSettings)
        if problems := rules.broken(compression):
            raise UserError(" ".join(problems))
        has_momentum = METHODS[compression.method].has_momentum
        if has_momentum and compression.compress != "none":
            raise UserError(
                f"--method={compression.method} sends the messages of topk, with a"
                " warm-up and a velocity that only a training has: measure"
                " --method=topk."
            )
        bytes_sent(settings.interface)
    startup.join_job(process, communicator, stall_seconds=600)
    startup.start_on_own_cores(process, communicator, job)
    from resnet.exchange import choice

    way = choice.choose(compression, communicator)
    measure(settings, dataclasses.replace(compression, exchange=way), communicator)


def measure(
    settings: ExchangeSettings,
    compression: CompressionSettings,
    communicator: Communicator,
) -> None:
    """Times exchanges, and prints what they cost on rank 0."""
    import tensorflow as tf

    from resnet import models
    from resnet.config.phases import StepSettings
    from resnet.exchange.gradients import CompressedExchange, GradientExchange

    variables = models.build(settings.model, NUM_CLASSES).trainable_variables
    shapes = {variable.path: list(variable.shape) for variable in variables}
    exchange = GradientExchange(communicator.collectives, list(shapes))
    if compression.compress != "none":
        exchange = CompressedExchange(communicator, shapes, compression, seed=0)
    draw = tf.random.Generator.from_seed(communicator.rank)
    gradients = [draw.normal(shape) for shape in shapes.values()]

    @tf.function(autograph=False)
    def exchanged(step: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
        no_rate = StepSettings(0.0, 0.0, 0.0, 0.0, step=step)
        result = exchange(gradients, tf.constant(0.0), tf.zeros([2]), no_rate)
        # Without compression the account is constant: it would wait for no gradient.
        firsts = [tf.reshape(gradient, [-1])[0] for gradient in result.gradients]
        return tf.stack(list(result.account)), tf.stack(firsts)

    seconds, sent = [], 0
    for number in range(settings.warmup_steps + settings.steps):
        if number == settings.warmup_steps:
            sent = bytes_sent(settings.interface)
        communicator.allgather(None)
        begin = time.perf_counter()
        account = exchanged(tf.constant(number, tf.int64))[0].numpy()
        seconds.append(time.perf_counter() - begin)
    sent = (bytes_sent(settings.interface) - sent) // settings.steps
    of_ranks = communicator.allgather((float(account[1]), sent))
    if communicator.rank == 0:
        num_values = sum(gradient.shape.num_elements() for gradient in gradients)
        sent_by_ranks = _over_ranks([of_rank for of_rank, _ in of_ranks])
        print(f"gradients        {4 * num_values:,} bytes of {settings.model}")
        print(
            f"exchange         {compression.exchange}, ranks {communicator.num_ranks}"
        )
        print(f"messages         {account[0]:,.0f} bytes per step of rank 0")
        print(f"each rank sends  {sent_by_ranks} bytes per step")
        if settings.interface:
            counted = _over_ranks([of_host for _, of_host in of_ranks])
            print(f"{settings.interface:16} {counted} bytes per step are counted")
        print(f"time             {spread(seconds[settings.warmup_steps :], unit=' s')}")


def bytes_sent(interface: str) -> int:
    """Returns the bytes that an interface of this host has sent; 0 without one."""
    if not interface:
        return 0
    file = pathlib.Path("/sys/class/net", interface, "statistics/tx_bytes")
    try:
        return int(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"--interface must be one of this host's; {file}: {error}."
        ) from error


def _over_ranks(counts: Sequence[float]) -> str:
    median = statistics.median(counts)
    return f"{median:,.0f} ({min(counts):,.0f} to {max(counts):,.0f})"


if __name__ == "__main__":
    sys.exit(base_program.run(main))
