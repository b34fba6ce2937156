"""Exact evaluation: each example counts once, for any batch size and any ranks.

Source of the ensemble of a run's phases: Codreanu et al. 2017, arXiv:1711.04291.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resnet.base.text import counted
from resnet.config.config import Config
from resnet.config.phases import PhaseSettings
from resnet.config.recipe import VIEWS
from resnet.data import batches
from resnet.data.corrupt_records import CorruptRecords
from resnet.data.record_files import ExampleShard
from resnet.distributed.communicator import AgreedFailure
from resnet.evaluation import test_time_augmentation, top_classes
from resnet.evaluation.top_classes import TopClasses
from resnet.metrics import accuracy
from resnet.metrics.class_metrics import ByClass, ByLabel
from resnet.optim import losses
from resnet.runtime.job import Job
from resnet.runtime.preemption import Preempted, stop_requested

Report = Callable[[int], None]


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Names what is evaluated, in a failure that all ranks know of in the block."""
    try:
        yield
    except AgreedFailure as error:
        raise AgreedFailure(f"the evaluation of {what} has failed: {error}") from error


@dataclass(frozen=True)
class Result:
    """The result of an evaluation.

    The mean cross-entropy has the loss and the label smoothing of the run. Where the
    probabilities of several views or networks are averaged, it is that of the softmax.
    With several labels an image, `by_label` takes the place of `by_class`, and top-1
    and top-5 are NaN.
    """

    top1: float  # The fraction of examples whose label has the highest logit,
    top5: float  # and one of the five highest.
    loss: float  # The cross-entropy plus the weight penalty.
    cross_entropy: float
    count: int  # Of the examples, without the corrupt records.
    skipped_records: int = 0
    views: str = "center"  # Those of each image that were averaged, of `VIEWS`.
    num_classes: int = 0  # 0 if unknown.
    by_class: ByClass | None = field(default=None, compare=False)
    by_label: ByLabel | None = field(default=None, compare=False)

    @property
    def headline(self) -> dict[str, float]:
        """The metrics that tell most, by what logs call them."""
        if self.by_label is None:
            top5 = {"Top-5 accuracy": self.top5}
            is_certain = accuracy.top5_is_certain(self.num_classes)
            return {"Top-1 accuracy": self.top1, **({} if is_certain else top5)}
        return {
            "Mean average precision": self.by_label.mean_average_precision,
            "Mean ROC-AUC": self.by_label.mean_roc_auc,
        }

    def as_dict(self) -> dict[str, float]:
        """Returns the numbers by name; `skipped_records` only if there are any."""
        numbers = asdict(replace(self, by_class=None, by_label=None))
        for name in ("views", "num_classes", "by_class", "by_label"):
            del numbers[name]
        if not self.skipped_records:
            del numbers["skipped_records"]
        if self.by_class is not None:
            numbers["balanced_accuracy"] = self.by_class.balanced_accuracy
            numbers["macro_f1"] = self.by_class.macro_f1
        if self.by_label is not None:
            del numbers["top1"], numbers["top5"]
            numbers["mean_average_precision"] = self.by_label.mean_average_precision
            numbers["mean_roc_auc"] = self.by_label.mean_roc_auc
        return numbers

    def __str__(self) -> str:
        return (
            self._of_labels()
            + self._of_classes()
            + f", cross-entropy {self.cross_entropy:.4f}"
            + f" on {counted(self.count, 'image')}"
            + (f", views {self.views}" if self.views != "center" else "")
            + (f", {self.skipped_records:,} skipped" if self.skipped_records else "")
        )

    def _of_labels(self) -> str:
        if self.by_label is not None:
            mean = 100 * self.by_label.mean_average_precision
            return f"mAP {mean:.2f} %, mean ROC-AUC {self.by_label.mean_roc_auc:.4f}"
        interval = accuracy.interval_text(self.top1, self.count)
        has_top5 = not accuracy.top5_is_certain(self.num_classes)
        return f"top-1 {100 * self.top1:.2f} % (95 % interval: {interval})" + (
            f", top-5 {100 * self.top5:.2f} %" if has_top5 else ""
        )

    def _of_classes(self) -> str:
        if self.by_class is None or not self.by_class.is_imbalanced:
            return ""
        mean = 100 * self.by_class.balanced_accuracy
        f1 = 100 * self.by_class.macro_f1
        return f", balanced accuracy {mean:.2f} %, macro F1 {f1:.2f} %"


class Ensemble:
    """The summed predictions of several networks for the examples of one rank.

    The sums of probabilities are kept as their logarithms, `[num_examples,
    num_classes]`, so that no probability underflows in float32. The weight penalty of
    each network is part of its loss.
    """

    def __init__(self, num_examples: int, num_classes: int) -> None:
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
        """Adds the predictions of one network for consecutive examples of this rank.

        They are `[batch, num_classes]` float32, with labels and mask `[batch]`, from
        the example with the index `first` on. Those beyond this rank's last example are
        padding and are left out.
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
        """Yields logits, labels and mask of the examples; the last batch is the rest.

        The softmax of the logits, `[batch, num_classes]` float32, is the mean of the
        networks' probabilities.
        """
        num_networks = np.float32(len(self.penalties))
        for first in range(0, len(self._labels), batch_size):
            rows = slice(first, first + batch_size)
            logits = self._log_sums[rows] - np.log(num_networks)
            yield logits, self._labels[rows], self._mask[rows]


class Evaluator:
    """Evaluates one network on one split, any number of times.

    The examples are divided among the ranks in contiguous blocks.
    """

    def __init__(
        self, model: keras.Model, shard: ExampleShard, config: Config, job: Job
    ) -> None:
        """Prepares the graphs, which the first batch traces.

        `eval_batch_size` is the number of images that the networks of all ranks process
        at a time. A stop request is seen between two batches.
        """
        self._model = model
        self._shard = shard
        self._config = config
        self._job = job
        self._views = config.eval_views
        last = config.phases[-1]
        self._no_sums = no_sums(0 if config.multi_label else config.num_classes)
        # The logits of mean probabilities are their logarithms: only a softmax makes
        # probabilities of them again.
        self._mean_phase = replace(last, loss="cross_entropy")
        self._phase = last if self._views == "center" else self._mean_phase
        self._first, self._end = shard.first_example, shard.end_example
        images_of_rank = -(-config.eval_batch_size // job.communicator.num_ranks)
        self._batch_size = min(
            max(images_of_rank // test_time_augmentation.num_views(self._views), 1),
            max(self._end - self._first, 1),
        )
        self._corrupt_records = CorruptRecords(shard.records, config.on_bad_record)
        self._count_batch = tf.function(self._counts_of_images, autograph=False)
        self._rank_batch = tf.function(self._counts_and_top, autograph=False)
        self._predict_batch = tf.function(
            lambda images: tf.nn.log_softmax(self._logits(images)), autograph=False
        )
        self._has_evaluated = False

    @property
    def num_batches(self) -> int:
        """The number of batches that this rank evaluates."""
        return -(-(self._end - self._first) // self._batch_size)

    def evaluate(
        self,
        penalty: float = 0.0,
        report: Report | None = None,
        top: TopClasses | None = None,
    ) -> Result:
        """Returns the result on all examples to every rank; only sums are reduced.

        After each batch `report` gets the number of batches done; `top` gets this
        rank's predictions. Raises Preempted, on all ranks, at a stop request, UserError
        if a record is corrupt and none may be skipped, and RuntimeError if not every
        example was counted once.
        """
        sums = self._no_sums.copy()
        if top is None and self._config.multi_label:
            top = TopClasses()  # For metrics that no sums have.
        for number, (images, labels, mask) in enumerate(self._batches(report)):
            if top is None:
                sums += self._count_batch(images, labels, mask).numpy()
            else:
                counts, *best = self._rank_batch(images, labels, mask)
                sums += counts.numpy()
                self._add_to_top(top, number, labels, mask, best)
        result = self._result_of_all(sums, penalty)
        if top is None or not self._config.multi_label:
            return result
        whole = top.of_all(self._job.communicator)
        by_label = ByLabel.of_scores(whole.scores, whole.labels)
        return replace(result, by_label=by_label)

    def new_ensemble(self) -> Ensemble:
        """Returns an ensemble of no networks yet, for the examples of this rank."""
        return Ensemble(self._end - self._first, self._config.num_classes)

    def add_to(
        self, ensemble: Ensemble, penalty: float = 0.0, report: Report | None = None
    ) -> None:
        """Adds the current network's predictions; the arguments are `evaluate`'s."""
        for number, (images, labels, mask) in enumerate(self._batches(report)):
            ensemble.add(
                number * self._batch_size,
                self._predict_batch(images).numpy(),
                labels.numpy(),
                mask.numpy(),
            )
        ensemble.penalties.append(penalty)

    def evaluate_ensemble(
        self, ensemble: Ensemble, top: TopClasses | None = None
    ) -> Result:
        """Returns the result of the mean predictions of an ensemble, as `evaluate`."""
        sums = self._no_sums.copy()
        ensemble_batches = ensemble.batches(self._batch_size)
        for number, (values, labels, mask) in enumerate(ensemble_batches):
            logits = tf.constant(values)
            sums += sums_of_batch(logits, labels, mask, self._mean_phase).numpy()
            if top is not None:
                best = top_classes.of_logits(logits)
                self._add_to_top(top, number, labels, mask, best)
        return self._result_of_all(sums, ensemble.penalty)

    def _add_to_top(
        self, top: TopClasses, number: int, labels: Any, mask: Any, best: Sequence[Any]
    ) -> None:
        first = self._first + number * self._batch_size
        end = min(first + self._batch_size, self._end)
        classes, probabilities = best
        top.add(
            self._shard.records.number_of_example[first:end],
            np.asarray(labels),
            np.asarray(mask),
            np.asarray(classes),
            np.asarray(probabilities),
        )

    def _batches(
        self, report: Report | None
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        if not self.num_batches:
            return
        eval_batches = batches.eval_batches(
            self._config,
            self._shard,
            self._batch_size,
            self._job.num_parallel_calls(self._config),
            self._corrupt_records,
            VIEWS[self._views].num_crops,
        )
        for number in range(1, self.num_batches + 1):
            if stop_requested(self._job.signals):
                return
            self._job.communicator.report_status(
                f"evaluating batch {number} of {self.num_batches}",
                # The very first batch traces the graph.
                is_timed=number > 1 or self._has_evaluated,
            )
            batch = next(eval_batches)
            yield batch.images, batch.labels, batch.mask
            if report:
                report(number)
        self._has_evaluated = True

    def _result_of_all(self, sums: np.ndarray, penalty: float) -> Result:
        """Returns the result on all ranks' examples to every rank, by their sums."""
        communicator = self._job.communicator
        communicator.report_status(
            "summing the results of the evaluation", waits_for_others=True
        )
        num_skipped = self._corrupt_records.count(self._first, self._end)
        sums = communicator.allreduce_sum(np.append(sums, num_skipped))
        *all_sums, num_skipped = sums
        num_examples = self._shard.num_examples_of_all
        is_whole = all_sums[-1] + num_skipped == num_examples
        if not is_whole and communicator.any_rank(stop_requested(self._job.signals)):
            raise Preempted(
                "stopped during an evaluation",
                "Rerun the same command to start the evaluation over",
            )
        result = result_of(all_sums, int(num_skipped), num_examples, penalty)
        classes = self._config.num_classes
        return replace(result, views=self._views, num_classes=classes)

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        return test_time_augmentation.predict(self._model, images, self._views)

    def _counts_of_images(
        self, images: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor
    ) -> tf.Tensor:
        return sums_of_batch(self._logits(images), labels, mask, self._phase)

    def _counts_and_top(
        self, images: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = self._logits(images)
        sums = sums_of_batch(logits, labels, mask, self._phase)
        return sums, *top_classes.of_logits(logits, self._config.multi_label)


def no_sums(num_classes: int) -> np.ndarray:
    """Returns the sums of `sums_of_batch` over no examples.

    The number of classes is 0 where examples have several labels.
    """
    return np.zeros(len(ByClass._fields) * num_classes + (5 if num_classes else 3))


def sums_of_batch(
    logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor, phase: PhaseSettings
) -> tf.Tensor:
    """Returns sums over the examples of a batch whose mask is True, float64.

    They are the numbers of `ByClass`, each of all classes, then the number of labels in
    the top 1, the number of labels in the top 5, the sum of the cross-entropies by the
    loss and label smoothing of a phase, the number of examples whose logits are not all
    finite, and the number of examples; the last three where examples have several
    labels.
    """
    columns = [
        losses.of_examples(logits, labels, phase),
        ~tf.reduce_all(tf.math.is_finite(logits), axis=1),
        tf.ones_like(mask),
    ]
    is_right, num_classes = None, logits.shape[-1]
    if len(labels.shape) == 1:
        is_right = in_top(logits, labels, 1)
        columns = [is_right, in_top(logits, labels, 5), *columns]
    counted = [tf.boolean_mask(tf.cast(column, tf.float64), mask) for column in columns]
    if is_right is None:
        return tf.stack(list(map(tf.reduce_sum, counted)))
    predicted = tf.argmax(logits, axis=1, output_type=labels.dtype)
    by_class = [
        tf.math.bincount(
            tf.boolean_mask(classes, chosen), None, num_classes, num_classes, tf.float64
        )
        for classes, chosen in (
            (labels, mask & is_right),
            (labels, mask),
            (predicted, mask),
        )
    ]
    return tf.concat([*by_class, list(map(tf.reduce_sum, counted))], axis=0)


def result_of(
    sums: Sequence[float], num_skipped: int, num_examples: int, penalty: float
) -> Result:
    """Returns the result by the sums of `sums_of_batch` over all batches.

    Raises RuntimeError if not every example was counted once, and AgreedFailure if the
    network's outputs are not finite: their loss is NaN, and no class has the highest.
    """
    *of_classes, cross_entropy, num_not_finite, count = sums
    if count + num_skipped != num_examples or not count:
        raise RuntimeError(
            f"evaluation must count all {num_examples} examples once; it counted"
            f" {count:.0f} and skipped {num_skipped:.0f}"
        )
    if num_not_finite:
        raise AgreedFailure(
            "the network's outputs must be finite; they are not for"
            f" {num_not_finite:,.0f} of {count:,.0f} images: the training has diverged,"
            " or the network was damaged. Take an earlier checkpoint of its run."
        )
    *by_class, num_in_top1, num_in_top5 = of_classes or (math.nan, math.nan)
    return Result(
        top1=float(num_in_top1 / count),
        top5=float(num_in_top5 / count),
        loss=float(cross_entropy / count) + penalty,
        cross_entropy=float(cross_entropy / count),
        count=int(count),
        skipped_records=num_skipped,
        by_class=ByClass(*np.reshape(by_class, (3, -1)).astype(np.int64))
        if by_class
        else None,
    )


def in_top(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """Returns whether each label has one of the k highest logits, `[batch]` bool.

    A logit equal to the label's counts as lower only if its class comes later, so that
    a network with equal logits is not always right. NaN never counts as lower, and a
    label with a non-finite logit never has one of the highest.
    """
    own = tf.gather(logits, labels, batch_dims=1)[:, tf.newaxis]
    later = tf.range(tf.shape(logits)[1])[tf.newaxis, :] >= labels[:, tf.newaxis]
    lower = (logits < own) | ((logits == own) & later)
    rank = tf.reduce_sum(tf.cast(~lower, tf.int32), axis=1)
    return (rank < k) & tf.math.is_finite(own[:, 0])
