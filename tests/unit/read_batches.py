"""All batches of a rank, as arrays, for the tests of reading."""

import pathlib
from collections.abc import Sequence

import numpy as np

from data_prep.records import manifest
from resnet.config.config import Config
from resnet.data import batches, record_files
from resnet.data.batches import Batches
from resnet.data.corrupt_records import CorruptRecords
from resnet.data.input_pipeline import Batch, Reading
from resnet.data.record_files import ExampleShard, RecordFiles
from tests.unit.changed_settings import changed


def open_train(folder: pathlib.Path) -> RecordFiles:
    return record_files.open_split(manifest.load(str(folder), "train"), "train")


def arrays(read: Batches) -> list[Batch]:
    return [Batch(*(tensor.numpy() for tensor in batch)) for batch in read]


def reading(
    records: RecordFiles,
    config: Config,
    rank: int = 0,
    num_ranks: int = 1,
    num_parallel_calls: int = 2,
) -> Reading:
    shard = ExampleShard(records, rank, num_ranks, records.num_examples)
    return Reading.of_run(config, shard, num_ranks, num_parallel_calls)


def train(
    records: RecordFiles,
    config: Config,
    rank: int = 0,
    num_ranks: int = 1,
    start_step: int = 0,
    num_parallel_calls: int = 2,
    **changes,
) -> list[Batch]:
    """Returns a rank's micro-batches, with some settings changed."""
    config = changed(config, **changes)
    what = reading(records, config, rank, num_ranks, num_parallel_calls)
    return arrays(batches.train_batches(what, start_step))


def evaluate(
    records: RecordFiles, config: Config, batch_size: int = 4, **changes
) -> list[Batch]:
    config = changed(config, **changes)
    shard = ExampleShard(records, 0, 1, records.num_examples)
    corrupt = CorruptRecords(records, config.on_bad_record)
    return arrays(batches.eval_batches(config, shard, batch_size, 2, corrupt))


def join(parts: Sequence[Batch]) -> Batch:
    return Batch(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def assert_equal(ours: Sequence[Batch], expected: Sequence[Batch]) -> None:
    assert len(ours) == len(expected)
    for batch, other in zip(ours, expected, strict=True):
        for values, expected_values in zip(batch, other, strict=True):
            np.testing.assert_array_equal(values, expected_values)
