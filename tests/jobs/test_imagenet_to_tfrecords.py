import io
import json
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from data_prep.records import manifest, tfrecord
from data_prep.sources import raw_data
from tests.converter_program import (
    CLASSES,
    PROGRAM,
    REPOSITORY,
    arguments,
    assert_refused,
    content,
    convert,
    encoded_image,
    write,
)


def read_examples(records: pathlib.Path, name: str) -> list[dict]:
    """Reads a split with TensorFlow and checks that the offsets lead to the records."""
    record_set = manifest.load(str(records), name)
    manifest.check_files(record_set, name)
    split = record_set.manifest.splits[name]
    paths = [str(record_set.records_dir / shard.path) for shard in split.shards]
    records_data = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    offsets = manifest.read_offsets(record_set, split)
    assert len(records_data) == len(offsets) == split.num_examples
    examples = []
    for record, offset, shard in zip(
        records_data, offsets, manifest.shard_of_example(split), strict=True
    ):
        framed = tfrecord.frame_record(record)
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
    assert "train: 18 images, 4 shards\n" in done.stdout
    assert "validation: 4 images, 1 shard\n" in done.stdout
    assert "re-encoded as RGB JPEG: 2 (1 CMYK JPEG, 1 PNG)\n" in done.stdout
    assert "ignored files (not images): 1\n" in done.stdout
    assert (
        f"python resnet/resnet_main.py --recipe=imagenette --data_dir={records}"
        in done.stdout
    )
    assert done.stderr.splitlines()[-1].startswith("100 %: 22 of 22 images")

    loaded = manifest.load(str(records), "train").manifest
    assert loaded.class_names == CLASSES
    assert loaded.source["converted_images"] == {"CMYK JPEG": 1, "PNG": 1}
    train = loaded.splits["train"]
    assert [shard.num_records for shard in train.shards] == [5, 5, 4, 4]
    assert train.shards[3].path == "train/train-00003-of-00004"
    assert train.label_counts == (6, 6, 6)

    examples = read_examples(records, "train")
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
    examples = read_examples(records, "validation")
    found = {e["file"]: e["label"] for e in examples}
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
    write(raw / "train" / "n01" / "a.JPEG", encoded_image(0))
    write(raw / "train" / "n02" / "b.JPEG", encoded_image(1))
    write(raw / folder / "n02" / "c.JPEG", encoded_image(2))
    assert convert(raw, records, "--num_processes=1").returncode == 0
    (example,) = read_examples(records / "validation", "validation")
    assert (example["file"], example["label"]) == ("c.JPEG", 2)
    assert example["encoded"] == encoded_image(2)


def test_bad_flags_are_refused(raw, tmp_path):
    records = tmp_path / "records"
    assert_refused(convert("", records), "exactly one of --raw_data_dir and")
    assert_refused(
        convert(raw, records, "--tfds_name=x"), "exactly one of --raw_data_dir and"
    )
    assert_refused(convert(raw, records, "--tfds_data_dir=x"), "requires --tfds_name")
    assert_refused(convert(raw, ""), "--local_scratch_dir is required")
    assert_refused(convert(raw, records, "--num_processes=-1"), "num_processes")
    assert_refused(convert(raw, records, "--on_bad_image=ask"), "fail|skip")
    too_many = convert(raw, records, "--train_shards=19")
    assert_refused(too_many, "at most 18, the number of train images; got 19")
    assert_refused(convert(tmp_path / "absent", records), "absent is not a folder")
    assert not records.exists()


def test_a_finished_set_is_not_written_over(raw, tmp_path):
    records = tmp_path / "records"
    write(records / "manifest.json", b"{}")
    assert_refused(convert(raw, records), "already contains a finished record set")
    assert content(records) == {"manifest.json": b"{}"}


def test_a_set_that_another_conversion_finished_meanwhile_is_not_written_over(
    raw, tmp_path
):
    # The second one waits, behind its first look, until the first one has finished.
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import pathlib, sys, time\n"
        f"sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from data_prep import imagenet_to_tfrecords\n"
        "from data_prep.conversion import output_folder\n"
        "check = output_folder.check_space\n"
        "def wait(plan):\n"
        "    check(plan)\n"
        "    pathlib.Path(__file__).with_name('waits').touch()\n"
        "    while not pathlib.Path(__file__).with_name('first ended').exists():\n"
        "        time.sleep(0.01)\n"
        "output_folder.check_space = wait\n"
        "if __name__ == '__main__':\n"
        "    imagenet_to_tfrecords.run()\n"
    )
    records = tmp_path / "records"
    second = subprocess.Popen(
        [sys.executable, slow, *arguments(raw, records, "--shuffle_seed=5")],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "waits").exists():
        assert second.poll() is None
        time.sleep(0.01)
    assert convert(raw, records).returncode == 0
    (tmp_path / "first ended").touch()
    finished = content(records)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2
    assert "already contains a finished record set" in errors
    assert content(records) == finished


def test_records_among_the_images_are_refused(raw):
    for folder in (raw / "train", raw / "train" / "n01", raw / "validation" / "new"):
        before = content(raw)
        assert_refused(convert(raw, folder), "must be outside of the source folder")
        assert content(raw) == before
    assert convert(raw, raw / "records").returncode == 0


def test_a_folder_with_other_shards_is_refused(raw, tmp_path):
    write(tmp_path / "records" / "train" / "train-00000-of-00007", b"")
    assert_refused(convert(raw, tmp_path / "records"), "'train-00000-of-00007'")


def test_a_place_that_cannot_be_written_is_named(raw, tmp_path):
    write(tmp_path / "file", b"")
    assert_refused(convert(raw, tmp_path / "file" / "records"), "Not a directory")


@pytest.fixture
def bad(raw) -> pathlib.Path:
    """An image of `raw` that is cut short."""
    path = raw / "train" / "n02" / "n02_1.JPEG"
    path.write_bytes(encoded_image(11)[:-9])
    return path


def test_a_bad_image_is_named_and_nothing_is_called_finished(raw, bad, tmp_path):
    records = tmp_path / "records"
    done = convert(raw, records, "--num_processes=1")
    assert_refused(done, f"{bad} can't be decoded as an image")
    assert "--on_bad_image=skip" in done.stderr
    assert not any("partial" in name for name in content(records))
    assert not (records / "manifest.json").exists()


def test_bad_images_can_be_left_out_also_after_one_ended_a_run(raw, bad, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    more = ("--train_shards=9", "--num_processes=1")
    skip = "--on_bad_image=skip"
    done = convert(raw, one, *more, skip)
    assert done.returncode == 0, done.stderr
    assert "train: 17 images, 9 shards\n" in done.stdout
    assert "skipped images (can't be decoded): 1," in done.stdout
    train = manifest.load(str(one), "train").manifest.splits["train"]
    assert train.label_counts == (6, 5, 6)
    (skipped,) = train.skipped_images
    assert skipped.name == str(bad)
    assert "can't be decoded as an image" in skipped.reason
    files = [example["file"] for example in read_examples(one, "train")]
    assert len(files) == 17
    assert bad.name not in files

    assert convert(raw, two, *more).returncode == 2
    assert convert(raw, two, *more, skip).returncode == 0
    assert content(one) == content(two)


def test_a_shard_without_an_image_left_is_refused(raw, bad, tmp_path):
    more = ("--on_bad_image=skip", "--train_shards=18", "--num_processes=1")
    done = convert(raw, tmp_path / "records", *more)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: none of the 1 images of shard train/")
    assert str(bad) in last


def test_an_image_that_cannot_be_read_always_ends_the_conversion(raw, tmp_path):
    (raw / "train" / "n02" / "n02_1.JPEG").unlink()
    (raw / "train" / "n02" / "n02_1.JPEG").symlink_to("/proc/self/mem")
    more = ("--on_bad_image=skip", "--num_processes=1")
    done = convert(raw, tmp_path / "records", *more)
    assert_refused(done, "Input/output error")


def test_images_are_turned_where_that_is_asked_for(raw, tmp_path):
    turned = Image.new("RGB", (24, 8), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # Its first row is the right side of what was meant.
    turned.save(raw / "train" / "n01" / "n01_1.JPEG", exif=exif)
    plain, asked = tmp_path / "plain", tmp_path / "asked"
    assert convert(raw, plain).returncode == 0
    assert convert(raw, asked, "--apply_exif_orientation").returncode == 0
    for records, size, is_applied in [(plain, (24, 8), False), (asked, (8, 24), True)]:
        source = manifest.load(str(records), "train").manifest.source
        assert source["apply_exif_orientation"] is is_applied
        assert sum(source["converted_images"].values()) == 2 + is_applied
        sizes = {e["file"]: e["size"] for e in read_examples(records, "train")}
        assert sizes["n01_1.JPEG"] == size


def test_a_set_that_does_not_fit_is_refused_before_anything_is_written(raw, tmp_path):
    with open(raw / "train" / "n01" / "n01_1.JPEG", "wb") as file:
        file.truncate(2 * shutil.disk_usage(tmp_path).free)  # Takes no room itself.
    assert_refused(convert(raw, tmp_path / "records"), "too little); free some space")
    assert not (tmp_path / "records").exists()


def test_warnings_of_the_source_are_said(raw, tmp_path):
    done = convert(raw, tmp_path / "records")
    warnings = [
        line for line in done.stderr.splitlines() if line.startswith("warning: ")
    ]
    assert len(warnings) == len(raw_data.open_raw_data(raw).warnings)


def test_a_second_start_finishes_what_a_killed_one_left(raw, tmp_path):
    records = tmp_path / "records"
    write(records / ".manifest.json.01234567.partial", b"{")
    write(records / "train" / ".train-00000-of-00001.01234567.partial", b"x")
    write(records / "train" / "train-00000-of-00001", b"old")
    done = convert(raw, records, "--num_processes=1")
    assert done.returncode == 0, done.stderr
    assert len(read_examples(records, "train")) == 18
    assert not any("partial" in name for name in content(records))


def test_an_unfinished_set_of_other_settings_is_refused(raw, bad, tmp_path):
    records = tmp_path / "records"
    more = ("--train_shards=9", "--num_processes=1")
    assert convert(raw, records, *more).returncode == 2
    assert list((records / ".conversion").glob("train-*.json"))
    before = content(records)
    other = convert(raw, records, *more, "--shuffle_seed=5")
    assert_refused(other, "with other options: shuffle_seed is 5")
    assert_refused(convert(raw, records), "train_shards is 1, was 9")
    assert content(records) == before


def test_what_a_kill_at_the_very_end_left_is_removed(raw, tmp_path):
    records = tmp_path / "records"
    assert convert(raw, records).returncode == 0
    before = content(records)
    write(records / ".conversion" / "plan.json", b"{}")
    assert_refused(convert(raw, records), "already contains a finished record set")
    assert content(records) == before


def prepare_tfds(data_dir: pathlib.Path) -> None:
    """Prepares a data set "tiny" of 6 train and 3 test images of cats and dogs."""

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = data_dir  # Or it looks for the package of this test.

        def _info(self):
            features = {
                "image": tfds.features.Image(encoding_format="png"),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {
                "train": self._generate_examples(range(6)),
                "test": self._generate_examples(range(6, 9)),
            }

        def _generate_examples(self, indices):
            for index in indices:
                pixels = np.full((8, 8, 3), 20 * index, np.uint8)
                yield index, {"image": pixels, "label": index % 2}

    Tiny(data_dir=data_dir).download_and_prepare(file_format="tfrecord")


def test_a_data_set_of_tensorflow_datasets_is_converted(tmp_path):
    prepare_tfds(tmp_path / "tfds")
    records = tmp_path / "records"
    done = subprocess.run(
        [
            sys.executable,
            PROGRAM,
            "--tfds_name=tiny",
            f"--tfds_data_dir={tmp_path / 'tfds'}",
            f"--local_scratch_dir={records}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "re-encoded as RGB JPEG: 9 (9 PNG)\n" in done.stdout
    record_manifest = manifest.load(str(records), "train").manifest
    assert record_manifest.class_names == ("cat", "dog")
    assert record_manifest.source["tfds_name"] == "tiny/1.0.0"
    for split, expected in {"train": range(6), "validation": range(6, 9)}.items():
        found = {}
        for example in read_examples(records, split):
            pixels = np.asarray(Image.open(io.BytesIO(example["encoded"])))
            found[round(pixels.mean() / 20)] = (example["class"], example["label"])
        assert found == {i: [("cat", 1), ("dog", 2)][i % 2] for i in expected}


def test_the_manifest_says_what_made_the_set(raw, tmp_path):
    records = tmp_path / "records"
    assert convert(raw, records, "--shuffle_seed=5").returncode == 0
    source = json.loads((records / "manifest.json").read_text())["source"]
    assert source["raw_data_dir"] == str(raw)
    assert source["shuffle_seed"] == 5
