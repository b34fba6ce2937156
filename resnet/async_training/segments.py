"""The steps at which an asynchronous run lets its workers wait, to save or evaluate."""

from resnet.config import intervals, phases
from resnet.config.config import Config


def end_of_segment(config: Config, step: int) -> int:
    """Returns the next step after which the workers wait.

    It is that of a checkpoint, an evaluation, the end of a phase or of the run,
    whichever comes first.

    Args:
        config: The settings of the run, which has no local SGD.
        step: The number of steps done, fewer than `config.last_step`.
    """
    every = [intervals.parse(config.checkpoint_every, "--checkpoint_every")]
    if config.eval_every:
        every.append(intervals.parse(config.eval_every, "--eval_every"))
    sizes = config.num_train_examples, config.global_batch_size
    ends = [one.next_end(step, *sizes) for one in every if one.unit != "minute"]
    ends += [first for first in phases.first_steps(config.phases) if first > step]
    return min([*ends, config.last_step])
