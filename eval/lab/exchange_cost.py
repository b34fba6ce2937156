r"""Measures what the exchange of a network's gradients costs, without training.

mpirun -np 8 python eval/lab/exchange_cost.py --model=resnet18
mpirun -np 8 python eval/lab/exchange_cost.py -c layerwise \
    --method=terngrad

Each rank draws normally distributed gradients, which the ranks average as in a
step of training, with the settings of compression that are given. Prints the
bytes of a rank's messages, the bytes that each rank sends, and the time; with
--interface also the bytes that the host's network interface has sent, including
those of all protocols. If each host has one rank, these are the rank's.
"""

import dataclasses
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # Run by its path: the packages are two folders up.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from absl import flags

from eval import flag_topics
from resnet import setting_flags, shared_flags
from resnet.base import bounds, settings
from resnet.base.errors import UserError, parse_flags
from resnet.config import rules
from resnet.config.compression import METHODS, CompressionSettings
from resnet.config.config import Config
from resnet.distributed.communicator import Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.models import names
from resnet.runtime import program, startup

if TYPE_CHECKING:
    import tensorflow as tf

FLAGS = flags.FLAGS

NUM_CLASSES = 1000
_SHARED_FLAGS = ("num_intra_threads", "num_inter_threads", "kmp_blocktime")


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this program, when it starts."""
    define = functools.partial(flags.DEFINE_integer, flag_values=flag_values)
    flags.DEFINE_enum(
        "model",
        "resnet50",
        names.MODELS,
        "Network whose gradients are exchanged.",
        flag_values=flag_values,
    )
    define("steps", 10, "Number of timed exchanges.", lower_bound=1)
    define("warmup_steps", 3, "Number of untimed exchanges before.", lower_bound=1)
    flags.DEFINE_string(
        "interface",
        None,
        "Network interface, such as eth0, whose sent bytes are counted.",
        flag_values=flag_values,
    )
    setting_flags.define(
        CompressionSettings, has_defaults=True, flag_values=flag_values
    )


def main(argv: Sequence[str], process: ProcessInfo, communicator: Communicator) -> None:
    """Measures as the flags say, and prints on rank 0."""
    with communicator.collective_errors():
        parse_flags(argv, __doc__, flag_topics.EXCHANGE_COST)
        chosen = chosen_compression()
        bytes_sent(FLAGS.interface)
    startup.join_job(process, communicator, stall_seconds=600)
    startup.start_on_own_cores(
        process,
        communicator,
        FLAGS.num_intra_threads,
        FLAGS.num_inter_threads,
        FLAGS.kmp_blocktime,
    )
    from resnet.exchange import choice as exchange_choice

    way = exchange_choice.choose(chosen, communicator)
    chosen = dataclasses.replace(chosen, exchange=way)
    measure(chosen, communicator)


def chosen_compression() -> CompressionSettings:
    """Returns the settings of compression that the flags give.

    Raises:
        UserError: If they can't work.
    """
    declared = settings.declarations(CompressionSettings)
    values = {
        field.name: FLAGS[settings.flag_name(field.name, declared[field.name])].value
        for field in dataclasses.fields(CompressionSettings)
    }
    problems = bounds.validate_overrides(values, Config)
    chosen = CompressionSettings(**values)
    if problems := problems or rules.broken(chosen):
        raise UserError(" ".join(problems))
    if METHODS[chosen.method].has_momentum and chosen.compress != "none":
        raise UserError(
            f"--method={chosen.method} sends the messages of topk, with a warm-up and a"
            " velocity that only a training has: measure --method=topk."
        )
    return chosen


def measure(chosen: CompressionSettings, communicator: Communicator) -> None:
    """Times exchanges, and prints what they cost on rank 0."""
    import tensorflow as tf

    from resnet import models
    from resnet.config.phases import StepSettings
    from resnet.exchange.compressed import CompressedExchange
    from resnet.exchange.gradients import GradientExchange

    variables = models.build(FLAGS.model, NUM_CLASSES).trainable_variables
    shapes = {one.path: list(one.shape) for one in variables}
    exchange = GradientExchange(communicator.collectives, list(shapes))
    if chosen.compress != "none":
        exchange = CompressedExchange(communicator, shapes, chosen, seed=0)
    draw = tf.random.Generator.from_seed(communicator.rank)
    gradients = [draw.normal(shape) for shape in shapes.values()]

    @tf.function(autograph=False)
    def exchanged(step: "tf.Tensor") -> "tf.Tensor":
        no_rate = StepSettings(0.0, 0.0, 0.0, 0.0, step=step)
        result = exchange(gradients, tf.constant(0.0), tf.zeros([2]), no_rate)
        with tf.control_dependencies(result.gradients):
            return tf.stack(list(result.account))

    seconds, sent = [], 0
    for number in range(FLAGS.warmup_steps + FLAGS.steps):
        if number == FLAGS.warmup_steps:
            sent = bytes_sent(FLAGS.interface)
        communicator.allgather(None)
        begin = time.perf_counter()
        account = exchanged(tf.constant(number, tf.int64)).numpy()
        seconds.append(time.perf_counter() - begin)
    sent = (bytes_sent(FLAGS.interface) - sent) // FLAGS.steps
    of_ranks = communicator.allgather((account[:2].tolist(), sent))
    if communicator.rank == 0:
        timed = seconds[FLAGS.warmup_steps :]
        num_values = sum(gradient.shape.num_elements() for gradient in gradients)
        print(f"gradients        {4 * num_values:,} bytes of {FLAGS.model}")
        print(f"exchange         {chosen.exchange}, {communicator.num_ranks} rank(s)")
        print(f"messages         {account[0]:,.0f} bytes per step of rank 0")
        of_all = _spread([one[1] for one, _ in of_ranks])
        print(f"each rank sends  {of_all} bytes per step")
        if FLAGS.interface:
            counted = _spread([one for _, one in of_ranks])
            print(f"{FLAGS.interface:16} {counted} bytes per step are counted")
        print(
            f"time             {statistics.median(timed):.3f} s"
            f" ({min(timed):.3f} to {max(timed):.3f}, n={len(timed)})"
        )


def bytes_sent(interface: str | None) -> int:
    """Returns the bytes that an interface of this host has sent; 0 without one.

    Raises:
        UserError: If there is no such interface.
    """
    if not interface:
        return 0
    file = pathlib.Path("/sys/class/net", interface, "statistics/tx_bytes")
    try:
        return int(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"--interface must be one of this host's; {file}: {error}."
        ) from error


def _spread(counts: Sequence[float]) -> str:
    """Returns the median and the range over ranks as text."""
    median = statistics.median(counts)
    return f"{median:,.0f} ({min(counts):,.0f} to {max(counts):,.0f})"


def run() -> None:
    """Runs the program and exits."""
    shared_flags.keep_only(_SHARED_FLAGS)
    define_flags(FLAGS)
    sys.exit(program.run(main, sys.argv))


if __name__ == "__main__":
    run()
