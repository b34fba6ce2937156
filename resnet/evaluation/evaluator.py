"""Exact evaluation: each example counts once, for any batch size and any ranks."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import keras
import numpy as np
import tensorflow as tf

from resnet.config.config import Config
from resnet.data import batches
from resnet.data.corrupt_records import CorruptRecords
from resnet.data.example_shard import ExampleShard
from resnet.data.input_pipeline import Batch
from resnet.distributed.communicator import Communicator
from resnet.evaluation import test_time_augmentation
from resnet.evaluation.ensemble import Ensemble
from resnet.optim import losses
from resnet.runtime.preemption import Preempted, StopSignals

Report = Callable[[int], None]


@dataclass(frozen=True)
class Result:
    """The result of an evaluation.

    Attributes:
        top1: The fraction of examples whose label has the highest logit.
        top5: The fraction of examples whose label has one of the five highest logits.
        loss: The mean cross-entropy plus the weight penalty.
        cross_entropy: The mean cross-entropy, with the label smoothing of the run.
        count: The number of examples counted.
        skipped_records: The number of corrupt records, which were not counted.
    """

    top1: float
    top5: float
    loss: float
    cross_entropy: float
    count: int
    skipped_records: int = 0

    def as_dict(self) -> dict[str, float]:
        """Returns the values by name; `skipped_records` only if there are any."""
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
    """Evaluates one network on one split, any number of times."""

    def __init__(
        self,
        model: keras.Model,
        share: ExampleShard,
        config: Config,
        communicator: Communicator,
        num_parallel_calls: int,
        views: str = "center",
        signals: StopSignals | None = None,
    ) -> None:
        """Divides the examples among the ranks, in contiguous blocks.

        Args:
            model: The network.
            share: This rank's share of the split.
            config: The settings of the run; `eval_batch_size` is the number of images
                that the networks of all ranks process at a time.
            communicator: The ranks.
            num_parallel_calls: The number of images that a rank decodes in parallel.
            views: The test-time augmentation, a name of `view_names.VIEWS`.
            signals: The stop requests of this rank, checked between two batches.
        """
        self._model = model
        self._share = share
        self._config = config
        self._communicator = communicator
        self._num_parallel_calls = num_parallel_calls
        self._views = views
        self._signals = signals
        self._first, self._end = share.first_example, share.end_example
        images_of_rank = -(-config.eval_batch_size // communicator.num_ranks)
        self._batch_size = min(
            max(images_of_rank // test_time_augmentation.num_views(views), 1),
            max(self._end - self._first, 1),
        )
        self._damaged = CorruptRecords(share.records, config.on_bad_record)
        self._count_batch = tf.function(self._counts_of_images, autograph=False)
        self._predict_batch = tf.function(self._log_probabilities, autograph=False)
        self._has_evaluated = False

    @property
    def num_batches(self) -> int:
        """The number of batches that this rank evaluates."""
        return -(-(self._end - self._first) // self._batch_size)

    def evaluate(self, penalty: float = 0.0, report: Report | None = None) -> Result:
        """Returns the result on all examples to every rank; only sums are reduced.

        Args:
            penalty: The weight penalty, which is added to the loss.
            report: A function called after each batch with the number of batches done.

        Raises:
            Preempted: On all ranks, if one of them received a stop request.
            UserError: If a record is corrupt and none may be skipped.
            RuntimeError: If not every example was counted once.
        """
        sums = np.zeros(4)
        for batch in self._batches(report):
            sums += self._count_batch(batch.images, batch.labels, batch.mask).numpy()
        return self._result_of_all(sums, penalty)

    def new_ensemble(self) -> Ensemble:
        """Returns an ensemble of no networks yet, for the examples of this rank."""
        return Ensemble(self._end - self._first, self._config.num_classes)

    def add_to(
        self, ensemble: Ensemble, penalty: float = 0.0, report: Report | None = None
    ) -> None:
        """Adds the predictions of the current network for the examples of this rank.

        Args:
            ensemble: The ensemble.
            penalty: The weight penalty of the network.
            report: A function called after each batch with the number of batches done.

        Raises:
            UserError: If a record is corrupt and none may be skipped.
        """
        for number, batch in enumerate(self._batches(report)):
            ensemble.add(
                number * self._batch_size,
                self._predict_batch(batch.images).numpy(),
                batch.labels.numpy(),
                batch.mask.numpy(),
            )
        ensemble.penalties.append(penalty)

    def evaluate_ensemble(self, ensemble: Ensemble) -> Result:
        """Returns the result of the mean predictions of an ensemble.

        Raises:
            RuntimeError: If not every example was counted once.
        """
        sums = np.zeros(4)
        for logits, labels, mask in ensemble.batches(self._batch_size):
            sums += self._counts(tf.constant(logits), labels, mask).numpy()
        return self._result_of_all(sums, ensemble.penalty)

    def _batches(self, report: Report | None) -> Iterator[Batch]:
        """Yields the batches of this rank; ends early on a stop request."""
        if not self.num_batches:
            return
        eval_batches = batches.evaluation(
            self._config,
            self._share,
            self._batch_size,
            self._num_parallel_calls,
            self._damaged,
            test_time_augmentation.num_crops(self._views),
        )
        for number in range(1, self.num_batches + 1):
            if self._stop_requested():
                return
            self._communicator.report_status(
                f"evaluating batch {number} of {self.num_batches}",
                # The first batch of all traces the graph.
                is_timed=number > 1 or self._has_evaluated,
            )
            yield next(eval_batches)
            if report:
                report(number)
        self._has_evaluated = True

    def _stop_requested(self) -> bool:
        return self._signals is not None and bool(self._signals.seen)

    def _result_of_all(self, sums: np.ndarray, penalty: float) -> Result:
        """Returns the result of the sums of all ranks, which `_counts` returns."""
        self._communicator.report_status(
            "summing the results of the evaluation", waits_for_others=True
        )
        num_skipped = self._damaged.count(self._first, self._end)
        right, right_of_five, cross_entropy, count, num_skipped = (
            self._communicator.allreduce_sum(np.append(sums, num_skipped))
        )
        if count + num_skipped != self._share.num_examples_of_all or not count:
            if any(self._communicator.allgather(self._stop_requested())):
                raise Preempted(
                    "stopped during an evaluation",
                    "Rerun the same command to start the evaluation over",
                )
            raise RuntimeError(
                f"evaluation must count all {self._share.num_examples_of_all} examples"
                f" once; it counted {count:.0f} and skipped {num_skipped:.0f}"
            )
        return Result(
            top1=float(right / count),
            top5=float(right_of_five / count),
            loss=float(cross_entropy / count) + penalty,
            cross_entropy=float(cross_entropy / count),
            count=int(count),
            skipped_records=int(num_skipped),
        )

    def _counts_of_images(
        self, images: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor
    ) -> tf.Tensor:
        logits = test_time_augmentation.predict(self._model, images, self._views)
        return self._counts(logits, labels, mask)

    def _counts(
        self, logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor
    ) -> tf.Tensor:
        """Returns the right ones, those right among five, the loss and the count.

        Summed over the real examples of one batch; `[4]` float64.
        """
        columns = (
            in_top(logits, labels, 1),
            in_top(logits, labels, 5),
            losses.cross_entropy(
                logits, labels, self._config.phases[-1].label_smoothing
            ),
            tf.ones_like(labels),
        )
        real_columns = [
            tf.boolean_mask(tf.cast(one, tf.float64), mask) for one in columns
        ]
        return tf.stack([tf.reduce_sum(one) for one in real_columns])

    def _log_probabilities(self, images: tf.Tensor) -> tf.Tensor:
        logits = test_time_augmentation.predict(self._model, images, self._views)
        return tf.nn.log_softmax(logits)


def in_top(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """Returns whether each example's label is among the k highest, `[batch]` bool.

    A logit equal to the label's counts as lower only if its class comes later, so that
    a network with equal logits is not always right. NaN never counts as lower, and a
    label with a non-finite logit is never in.

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
