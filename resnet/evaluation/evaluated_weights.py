"""The weights of a run that are evaluated: raw weights and EMA weights, in turn."""

import contextlib
from collections.abc import Iterator, Sequence

from resnet.evaluation.precise_bn import PreciseBN
from resnet.optim.train_state import TrainState

# The kind of the metrics line for the results of each.
METRICS_KINDS = {"raw": "eval", "ema": "eval_ema"}


def all_of(state: TrainState) -> list[str]:
    """Returns the names of the weights that a run has."""
    return ["raw", "ema"] if state.ema else ["raw"]


def each(
    state: TrainState,
    chosen: Sequence[str],
    precise_bn: PreciseBN | None,
    num_ranks: int,
) -> Iterator[str]:
    """Yields each name after setting the network to the weights of that name.

    After the last one, the network gets its raw weights back. With `precise_bn`, it
    keeps the batch normalization statistics that were computed last.

    Args:
        state: The state of the run.
        chosen: The names of the weights, among those of `all_of`.
        precise_bn: The PreciseBN that recomputes the statistics of batch normalization
            for each of the weights; None keeps the moving averages.
        num_ranks: The number of ranks that the run was trained on.
    """
    for name in chosen:
        with state.averaged_weights() if name == "ema" else contextlib.nullcontext():
            if precise_bn is not None:
                precise_bn.apply(state.step, num_ranks)
            yield name
