"""Batches that are read one at a time, as workers of asynchronous training do."""

import numpy as np
import pytest
import tensorflow as tf

from data_prep.records import manifest
from resnet.data import input_pipeline, record_files, single_batches
from resnet.data.corrupt_records import Replacements
from resnet.data.input_pipeline import Batch, ToRead
from tests.unit.changed_settings import changed

NUM_EXAMPLES = 13


@pytest.fixture(scope="module")
def records(numbered_set):
    return record_files.open_split(manifest.load(numbered_set, "train"), "train")


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(
        NUM_EXAMPLES, "abcd", seed=5, global_batch_size=6, train_steps=13
    )


def assert_same(batch: Batch, expected: Batch) -> None:
    for one, other in zip(batch, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "changes", [{}, {"mixup": 0.2}, {"augmentation": "random_resized_crop"}]
)
def test_a_micro_batch_is_that_of_the_pipeline(records, config, changes):
    config = changed(config, **changes)
    replacements = Replacements.of(set(), NUM_EXAMPLES)
    expected = input_pipeline.train_batches(
        records,
        config.phases,
        seed=config.seed,
        accumulation_steps=3,
        rank=0,
        num_ranks=1,
        local_batch_size=6,
        start_micro_batch=5,
        num_parallel_calls=2,
        replacements=replacements,
        cache=None,
    )
    what = input_pipeline.to_read(records, config.seed, 3, 0, 1, 6, replacements)
    (phase,) = config.phases

    @tf.function(autograph=False)
    def read(number: tf.Tensor) -> Batch:
        return single_batches.read_batch(what(number), phase, records, 2, 2)

    for number, batch in zip(range(5, 9), expected.as_numpy_iterator(), strict=False):
        assert_same(read(tf.constant(number, tf.int64)), Batch(*batch))


@pytest.mark.parametrize("size", [1, 4, 13])
def test_a_batch_of_evaluation_is_that_of_the_pipeline(records, size):
    settings = {"image_size": 32, "crop": "crop_then_resize", "crop_fraction": 0.875}
    expected = input_pipeline.eval_batches(
        records,
        **settings,
        first_example=0,
        end_example=NUM_EXAMPLES,
        batch_size=size,
        start_batch=0,
        num_parallel_calls=2,
        replacements=Replacements.of(set(), NUM_EXAMPLES),
    )

    @tf.function(autograph=False)
    def read(what: ToRead) -> Batch:
        return single_batches.read_eval_batch(
            what, records, **settings, batch_size=size, num_parallel_calls=2
        )

    masked = 0
    for number, batch in enumerate(expected.as_numpy_iterator()):
        what = single_batches.eval_to_read(records, number * size, size)
        one = read(ToRead(*map(tf.constant, what)))
        assert_same(one, Batch(*batch))
        masked += int(np.count_nonzero(one.mask))
    assert masked == NUM_EXAMPLES
