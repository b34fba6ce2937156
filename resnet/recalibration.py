"""Statistics of batch normalization over a number of batches, for evaluation.

In training, moving averages follow a network that changes; these are of the network as
it is.

Source: Wu and Johnson 2021, arXiv:2105.07576, section 3 ("PreciseBN").
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from resnet import phases
from resnet.config import Config
from resnet.data import batches
from resnet.data.example_shard import ExampleShard
from resnet.distributed import Communicator
from resnet.stop_signals import Preempted, StopSignals
from resnet.train_state import assign_flat


class Recalibration:
    """Replaces the moving means and variances of a network by exact ones.

    The images are those of the first `config.recalibration_batches` batches of the
    training's order, changed as the phase of the last step changes them. A batch is as
    many as a rank normalizes together in training, and is computed by one rank as a
    whole: so the statistics depend neither on how many ranks do it nor on the batch
    size of evaluation.
    """

    def __init__(
        self,
        model: keras.Model,
        share: ExampleShard,
        config: Config,
        communicator: Communicator,
        num_parallel_calls: int,
        signals: StopSignals | None = None,
    ) -> None:
        """Prepares it; the first time makes the graph.

        Args:
            model: The network, all of whose normalizations have the same decay.
            share: This rank's share of the training split.
            config: The run's settings.
            communicator: The ranks.
            num_parallel_calls: Pictures that a rank decodes at the same time.
            signals: What may ask this rank to leave, between two batches.
        """
        self._model = model
        # A batch is one rank's: nobody shares it.
        self._share = dataclasses.replace(share, rank=0, num_ranks=1)
        self._config = config
        self._communicator = communicator
        self._num_parallel_calls = num_parallel_calls
        self._signals = signals
        averages = {one.path: one.value for one in model.non_trainable_variables}
        self._means = [
            average for path, average in averages.items() if path.endswith("_mean")
        ]
        self._variances = [
            averages[path.removesuffix("_mean") + "_variance"]
            for path in averages
            if path.endswith("_mean")
        ]
        self._statistics = tf.function(self._statistics_of_batch)

    def apply(self, step: int, num_ranks: int) -> None:
        """Replaces the averages; each rank must call it.

        Args:
            step: Steps done.
            num_ranks: Ranks that the run had, which divided its global batches.

        Raises:
            Preempted: On all ranks, if one of them was asked to leave.
            UserError: If a record is damaged and none may be.
        """
        if not self._means:
            return
        communicator, total = self._communicator, self._config.recalibration_batches
        first, end = (
            rank * total // communicator.num_ranks
            for rank in (communicator.rank, communicator.rank + 1)
        )
        num_channels = sum(one.shape.num_elements() for one in self._means)
        sums = np.zeros((2, num_channels))
        if first < end:
            of_rank = batches.training(
                self._settings(step, num_ranks),
                self._share,
                1,
                first,
                self._num_parallel_calls,
            )
            for number in range(first, end):
                if self._wants_to_leave():
                    break
                communicator.report_status(
                    f"recalibrating with batch {number + 1} of {total}",
                    is_timed=number > first,  # That one may make the graph.
                )
                mean, variance = self._statistics(next(of_rank).images).numpy()
                sums += (mean, variance + mean**2)
        communicator.report_status("adding up the statistics", waits_for_others=True)
        if any(communicator.gather(self._wants_to_leave())):
            raise Preempted(
                "stopped while recomputing batch normalization statistics",
                "Rerun the same command to start the evaluation over",
            )
        mean, mean_square = communicator.sum(sums) / total
        assign_flat(self._means, mean)
        assign_flat(self._variances, np.maximum(mean_square - mean**2, 0))

    def _wants_to_leave(self) -> bool:
        return self._signals is not None and bool(self._signals.seen)

    def _settings(self, step: int, num_ranks: int) -> Config:
        """Returns settings whose global batches are the batches of one rank.

        The last step done is of the phase that trained the network, also where it was
        the phase's last.
        """
        config = self._config
        phase = phases.at(config.phases, max(step - 1, 0))
        parts = num_ranks * config.accumulation_steps
        return dataclasses.replace(
            config,
            global_batch_size=config.global_batch_size // parts,
            accumulation_steps=1,
            phases=(
                dataclasses.replace(phase, num_steps=config.recalibration_batches),
            ),
            decoded_cache_mb=0,
        )

    def _statistics_of_batch(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the means and variances of one batch, `[2, channels]` float64.

        The layers move their averages towards those of the batch: average = average -
        (average - new) * (1 - decay). From an average of 0 this leaves new * (1 -
        decay).
        """
        for average in (*self._means, *self._variances):
            average.assign(tf.zeros_like(average))
        self._model(images, training=True)
        moved = tf.stack(
            [
                tf.concat([tf.reshape(one, [-1]) for one in averages], axis=0)
                for averages in (self._means, self._variances)
            ]
        )
        share_of_new = np.float32(1 - self._config.batch_norm_decay)
        return tf.cast(moved, tf.float64) / np.float64(share_of_new)
