"""The most probable classes of each example, collected over the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from resnet.distributed.communicator import Communicator
from resnet.evaluation.prediction_file import TOP_K


@dataclass(frozen=True, eq=False)
class Block:
    """The predictions for some examples.

    Attributes:
        examples: The index of each example in the whole split, int32 `[n]`.
        labels: Its class, int32 `[n]`.
        classes: Its most probable classes, int32 `[n, k]`.
        probabilities: Their probabilities, float32 `[n, k]`.
    """

    examples: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    classes: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float32]


def of_logits(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the most probable classes of each example and their probabilities.

    Of classes with equal logits the earlier is first, as `evaluator.in_top` counts
    them.

    Args:
        logits: `[batch, num_classes]` float32.

    Returns:
        Classes, int32 `[batch, k]`, and probabilities, float32 `[batch, k]`, with k of
        at most `TOP_K`.
    """
    k = min(TOP_K, logits.shape[-1])
    _, classes = tf.math.top_k(logits, k)
    return classes, tf.gather(tf.nn.softmax(logits), classes, batch_dims=1)


class TopClasses:
    """The predictions of one evaluation for the examples of this rank."""

    def __init__(self) -> None:
        """Begins without an example."""
        self._blocks: list[Block] = []

    def add(
        self,
        examples: npt.NDArray[np.integer],
        labels: npt.NDArray[np.integer],
        mask: npt.NDArray[np.bool_],
        classes: npt.NDArray[np.int32],
        probabilities: npt.NDArray[np.float32],
    ) -> None:
        """Adds the predictions for a batch.

        Args:
            examples: The indices of its examples in the whole split, `[n]`.
            labels: Their classes, `[batch]`; those from n on are padding.
            mask: bool `[batch]`; False for examples that don't count.
            classes: `[batch, k]`, of `of_logits`.
            probabilities: `[batch, k]`, of `of_logits`.
        """
        kept = mask[: len(examples)]

        def only(values: np.ndarray) -> np.ndarray:
            return values[: len(examples)][kept]

        self._blocks.append(
            Block(
                only(examples.astype(np.int32)),
                only(labels.astype(np.int32)),
                only(classes),
                only(probabilities),
            )
        )

    def of_rank(self) -> Block | None:
        """Returns the predictions of this rank; None if it evaluated nothing."""
        return _joined(self._blocks) if self._blocks else None

    def of_all(self, communicator: Communicator) -> Block:
        """Returns the predictions of all ranks, sorted by example, on each of them.

        Raises:
            ValueError: If no rank evaluated anything.
        """
        blocks = [one for one in communicator.allgather(self.of_rank()) if one]
        whole = _joined(blocks)
        order = np.argsort(whole.examples, kind="stable")
        return Block(
            whole.examples[order],
            whole.labels[order],
            whole.classes[order],
            whole.probabilities[order],
        )


def _joined(blocks: Sequence[Block]) -> Block:
    return Block(
        np.concatenate([one.examples for one in blocks]),
        np.concatenate([one.labels for one in blocks]),
        np.concatenate([one.classes for one in blocks]),
        np.concatenate([one.probabilities for one in blocks]),
    )
