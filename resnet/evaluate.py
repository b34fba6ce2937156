"""Exact evaluation: each example counts once, for any batch size and any ranks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import keras
import numpy as np
import tensorflow as tf

from resnet.config import Config
from resnet.data import batches
from resnet.data.damaged_records import DamagedRecords
from resnet.data.share import Share
from resnet.distributed import Communicator
from resnet.optim import losses


@dataclass(frozen=True)
class Result:
    """What evaluation finds.

    Attributes:
        top1: Share of the examples whose label has the highest logit.
        top5: Share of those whose label is among the five highest.
        loss: Mean cross-entropy with the run's label smoothing, and the weight penalty.
        count: Examples counted.
        skipped_records: Those that are damaged and were not counted.
    """

    top1: float
    top5: float
    loss: float
    count: int
    skipped_records: int = 0

    def as_dict(self) -> dict[str, float]:
        """Returns the numbers by name; what was skipped, if anything was."""
        numbers = asdict(self)
        if not self.skipped_records:
            del numbers["skipped_records"]
        return numbers

    def __str__(self) -> str:
        return (
            f"top-1 {100 * self.top1:.2f} %, top-5 {100 * self.top5:.2f} %,"
            f" loss {self.loss:.4f} on {self.count:,} images"
            + (f", {self.skipped_records:,} skipped" if self.skipped_records else "")
        )


class Evaluator:
    """Evaluates one network on one split, as often as it is asked to."""

    def __init__(
        self,
        model: keras.Model,
        share: Share,
        config: Config,
        communicator: Communicator,
        num_parallel_calls: int,
    ) -> None:
        """Divides the examples: each rank takes one run of neighbouring ones.

        Args:
            model: The network.
            share: This rank's share of the split.
            config: The run's settings; its `eval_batch_size` is that of all ranks.
            communicator: The ranks.
            num_parallel_calls: Pictures that a rank decodes at the same time.
        """
        self._model = model
        self._share = share
        self._config = config
        self._communicator = communicator
        self._num_parallel_calls = num_parallel_calls
        self._first, self._end = share.first_example, share.end_example
        self._batch_size = min(
            -(-config.eval_batch_size // communicator.num_ranks),
            max(self._end - self._first, 1),
        )
        self._damaged = DamagedRecords(share.records, config.on_bad_record)
        self._count_batch = tf.function(self._counts)
        self._has_evaluated = False

    @property
    def num_batches(self) -> int:
        """Batches that this rank evaluates."""
        return -(-(self._end - self._first) // self._batch_size)

    def evaluate(
        self,
        decayed_variables: Sequence[tf.Variable],
        report: Callable[[int], None] | None = None,
    ) -> Result:
        """Returns the accuracy on all examples, to each rank; only sums travel.

        Args:
            decayed_variables: For the weight penalty in the loss.
            report: Called after each batch with the number of batches done.

        Raises:
            UserError: If a record is damaged and none may be.
            RuntimeError: If not every example was counted once.
        """
        sums = np.zeros(4)
        if self.num_batches:
            eval_batches = batches.evaluation(
                self._config,
                self._share,
                self._batch_size,
                self._num_parallel_calls,
                self._damaged,
            )
            for number in range(1, self.num_batches + 1):
                self._communicator.doing(
                    f"evaluating batch {number} of {self.num_batches}",
                    # The first one of all makes the graph.
                    is_timed=number > 1 or self._has_evaluated,
                )
                batch = next(eval_batches)
                sums += self._count_batch(
                    batch.images, batch.labels, batch.is_real
                ).numpy()
                if report:
                    report(number)
        self._has_evaluated = True
        self._communicator.doing("adding up the evaluation", waits_for_others=True)
        num_skipped = self._damaged.count(self._first, self._end)
        right, right_of_five, loss, count, num_skipped = self._communicator.sum(
            np.append(sums, num_skipped)
        )
        if count + num_skipped != self._share.num_examples_of_all or not count:
            raise RuntimeError(
                f"evaluation must count all {self._share.num_examples_of_all} examples"
                f" once; it counted {count:.0f} and skipped {num_skipped:.0f}"
            )
        penalty = losses.weight_penalty(decayed_variables, self._config.weight_decay)
        return Result(
            top1=float(right / count),
            top5=float(right_of_five / count),
            loss=float(loss / count) + penalty,
            count=int(count),
            skipped_records=int(num_skipped),
        )

    def _counts(
        self, images: tf.Tensor, labels: tf.Tensor, is_real: tf.Tensor
    ) -> tf.Tensor:
        """Returns the right ones, those right among five, the loss and the count.

        Summed over the real examples of one batch; `[4]` float64.
        """
        logits = self._model(images, training=False)
        columns = (
            in_top(logits, labels, 1),
            in_top(logits, labels, 5),
            losses.cross_entropy(logits, labels, self._config.label_smoothing),
            tf.ones_like(labels),
        )
        real_columns = [
            tf.boolean_mask(tf.cast(one, tf.float64), is_real) for one in columns
        ]
        return tf.stack([tf.reduce_sum(one) for one in real_columns])


def in_top(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """Returns whether each example's label is among the k highest, `[batch]` bool.

    A logit equal to the label's is lower only if its class comes later, so that equal
    logits are not all right. One that is no number is never lower, and a label whose
    logit is not finite is never in.

    Args:
        logits: `[batch, num_classes]` float32.
        labels: `[batch]` int32.
        k: From 1.
    """
    own = tf.gather(logits, labels, batch_dims=1)[:, tf.newaxis]
    later = tf.range(tf.shape(logits)[1])[tf.newaxis, :] >= labels[:, tf.newaxis]
    lower = (logits < own) | ((logits == own) & later)
    rank = tf.reduce_sum(tf.cast(~lower, tf.int32), axis=1)
    return (rank < k) & tf.math.is_finite(own[:, 0])
