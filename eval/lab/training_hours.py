"""The time that a training took up to each step, from its metrics."""

from collections.abc import Sequence

from resnet.base.errors import UserError
from resnet.config import phases
from resnet.config.config import Config
from resnet.metrics.jsonl import Line

_SECONDS_PER_HOUR = 3600


def hours_of_steps(
    config: Config, trained: Sequence[Line], metrics: str
) -> tuple[list[int], list[float]]:
    """Returns step numbers, and the hours of training up to each of them.

    The first one is the number of steps before the run's first one: 0, unless it begins
    with a later phase.

    The images per second of a line leave out evaluations, checkpoints and the step in
    which a start traces its graph, which counts as long as the others of its line. A
    line without a rate, which has only such a step, has the rate of the next one.

    Args:
        config: The settings of the run.
        trained: The lines of training.
        metrics: The name of their file, for messages.
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
        hours.append(hours[-1] + num_images / rate / _SECONDS_PER_HOUR)
    return steps, hours
