"""An ensemble: the mean prediction of several networks for each example."""

from collections.abc import Iterator

import numpy as np


class Ensemble:
    """The summed predictions of several networks for the examples of one rank.

    The sums of probabilities are kept as their logarithms, `[num_examples,
    num_classes]`, so that no probability underflows in float32.

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

        Predictions beyond this rank's last example are padding and are left out.

        Args:
            first: Index of the first of these examples among those of this rank.
            log_probabilities: `[batch, num_classes]` float32.
            labels: `[batch]` int32.
            mask: `[batch]` bool; False for examples that don't count.
        """
        rows = slice(first, min(first + len(labels), len(self._labels)))
        count = rows.stop - first
        with np.errstate(invalid="ignore"):  # The network may predict NaN.
            sums = np.logaddexp(self._log_sums[rows], log_probabilities[:count])
        self._log_sums[rows] = sums
        self._labels[rows] = labels[:count]
        self._mask[rows] &= mask[:count]

    def batches(
        self, batch_size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields logits, labels and mask of the examples, in batches.

        The softmax of the logits, `[batch, num_classes]` float32, is the mean of the
        networks' probabilities.

        Args:
            batch_size: Number of examples in each batch; the last batch may be smaller.
        """
        num_networks = np.float32(len(self.penalties))
        for first in range(0, len(self._labels), batch_size):
            rows = slice(first, first + batch_size)
            logits = self._log_sums[rows] - np.log(num_networks)
            yield logits, self._labels[rows], self._mask[rows]
