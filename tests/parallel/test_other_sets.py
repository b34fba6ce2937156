"""Sets that other programs wrote are trained on and evaluated as they are."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from eval import resnet_eval
from resnet import resnet_main
from tests import smallest
from tests.parallel import prepare_tfds

FLAGS = (
    "--recipe=digits",
    smallest.FLAG,
    "--train_batch_size=6",
    "--train_steps=4",
    "--warmup_steps=0",
    "--num_intra_threads=1",
)


@pytest.fixture
def train_and_evaluate(run, tmp_path, index_cache):
    """Returns `train_and_evaluate(data_dir)`, which returns what evaluation found."""

    def train_and_evaluate(data_dir: Path, is_alone: bool) -> dict:
        arguments = (f"--data_dir={data_dir}", f"--model_dir={tmp_path / 'model'}")
        job = run(resnet_main, *FLAGS, *arguments, is_alone=is_alone)
        assert job.stderr.count("indexing the") == 1
        json_file = f"--json_file={tmp_path / 'eval.json'}"
        job = run(resnet_eval, *arguments, json_file, is_alone=is_alone)
        assert "indexing the" not in job.stderr
        return json.loads((tmp_path / "eval.json").read_text())

    return train_and_evaluate


@pytest.fixture
def index_cache(tmp_path, monkeypatch) -> None:
    """Has indexes be kept in a folder of the test, if not beside the records."""
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "cache"))


def test_a_set_that_tensorflow_datasets_prepared(
    lockstep, train_and_evaluate, records, tmp_path
):
    raw, prepared = records.parent / "raw", tmp_path / "tfds"
    lockstep.from_rank_0(lambda: prepare_tfds.prepare(raw, prepared))
    data_dir = prepared / "tiny_pictures" / "1.0.0"
    assert train_and_evaluate(data_dir, is_alone=False)["count"] == 11
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["num_train_examples"] == 24
    assert config["class_names"] == ["class0", "class1", "class2"]


def test_a_set_that_the_tpu_scripts_wrote(
    lockstep, train_and_evaluate, records, tmp_path
):
    data_dir = tmp_path / "tpu"
    lockstep.from_rank_0(lambda: write_as_the_tpu_scripts(records, data_dir))
    assert train_and_evaluate(data_dir, is_alone=True)["count"] == 11
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["class_names"] == ["class0", "class1", "class2"]


def write_as_the_tpu_scripts(records: Path, data_dir: Path) -> None:
    """Writes the images of `records` into two files a split, without a manifest."""
    for split in ("train", "validation"):
        (data_dir / split).mkdir(parents=True)
        raw = sorted((records.parent / "raw" / split).glob("*/*.jpg"))
        raw.sort(key=lambda path: path.name)  # Mixes the classes.
        for shard in range(2):
            name = f"{split}-{shard:05d}-of-00002"
            with tf.io.TFRecordWriter(str(data_dir / split / name)) as writer:
                for path in raw[shard::2]:
                    writer.write(tpu_example(path))


def tpu_example(path: Path) -> bytes:
    """Returns an example as TensorFlow itself serializes it, labels from 1."""
    synset = path.parent.name
    features = {
        "image/encoded": path.read_bytes(),
        "image/format": b"JPEG",
        "image/filename": path.name.encode(),
        "image/class/synset": synset.encode(),
        "image/class/label": int(synset.removeprefix("class")) + 1,
    }
    example = tf.train.Example()
    for name, value in features.items():
        if isinstance(value, bytes):
            example.features.feature[name].bytes_list.value.append(value)
        else:
            example.features.feature[name].int64_list.value.append(value)
    return example.SerializeToString()
