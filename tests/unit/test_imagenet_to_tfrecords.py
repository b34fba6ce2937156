import dataclasses
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep import manifest, tfrecord_format

REPOSITORY = pathlib.Path(tfrecord_format.__file__).resolve().parents[1]
PROGRAM = REPOSITORY / "data_prep" / "imagenet_to_tfrecords.py"
CLASSES = ("n01", "n02", "n03")


def picture(seed: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 7 + seed, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def write(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def raw(tmp_path) -> pathlib.Path:
    """A raw folder with 18 train pictures of 3 classes and flat validation ones."""
    root = tmp_path / "raw"
    for label, name in enumerate(CLASSES):
        for index in range(6):
            data = picture(10 * label + index)
            write(root / "train" / name / f"{name}_{index}.JPEG", data)
    write(root / "train" / "n01" / "n01_0.JPEG", picture(0, "PNG"))
    write(root / "train" / "n02" / "n02_3.JPEG", picture(13, mode="CMYK"))
    write(root / "train" / "n02" / "notes.txt", b"")
    for index in range(4):
        write(root / "validation" / f"v{index}.JPEG", picture(30 + index))
    (root / "synset_labels.txt").write_text("n03\nn01\nn03\nn02\n")
    return root


def arguments(raw, records, *more: str) -> list[str]:
    return [f"--raw_data_dir={raw}", f"--local_scratch_dir={records}", *more]


def convert(
    raw, records, *more: str, program: tuple[str, ...] = (str(PROGRAM),), **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *arguments(raw, records, *more)],
        cwd=options.pop("cwd", "/"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert done.stdout == ""


def content(root: pathlib.Path) -> dict[str, bytes]:
    """Each file's bytes, hidden ones included."""
    return {
        os.path.relpath(os.path.join(folder, name), root): pathlib.Path(
            folder, name
        ).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def read_examples(root: pathlib.Path, split: manifest.Split) -> list[dict]:
    """Reads a split with TensorFlow and checks that the offsets lead to the records."""
    manifest.check_files(root, split)
    paths = [str(root / shard.path) for shard in split.shards]
    records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    offsets = manifest.read_offsets(root, split)
    assert len(records) == len(offsets) == split.num_examples
    examples = []
    for record, offset, shard in zip(
        records, offsets, manifest.shard_of_example(split), strict=True
    ):
        framed = tfrecord_format.frame_record(record)
        assert contents[shard][offset : offset + len(framed)] == framed
        feature = tf.train.Example.FromString(record).features.feature
        examples.append(
            {
                "file": feature["image/filename"].bytes_list.value[0].decode(),
                "class": feature["image/class/synset"].bytes_list.value[0].decode(),
                "label": feature["image/class/label"].int64_list.value[0],
                "encoded": feature["image/encoded"].bytes_list.value[0],
                "size": (
                    feature["image/width"].int64_list.value[0],
                    feature["image/height"].int64_list.value[0],
                ),
            }
        )
    return examples


def test_a_raw_folder_becomes_records_that_tensorflow_reads(raw, tmp_path):
    records = tmp_path / "records"
    more = ("--train_shards=4", "--num_processes=1")
    done = convert(raw, records, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: 18 images in 4 shards" in done.stdout
    assert "validation: 4 images in 1 shards" in done.stdout
    assert "2 images turned into RGB JPEG, 1 files ignored" in done.stdout
    assert (
        f"python resnet/resnet_main.py --recipe=imagenette --data_dir={records}"
        in done.stdout
    )
    assert done.stderr.splitlines()[-1].startswith("100 %: 22 of 22 images")

    loaded, root = manifest.load(str(records), "train")
    assert loaded.class_names == CLASSES
    assert loaded.source["num_converted_images"] == 2
    train = loaded.splits["train"]
    assert [shard.num_records for shard in train.shards] == [5, 5, 4, 4]
    assert train.shards[3].path == "train/train-00003-of-00004"
    assert train.label_counts == (6, 6, 6)

    examples = read_examples(root, train)
    assert sorted(e["file"] for e in examples) == [
        f"{name}_{index}.JPEG" for name in CLASSES for index in range(6)
    ]
    for example in examples:
        assert example["class"] == example["file"][:3]
        assert example["label"] == 1 + CLASSES.index(example["class"])
        source = (raw / "train" / example["class"] / example["file"]).read_bytes()
        is_converted = example["file"] in ("n01_0.JPEG", "n02_3.JPEG")
        assert (example["encoded"] != source) == is_converted
        decoded = Image.open(io.BytesIO(example["encoded"]))
        assert (decoded.format, decoded.mode) == ("JPEG", "RGB")
        assert decoded.size == example["size"]

    validation = loaded.splits["validation"]
    assert validation.label_counts == (1, 1, 2)
    found = {e["file"]: e["label"] for e in read_examples(root, validation)}
    assert found == {"v0.JPEG": 3, "v1.JPEG": 1, "v2.JPEG": 3, "v3.JPEG": 2}


def test_the_number_of_processes_and_the_way_to_start_change_no_byte(raw, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    more = ("--train_shards=5", "--validation_shards=2")
    assert convert(raw, one, *more, "--num_processes=1").returncode == 0
    module = ("-m", "data_prep.imagenet_to_tfrecords")
    options = {"program": module, "cwd": REPOSITORY}
    assert convert(raw, two, *more, "--num_processes=2", **options).returncode == 0
    assert len(content(one)) == 5 + 2 + 2 + 1
    assert content(one) == content(two)


@pytest.mark.parametrize("folder", ["validation", "val", "test"])
def test_validation_class_folders_are_read_under_every_name(tmp_path, folder):
    raw, records = tmp_path / "raw", tmp_path / "records"
    write(raw / "train" / "n01" / "a.JPEG", picture(0))
    write(raw / "train" / "n02" / "b.JPEG", picture(1))
    write(raw / folder / "n02" / "c.JPEG", picture(2))
    assert convert(raw, records, "--num_processes=1").returncode == 0
    loaded, root = manifest.load(str(records / "validation"), "validation")
    (example,) = read_examples(root, loaded.splits["validation"])
    assert (example["file"], example["label"]) == ("c.JPEG", 2)
    assert example["encoded"] == picture(2)


def test_bad_flags_are_refused(raw, tmp_path):
    records = tmp_path / "records"
    assert_refused(convert("", records), "--raw_data_dir is needed")
    assert_refused(convert(raw, ""), "--local_scratch_dir is needed")
    assert_refused(convert(raw, records, "--num_processes=-1"), "num_processes")
    too_many = convert(raw, records, "--train_shards=19")
    assert_refused(too_many, "at most the number of train pictures, 18; got 19")
    assert_refused(convert(tmp_path / "absent", records), "absent is none")
    assert not records.exists()


def test_a_finished_set_is_not_written_over(raw, tmp_path):
    records = tmp_path / "records"
    write(records / "manifest.json", b"{}")
    assert_refused(convert(raw, records), "holds a finished set already")
    assert content(records) == {"manifest.json": b"{}"}


def test_a_folder_with_other_shards_is_refused(raw, tmp_path):
    write(tmp_path / "records" / "train" / "train-00000-of-00007", b"")
    assert_refused(convert(raw, tmp_path / "records"), "'train-00000-of-00007'")


def test_a_place_that_cannot_be_written_is_named(raw, tmp_path):
    write(tmp_path / "file", b"")
    assert_refused(convert(raw, tmp_path / "file" / "records"), "Not a directory")


def test_a_bad_picture_is_named_and_nothing_is_called_finished(raw, tmp_path):
    write(raw / "train" / "n02" / "n02_1.JPEG", picture(11)[:-9])
    records = tmp_path / "records"
    done = convert(raw, records, "--num_processes=1")
    assert_refused(done, "n02_1.JPEG must be a picture")
    assert not any("partial" in name or "json" in name for name in content(records))


def test_a_second_start_finishes_what_a_killed_one_left(raw, tmp_path):
    records = tmp_path / "records"
    write(records / ".manifest.json.01234567.partial", b"{")
    write(records / "train" / ".train-00000-of-00001.01234567.partial", b"x")
    write(records / "train" / "train-00000-of-00001", b"old")
    done = convert(raw, records, "--num_processes=1")
    assert done.returncode == 0, done.stderr
    loaded, root = manifest.load(str(records), "train")
    assert len(read_examples(root, loaded.splits["train"])) == 18
    assert not any("partial" in name for name in content(records))


def test_the_manifest_says_what_made_the_set(raw, tmp_path):
    records = tmp_path / "records"
    assert convert(raw, records, "--shuffle_seed=5").returncode == 0
    source = json.loads((records / "manifest.json").read_text())["source"]
    assert source["raw_data_dir"] == str(raw)
    assert source["shuffle_seed"] == 5


@dataclasses.dataclass
class Running:
    """A conversion whose only worker is stopped, so that it goes on for ever."""

    process: subprocess.Popen[str]
    worker: int


def worker_of(pid: int) -> int | None:
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.fixture(params=["starting", "writing"])
def running(request, raw, tmp_path):
    """Stops the worker of a conversion when it is `starting` or `writing`."""
    for index in range(3000):
        os.link(raw / "train/n01/n01_1.JPEG", raw / f"train/n01/again{index}.JPEG")
    process = subprocess.Popen(
        [
            sys.executable,
            PROGRAM,
            *arguments(raw, tmp_path / "records", "--num_processes=1"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    worker = None
    # Its second thread is the one that waits for its parent's end.
    while worker is None or (request.param == "writing" and num_threads(worker) < 2):
        assert time.monotonic() < deadline
        time.sleep(0.001)
        worker = worker_of(process.pid)
    os.kill(worker, signal.SIGSTOP)
    yield Running(process, worker)
    process.kill()
    process.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_program_with_a_sentence(running, tmp_path, number):
    running.process.send_signal(number)
    stdout, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 130
    assert stderr.endswith("error: interrupted, the set is not complete\n")
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not any("partial" in name for name in content(tmp_path / "records"))
    assert not pathlib.Path(f"/proc/{running.worker}").exists()


def test_a_dead_worker_ends_the_program_with_a_sentence(running, tmp_path):
    os.kill(running.worker, signal.SIGKILL)
    _, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 2
    assert "error: a worker process died" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert not (tmp_path / "records" / "manifest.json").exists()


def test_the_worker_of_a_killed_program_ends(running):
    running.process.kill()
    running.process.wait()
    os.kill(running.worker, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while pathlib.Path(f"/proc/{running.worker}/exe").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
