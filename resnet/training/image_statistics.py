"""Initial weights that are computed from the training images."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import keras
import numpy as np

from resnet.config.config import Config
from resnet.data import batches
from resnet.data.corrupt_records import CorruptRecords
from resnet.data.record_files import ExampleShard
from resnet.models.layers import whitening

NUM_IMAGES = 5000  # As in the source of `whitening`.
_BATCH_SIZE = 250


def initializer(
    model: keras.Model, config: Config, shard: ExampleShard, num_parallel_calls: int
) -> Callable[[], None] | None:
    """Returns a function that computes such weights of a network; None if it has none.

    It reads the first 5,000 training images that the rank has, without augmentation,
    and decodes `num_parallel_calls` at the same time.
    """
    layers = whitening.layers_of(model)
    if not layers:
        return None

    def initialize() -> None:
        for layer in layers:
            whitening.whiten(layer, _images(config, shard, num_parallel_calls))

    return initialize


def _images(
    config: Config, shard: ExampleShard, num_parallel_calls: int
) -> Iterator[np.ndarray]:
    """Yields the images in batches, `[batch, size, size, 3]` float32."""
    count = min(shard.records.num_examples, NUM_IMAGES)
    read = batches.eval_batches(
        config,
        dataclasses.replace(shard, rank=0, num_ranks=1),
        _BATCH_SIZE,
        num_parallel_calls,
        CorruptRecords(shard.records, config.on_bad_record),
    )
    for batch in itertools.islice(read, -(-count // _BATCH_SIZE)):
        yield batch.images.numpy()[batch.mask.numpy()]
