"""Alternating A/B comparison of this project's speed with another program's.

The speed of a machine drifts, so each ratio is that of two consecutive runs.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pairs:
    """The images per second of both programs in each repetition.

    Attributes:
        ours: The rates of this project.
        theirs: The rates of the other program.
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The speed of this project relative to the other in each repetition."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Returns the results for JSON."""
        return {
            "ratio": round(statistics.median(self.ratios), 4),
            "min": round(min(self.ratios), 4),
            "max": round(max(self.ratios), 4),
            "ours": list(self.ours),
            "theirs": list(self.theirs),
        }


def compare(
    ours: Callable[[], float], theirs: Callable[[], float], num_pairs: int
) -> Pairs:
    """Runs both alternately, prints each pair and the ratios; returns the results.

    Args:
        ours: A function that runs this project's benchmark and returns images per
            second.
        theirs: The same for the other program.
        num_pairs: The number of repetitions.
    """
    print(f"{'pair':>4} {'ours':>10} {'theirs':>10} {'ratio':>7}", flush=True)
    rates: list[tuple[float, float]] = []
    for number in range(1, num_pairs + 1):
        pair = (ours(), theirs())
        rates.append(pair)
        print(
            f"{number:4} {pair[0]:10,.2f} {pair[1]:10,.2f} {pair[0] / pair[1]:7.3f}",
            flush=True,
        )
    pairs = Pairs(*zip(*rates, strict=True))
    print(
        f"ours / theirs: median {statistics.median(pairs.ratios):.3f}"
        f" ({min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}, n={num_pairs})"
    )
    return pairs
