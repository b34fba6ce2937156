"""PreciseBN: batch normalization statistics computed over many batches.

The moving averages of training lag behind the weights. PreciseBN computes the
statistics of the current weights, for evaluation.

Source: Wu and Johnson 2021, arXiv:2105.07576, section 3 ("PreciseBN").
"""

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from resnet.config import phases
from resnet.config.config import Config
from resnet.data import batches
from resnet.data.input_pipeline import Batch, Reading
from resnet.data.record_files import ExampleShard
from resnet.optim.train_state import assign_flat
from resnet.runtime.job import Job
from resnet.runtime.preemption import Preempted, stop_requested


class PreciseBN:
    """Replaces the moving means and variances of a network by exact ones.

    The images are those of the first `config.recalibration_batches` batches in the
    order of training, with the augmentation of the phase of the last step. One rank
    computes a batch, of as many images as a rank normalizes together in training. So
    the statistics depend neither on the number of ranks that compute them nor on the
    batch size of evaluation, but with `--shard_by=file` on the files of the nodes.
    """

    def __init__(
        self, model: keras.Model, shard: ExampleShard, config: Config, job: Job
    ) -> None:
        """Prepares the computation; the first `apply` traces its graph.

        The normalization layers of the network all have the momentum
        `config.batch_norm_momentum`; the shard is of the training split.
        """
        self._model = model
        # Each batch is computed by one rank, and not divided among the ranks.
        self._shard = dataclasses.replace(shard, rank=0, num_ranks=1)
        self._config = config
        self._job = job
        averages = {
            variable.path: variable.value for variable in model.non_trainable_variables
        }
        layers = [path[: -len("mean")] for path in averages if path.endswith("_mean")]
        self._means = [averages[f"{layer}mean"] for layer in layers]
        self._variances = [averages[f"{layer}variance"] for layer in layers]
        self._statistics = tf.function(self._statistics_of_batch, autograph=False)

    def apply(self, step: int, num_ranks: int) -> None:
        """Replaces the statistics of the network after a step. Every rank must call it.

        The run had `num_ranks` ranks, which divided its global batches. Raises
        Preempted, on all ranks, if one of them received a stop request, and UserError
        if a record is corrupt and none may be skipped.
        """
        if not self._means:
            return
        communicator, total = self._job.communicator, self._config.recalibration_batches
        first, end = (
            rank * total // communicator.num_ranks
            for rank in (communicator.rank, communicator.rank + 1)
        )
        num_channels = sum(mean.shape.num_elements() for mean in self._means)
        sums = np.zeros((2, num_channels))
        if first < end:
            batches_of_rank = self._batches(step, num_ranks, first)
            for number in range(first, end):
                if stop_requested(self._job.signals):
                    break
                communicator.report_status(
                    f"computing PreciseBN of batch {number + 1} of {total}",
                    is_timed=number > first,  # The first batch may trace the graph.
                )
                images = next(batches_of_rank).images
                mean, variance = self._statistics(images).numpy()
                sums += (mean, variance + mean**2)
        communicator.report_status("summing the statistics", waits_for_others=True)
        if communicator.any_rank(stop_requested(self._job.signals)):
            raise Preempted(
                "stopped while computing PreciseBN statistics",
                "Rerun the same command to start the evaluation over",
            )
        mean, mean_square = communicator.allreduce_sum(sums) / total
        assign_flat(self._means, mean)
        assign_flat(self._variances, np.maximum(mean_square - mean**2, 0))

    def _batches(self, step: int, num_ranks: int, first: int) -> Iterator[Batch]:
        """Returns batches of the phase of the last step done, from number `first` on.

        Each has the size of a rank's micro-batch in the run.
        """
        config = self._config
        phase = phases.at(config.phases, max(step - 1, 0))
        num_parallel_calls = self._job.num_parallel_calls(config)
        phase = dataclasses.replace(phase, num_steps=config.recalibration_batches)
        num_parts = num_ranks * config.accumulation_steps
        reading = dataclasses.replace(
            Reading.of_run(config, self._shard, num_parts, num_parallel_calls),
            phases=(phase,),
            accumulation_steps=1,
            decoded_cache_mb=0,
        )
        return batches.train_batches(reading, first)

    def _statistics_of_batch(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the means and variances of one batch, `[2, channels]` float64.

        The layers update their averages: average - (average - new) * (1 - momentum).
        Starting at 0, the average becomes new * (1 - momentum).
        """
        for average in (*self._means, *self._variances):
            average.assign(tf.zeros_like(average))
        self._model(images, training=True)
        moved = tf.stack(
            [
                tf.concat([tf.reshape(average, [-1]) for average in averages], axis=0)
                for averages in (self._means, self._variances)
            ]
        )
        weight_of_new = np.float32(1 - self._config.batch_norm_momentum)
        return tf.cast(moved, tf.float64) / np.float64(weight_of_new)
