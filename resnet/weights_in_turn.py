"""The weights that a run has to be evaluated: its own, and their moving averages."""

import contextlib
from collections.abc import Iterator, Sequence

from resnet.recalibration import Recalibration
from resnet.train_state import TrainState

# Under which names a run writes down what they are worth.
FACTS = {"raw": "eval", "ema": "eval_ema"}


def all_of(state: TrainState) -> list[str]:
    """Returns the names of the weights that a run has."""
    return ["raw", "ema"] if state.ema else ["raw"]


def each(
    state: TrainState,
    chosen: Sequence[str],
    recalibration: Recalibration | None,
    num_ranks: int,
) -> Iterator[str]:
    """Yields the names of weights; until the next one, the network has these.

    Afterwards it has its own weights again, but not its own statistics, if they were
    recalibrated.

    Args:
        state: Of the run.
        chosen: Names among those of `all_of`.
        recalibration: Recalibrates them, if it is not None.
        num_ranks: As `Recalibration.apply` takes it.
    """
    for name in chosen:
        with state.averaged_weights() if name == "ema" else contextlib.nullcontext():
            if recalibration is not None:
                recalibration.apply(state.step, num_ranks)
            yield name
