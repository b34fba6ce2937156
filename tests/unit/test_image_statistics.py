"""A run whose first layer is computed from its training images, and Lookahead."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from resnet.checkpoint import tensors
from resnet.data.record_files import ExampleShard, RecordFiles
from resnet.models import airbench
from resnet.models.layers import whitening
from resnet.optim.train_state import build_model
from resnet.training import image_statistics
from tests.unit import small_training
from tests.unit.small_training import (
    CLASSES,
    NUM_EXAMPLES,
    SETTINGS,
    assert_same_weights,
    write_records,
)

LOOKAHEAD = {"lookahead_every": 2, "lookahead_decay": 0.5, "lookahead_power": 1.0}
KERNEL = "model/whitening/kernel"


@pytest.fixture(scope="module")
def records(tmp_path_factory, write_tiny_set) -> RecordFiles:
    return write_records(tmp_path_factory.mktemp("records"), write_tiny_set)


@pytest.fixture(scope="module")
def run(make_config, records) -> Callable[..., None]:
    """A function that trains a narrow network in a folder."""
    given = {"model": "airbench94", "checkpoint_every": "3steps", **LOOKAHEAD}
    train = small_training.runner(make_config, records)

    def run_narrow(model_dir, **changes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(airbench.BLOCK_FILTERS, "airbench94", (8,))
            train(model_dir, **{**given, **changes})

    return run_narrow


def test_a_stopped_run_ends_with_the_weights_of_a_whole_one(run, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole)
    run(parts, stop_after_steps=3)
    stopped = tensors.load(parts, 3).tensors
    # It stopped between two exchanges, so both weights had to be saved.
    own, slow = (stopped[f"{kind}/classifier/kernel"] for kind in ("model", "slow"))
    assert own.shape == slow.shape
    assert not np.array_equal(own, slow)
    run(parts)
    assert_same_weights(parts, whole, 6)
    saved = tensors.load(whole, 6).tensors
    # The kernel is not trained, and the run ends with the slow weights.
    np.testing.assert_array_equal(saved[KERNEL], stopped[KERNEL])
    for name, value in saved.items():
        if name.startswith("slow/"):
            own = saved[name.replace("slow/", "model/")]
            np.testing.assert_array_equal(own, value, err_msg=name)


def test_the_kernel_whitens_the_images_as_they_are_evaluated(make_config, records):
    config = make_config(NUM_EXAMPLES, CLASSES, **{**SETTINGS, "model": "airbench94"})
    config = dataclasses.replace(config, eval_crop_fraction=1.0)
    model = build_model(config)
    # As rank 1 of two, which still reads all images of its records.
    shard = ExampleShard(records, 1, 2, NUM_EXAMPLES)
    initialize = image_statistics.initializer(model, config, shard, 1)
    assert initialize is not None
    initialize()
    pixels = np.stack([decoded(records, i) for i in range(NUM_EXAMPLES)])
    images = ((pixels / 255 - config.channel_mean) / config.channel_stddev).astype(
        np.float32
    )
    expected = whitening.kernel_of(whitening.second_moments([images], 2), 2)
    (layer,) = whitening.layers_of(model)
    # Filters of small eigenvalues are large, up to 45.
    np.testing.assert_allclose(layer.kernel, expected, rtol=1e-3, atol=1e-3)


def test_only_the_first_images_count(make_config, records, monkeypatch):
    monkeypatch.setattr(image_statistics, "NUM_IMAGES", 6)
    monkeypatch.setattr(image_statistics, "_BATCH_SIZE", 2)
    config = make_config(NUM_EXAMPLES, CLASSES, **{**SETTINGS, "model": "airbench94"})
    shard = ExampleShard(records, 0, 1, NUM_EXAMPLES)
    given = []
    monkeypatch.setattr(whitening, "whiten", lambda _, images: given.extend(images))
    initialize = image_statistics.initializer(build_model(config), config, shard, 1)
    assert initialize is not None
    initialize()
    assert [len(images) for images in given] == [2, 2, 2]


def decoded(records: RecordFiles, example: int) -> np.ndarray:
    path = records.paths[records.file_of_example[example]]
    with open(path, "rb") as file:
        file.seek(int(records.index["offset"][example]))
        length = int.from_bytes(file.read(8), "little")
        file.read(4)
        record = file.read(length)
    parsed = tf.train.Example.FromString(record).features.feature
    encoded = parsed[records.image_key].bytes_list.value[0]
    return tf.io.decode_jpeg(encoded, channels=3).numpy()
