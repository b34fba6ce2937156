"""The rounds of local SGD: the steps from one average of the weights to the next.

In a phase without local steps, each step is a round of its own.
"""

import bisect
import functools
from collections.abc import Sequence

from resnet.base.intervals import Interval
from resnet.config import phases as phase_list
from resnet.config import schedules
from resnet.config.config import Config
from resnet.config.phases import Phase

_ROUNDING = 1e-9  # A rate of 0.8 * 0.1 is a little more than 0.08.


def of_step(phases: Sequence[Phase], step: int) -> range:
    """Returns the steps of the round that a step of the run is in."""
    index = phase_list.index_of(phases, step)
    if not phases[index].is_local:
        return range(step, step + 1)
    bounds = bounds_of_phase(tuple(phases), index)
    end = bisect.bisect_right(bounds, step)
    return range(bounds[end - 1], bounds[end])


@functools.cache
def bounds_of_phase(phases: tuple[Phase, ...], index: int) -> list[int]:
    """Returns the first step of each round of a phase, and the step after the last."""
    step = phase_list.first_steps(phases)[index]
    end = step + phases[index].num_steps
    bounds = []
    while step < end:
        bounds.append(step)
        step = min(end, step + _length(phases, step, end))
    return [*bounds, end]


def _length(phases: Sequence[Phase], step: int, end: int) -> int:
    """Returns the length of the round that begins with a step, if it isn't cut.

    With the quadratic synchronization rule it is max(H, floor((c / rate) ** 2)), with
    the rate of the first step of the round or, in a warmup, of the step after that.

    Source: Gu et al. 2023, arXiv:2310.14423, section 3; the authors' program, too,
    leaves out the rates of the warmup (hmgxr128/QSR, localopt.py, adjust_h).
    """
    phase = phase_list.at(phases, step)
    if not phase.qsr_coefficient:
        return phase.sync_every
    first, schedule = phase_list.schedule_at(phases, step)
    time = max(step - first, int(schedule.warmup_length))
    rate = schedules.learning_rate(schedule, time)
    if phase.qsr_coefficient >= rate * (end - step):  # Without an overflow.
        return end - step
    ratio = phase.qsr_coefficient / rate
    return max(phase.sync_every, int(ratio * ratio * (1 + _ROUNDING)))


def is_synchronized(phases: Sequence[Phase], num_done: int) -> bool:
    """Returns whether the ranks have the same weights after so many steps."""
    return num_done == 0 or of_step(phases, num_done - 1).stop == num_done


def next_synchronization(phases: Sequence[Phase], num_done: int) -> int:
    """Returns the first number of steps, of at least `num_done`, with equal weights."""
    return of_step(phases, num_done - 1).stop


def ends_interval(config: Config, interval: Interval, num_done: int) -> bool:
    """Returns whether the first synchronization after an interval's end is done."""
    done = of_step(config.phases, num_done - 1)
    sizes = config.num_train_examples, config.global_batch_size
    ends = interval.ends_at(num_done, *sizes, since=done.start)
    return done.stop == num_done and ends
