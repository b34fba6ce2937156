"""An ensemble: the mean prediction of several networks for each example."""

from collections.abc import Iterator

import numpy as np


class Ensemble:
    """The summed predictions of several networks for the examples of one rank.

    They are kept as logarithms of sums of probabilities, `[num_examples, num_classes]`,
    so that no probability underflows in float32.

    Source of the ensemble of a run's phases: Codreanu et al. 2017, arXiv:1711.04291.

    Attributes:
        penalties: The weight penalty of each network, which is part of its loss.
    """

    def __init__(self, num_examples: int, num_classes: int) -> None:
        """Creates an ensemble without networks.

        Args:
            num_examples: The number of examples that this rank evaluates.
            num_classes: The number of classes.
        """
        self._log_sums = np.full((num_examples, num_classes), -np.inf, np.float32)
        self._labels = np.zeros(num_examples, np.int32)
        self._mask = np.ones(num_examples, bool)
        self.penalties: list[float] = []

    @property
    def penalty(self) -> float:
        """The mean weight penalty of the networks."""
        return sum(self.penalties) / len(self.penalties)

    def add(
        self,
        first: int,
        log_probabilities: np.ndarray,
        labels: np.ndarray,
        mask: np.ndarray,
    ) -> None:
        """Adds the predictions of one network for consecutive examples.

        What goes beyond the last example fills up a batch, and is left out.

        Args:
            first: Number of the first one, of this rank's examples.
            log_probabilities: `[batch, num_classes]` float32.
            labels: `[batch]` int32.
            mask: `[batch]` bool; whether the example counts.
        """
        places = slice(first, min(first + len(labels), len(self._labels)))
        count = places.stop - first
        with np.errstate(invalid="ignore"):  # Of a network that says NaN.
            sums = np.logaddexp(self._log_sums[places], log_probabilities[:count])
        self._log_sums[places] = sums
        self._labels[places] = labels[:count]
        self._mask[places] &= mask[:count]

    def batches(
        self, batch_size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields logits whose softmax is the mean probabilities, labels and mask.

        Args:
            batch_size: Examples of each, but the last one.
        """
        num_networks = np.float32(len(self.penalties))
        for first in range(0, len(self._labels), batch_size):
            places = slice(first, first + batch_size)
            logits = self._log_sums[places] - np.log(num_networks)
            yield logits, self._labels[places], self._mask[places]
