"""Single batches, read inside a graph, as workers of asynchronous training do."""

import numpy as np
import tensorflow as tf

from resnet.config.phases import Phase
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.data.input_pipeline import (
    Batch,
    ToRead,
    as_written,
    batches_of_phase,
    load_example,
    options,
)
from resnet.data.record_files import RecordFiles


def read_batch(
    what: ToRead,
    phase: Phase,
    records: RecordFiles,
    batch_size: int,
    num_parallel_calls: int,
    normalization: Normalization = preprocessing.IMAGENET,
) -> Batch:
    """Returns one batch; to be called inside a graph.

    Args:
        what: What to read.
        phase: The phase, whose augmentation and mixing the batch has.
        records: The examples.
        batch_size: The number of examples of the batch.
        num_parallel_calls: The number of images that are decoded at the same time.
        normalization: The mean and standard deviation of the images.
    """
    return (
        batches_of_phase(
            tf.data.Dataset.from_tensors(what),
            phase,
            records,
            batch_size,
            num_parallel_calls,
            None,
            normalization,
        )
        .with_options(options(num_parallel_calls))
        .get_single_element()
    )


def eval_to_read(records: RecordFiles, first_example: int, size: int) -> ToRead:
    """Returns what to read for a batch of evaluation, as NumPy arrays.

    A batch that goes beyond the last example is padded with it.

    Args:
        records: The examples.
        first_example: The first example of the batch, in the order of the files.
        size: The number of examples of the batch.
    """
    positions = first_example + np.arange(size)
    examples = np.minimum(positions, records.num_examples - 1)
    paths = np.array(records.paths, object)[records.file_of_example[examples]]
    return ToRead(
        examples,
        positions < records.num_examples,
        np.zeros([size, 2], np.int64),
        np.zeros(size, bool),
        paths,
        records.offset_of_example[examples],
    )


def read_eval_batch(
    what: ToRead,
    records: RecordFiles,
    *,
    image_size: int,
    crop: str,
    crop_fraction: float,
    batch_size: int,
    num_parallel_calls: int,
    normalization: Normalization = preprocessing.IMAGENET,
) -> Batch:
    """Returns one batch of evaluation; to be called inside a graph.

    Args:
        what: What to read; seeds and flips are not used.
        records: The examples.
        image_size: The height and width of the images, in pixels.
        crop: The order of the central crop and the resizing, as
            `preprocessing.eval_image` takes it.
        crop_fraction: The side of the central crop as a fraction of the shorter side.
        batch_size: The number of examples of the batch.
        num_parallel_calls: The number of images that are decoded at the same time.
        normalization: The mean and standard deviation of the images.
    """

    @as_written
    def load(one: ToRead) -> Batch:
        original, label = load_example(
            records, None, one.examples, one.paths, one.offsets
        )
        image = preprocessing.eval_image(
            original, image_size, crop_fraction, crop, normalization
        )
        return Batch(image, label, one.examples, one.mask, tf.ones([]))

    return (
        tf.data.Dataset.from_tensors(what)
        .unbatch()
        .map(load, num_parallel_calls=num_parallel_calls, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .with_options(options(num_parallel_calls))
        .get_single_element()
    )
