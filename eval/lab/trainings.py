"""Trainings that measuring programs start, and the hours that they took."""

import functools
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from eval.benchmarking.jobs import OPEN_MPI
from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.config import Config
from resnet.metrics.jsonl import Line
from resnet.watchdog import proc

PROGRAM = Path(__file__).resolve().parents[2] / "resnet" / "resnet_main.py"


def split_flags(text: str, flag: str) -> list[str]:
    """Returns the words of a flag whose value is split as a shell would."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{flag} can't be split into words: {error}.") from error


def start(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a training in a session of its own; returns its process.

    So only this program sends it signals: SIGTERM, upon which a training saves and
    stops, also if this program dies.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**OPEN_MPI, **os.environ},
        start_new_session=True,
        preexec_fn=functools.partial(
            proc.send_signal_at_parents_end, signal.SIGTERM, os.getpid()
        ),
    )


def hours_of_steps(
    config: Config, trained: Sequence[Line], metrics: str
) -> tuple[list[int], list[float]]:
    """Returns step numbers, and the hours of training up to each of them.

    The first one is the number of steps before the run's first one: 0, unless it begins
    with a later phase. The images per second of a line leave out evaluations,
    checkpoints and the step in which a start traces its graph, which counts as long as
    the others of its line. A line without a rate, which has only such a step, has the
    rate of the next one.
    """
    rates = [line.get("images_per_second", 0.0) for line in trained]
    if not any(rates):
        raise UserError(f"{metrics} must have images_per_second; it has none above 0")
    last_rate = next(rate for rate in reversed(rates) if rate)
    for index in reversed(range(len(rates))):
        rates[index] = last_rate = rates[index] or last_rate
    steps, hours = [phases.first_step(config.phases, config.first_phase)], [0.0]
    for line, rate in zip(trained, rates, strict=True):
        num_images = (line["step"] - steps[-1]) * config.global_batch_size
        steps.append(line["step"])
        hours.append(hours[-1] + num_images / rate / 3600)
    return steps, hours
