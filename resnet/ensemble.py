"""The mean of what several networks say of each example."""

from collections.abc import Iterator

import numpy as np


class Ensemble:
    """What several networks say of one rank's examples, added up as they come.

    Held as the logarithms of sums of probabilities, in which none is too small for a
    float32: `[num_examples, num_classes]`.

    Source of the ensemble of a run's phases: Codreanu et al. 2017, arXiv:1711.04291.

    Attributes:
        penalties: Of each network's weights, which its loss has in it.
    """

    def __init__(self, num_examples: int, num_classes: int) -> None:
        """Begins with no network.

        Args:
            num_examples: That this rank evaluates.
            num_classes: Of the networks.
        """
        self._log_sums = np.full((num_examples, num_classes), -np.inf, np.float32)
        self._labels = np.zeros(num_examples, np.int32)
        self._mask = np.ones(num_examples, bool)
        self.penalties: list[float] = []

    @property
    def penalty(self) -> float:
        """The mean of the networks' penalties."""
        return sum(self.penalties) / len(self.penalties)

    def add(
        self,
        first: int,
        log_probabilities: np.ndarray,
        labels: np.ndarray,
        mask: np.ndarray,
    ) -> None:
        """Adds what one network says of some neighbouring examples.

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
