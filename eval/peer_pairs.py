"""Compares this project's speed with another program's, in turns.

A machine's speed drifts, so only what ran side by side is divided by each other.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pairs:
    """Images a second of both programs, turn by turn.

    Attributes:
        ours: Of this project.
        theirs: Of the other program, in the same turns.
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times as fast this project was in each turn."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures for JSON."""
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
    """Runs both in turns, prints each pair and the ratios; returns the figures.

    Args:
        ours: Runs this project's benchmark; returns images a second.
        theirs: The same of the other program.
        num_pairs: Turns.
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
