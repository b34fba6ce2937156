"""Sets that other programs wrote are trained on and evaluated as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.multiprocess

FLAGS = (
    "--recipe=digits",
    "--train_batch_size=6",
    "--train_steps=4",
    "--warmup_steps=0",
    "--num_intra_threads=1",
)


def train_and_evaluate(
    run_ranks, num_ranks: int, data_dir: Path, tmp_path: Path
) -> dict:
    """Does both, and returns what evaluation found."""
    arguments = (f"--data_dir={data_dir}", f"--model_dir={tmp_path / 'model'}")
    job = run_ranks(num_ranks, "resnet/resnet_main.py", *FLAGS, *arguments)
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("indexing the") == 1
    json_file = f"--json_file={tmp_path / 'eval.json'}"
    job = run_ranks(num_ranks, "eval/resnet_eval.py", *arguments, json_file)
    assert job.returncode == 0, job.stderr
    assert "indexing the" not in job.stderr
    return json.loads((tmp_path / "eval.json").read_text())


@pytest.mark.parametrize(("image_format", "num_ranks"), [("jpeg", 2), ("png", 1)])
def test_a_set_that_tensorflow_datasets_prepared(
    run_ranks, records, tmp_path, image_format, num_ranks
):
    subprocess.run(
        [
            sys.executable,
            "tests/jobs/prepare_tfds.py",
            records.parent / "raw",
            tmp_path / "tfds",
            image_format,
        ],
        check=True,
        capture_output=True,
    )
    data_dir = tmp_path / "tfds" / "tiny_pictures" / "1.0.0"
    assert train_and_evaluate(run_ranks, num_ranks, data_dir, tmp_path)["count"] == 11
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["num_train_examples"] == 24
    assert config["class_names"] == ["class0", "class1", "class2"]


def test_a_set_that_the_tpu_scripts_wrote(run_ranks, records, tmp_path):
    for split in ("train", "validation"):
        (tmp_path / "tpu" / split).mkdir(parents=True)
        raw = sorted((records.parent / "raw" / split).glob("*/*.jpg"))
        raw.sort(key=lambda path: path.name)  # Mixes the classes.
        for shard in range(2):
            name = f"{split}-{shard:05d}-of-00002"
            with tf.io.TFRecordWriter(str(tmp_path / "tpu" / split / name)) as writer:
                for path in raw[shard::2]:
                    writer.write(tpu_example(path))
    assert train_and_evaluate(run_ranks, 1, tmp_path / "tpu", tmp_path)["count"] == 11
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["class_names"] == ["class0", "class1", "class2"]


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
