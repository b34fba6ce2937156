"""The converter from its flags on, in this process and without worker processes."""

import io
import os
import pathlib
import re
import shlex
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from data_prep import imagenet_to_tfrecords
from data_prep.conversion import output_folder
from data_prep.conversion.plan import Plan
from data_prep.records import indexing, manifest, verification
from resnet.data import record_files
from tests.converter_program import content, convert_here, encoded_image, write
from tests.in_process import assert_refused, succeeded
from tests.record_reader import read_examples


def test_bad_flags_are_refused(raw, tmp_path):
    records, absent = tmp_path / "records", tmp_path / "absent"
    for source, folder, flag, message in (
        ("", records, "--num_processes=1", "--raw_data_dir is required"),
        (raw, records, "--tfds_name=x", "exactly one of --raw_data_dir and"),
        (raw, records, "--tfds_data_dir=x", "requires --tfds_name"),
        (raw, records, "--tfds_label=x", "requires --tfds_name"),
        (raw, records, "--validation_split=test", "must name a split of"),
        (raw, records, "--labels=absent.csv", "absent.csv failed"),
        ("", records, "--validation_split=x", "--raw_data_dir is required"),
        (raw, "", "--num_processes=1", "--local_scratch_dir is required"),
        (raw, records, "--num_processes=-1", "num_processes"),
        (raw, records, "--on_bad_image=ask", "one of fail, skip"),
        (raw, records, "--train_shards=19", "at most 18, the number of train images"),
        (absent, records, "--num_processes=1", "absent does not exist"),
    ):
        assert_refused(convert_here(source, folder, flag), message)
    assert not records.exists()


def test_the_source_is_no_place_for_the_records(raw, tmp_path):
    (tmp_path / "link").symlink_to(raw)
    before = content(raw)
    for folder, message in (
        (raw / "train", "must be outside of the source folder"),
        (raw / "train" / "n01", "must be outside of the source folder"),
        (raw / "validation" / "new", "must be outside of the source folder"),
        (raw, "the output folder must be another one than the source"),
        (tmp_path / "link", "the output folder must be another one than the source"),
    ):
        assert_refused(convert_here(raw, folder), message)
        assert content(raw) == before
    assert convert_here(raw, raw / "records").returncode == 0


@pytest.mark.parametrize("name", [b"a\nb", b"a\rb", b"\xff"])
def test_a_class_name_that_no_label_file_can_hold_is_refused(tmp_path, name):
    write(tmp_path / "raw" / "train" / os.fsdecode(name) / "1.jpg", encoded_image(0))
    done = convert_here(tmp_path / "raw", tmp_path / "records")
    assert_refused(done, "a class name must be one line of UTF-8")
    assert not (tmp_path / "records").exists()


def test_a_path_that_the_system_refuses_is_a_users_mistake(raw, tmp_path):
    write(tmp_path / "file", b"")
    assert_refused(convert_here(raw, tmp_path / "file" / "records"), "Not a directory")
    long = tmp_path / ("n" * 300)
    assert_refused(convert_here(raw, long), "File name too long")
    assert_refused(convert_here(long, tmp_path / "records"), "File name too long")


def test_what_ctrl_c_ends_with_has_a_line_of_its_own(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", terminal := Terminal("^C"))
    monkeypatch.setattr("signal.signal", Mock())
    monkeypatch.setattr("resnet.base.cli.parse", Mock(side_effect=KeyboardInterrupt))
    terminal.seek(0, io.SEEK_END)
    assert imagenet_to_tfrecords.main([]) == 130
    assert terminal.getvalue().startswith("^C\nerror: interrupted;")


def test_bad_images_can_be_left_out_also_after_one_ended_a_run(raw, bad, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    more = ("--train_shards=9", "--num_processes=1")
    skip = "--on_bad_image=skip"
    done = succeeded(convert_here(raw, one, *more, skip))
    assert "train: 17 images, 9 shards\n" in done.stdout
    assert (
        f"decoded): 1, listed in manifest.json under skipped_images: {bad}"
        in done.stdout
    )
    train = manifest.load(str(one), "train").manifest.splits["train"]
    assert [image.name for image in train.skipped_images] == [str(bad)]

    assert convert_here(raw, two, *more).returncode == 2
    assert convert_here(raw, two, *more, skip).returncode == 0
    assert content(one) == content(two)


@pytest.mark.parametrize("how", [(), ("--in_place",)])
def test_what_makes_the_figures_of_a_set_doubtful_is_said(tmp_path, how):
    """Equal images in both splits, and images that are left out."""
    names = ("train/a/1", "train/b/2", "train/b/3", "validation/b/4", "validation/a/5")
    for name, seed in zip(names, (1, 2, 3, 2, 5), strict=True):
        write(tmp_path / f"raw/{name}.jpg", encoded_image(seed))
    for name in ("6.heic", "c/7.jpg", "c/8.jpg"):
        write(tmp_path / "raw/train/a" / name, b"")
    for _ in range(2):  # Also of a set that is finished.
        done = succeeded(convert_here(tmp_path / "raw", tmp_path / "records", *how))
        two, four = (tmp_path / f"raw/{names[index]}.jpg" for index in (1, 3))
        assert (
            f"1 of 2 validation images, such as {four}, equal to {two}:" in done.stderr
        )
        assert "in formats that aren't read: 1 .heic. Convert" in done.stderr
    assert "1 folder in a class folder, 2 images in a folder in" in done.stdout


def test_a_class_of_which_all_images_are_left_out_is_said(raw, tmp_path):
    for path in (raw / "train" / "n02").glob("*.JPEG"):
        path.write_bytes(b"bad")
    done = convert_here(raw, tmp_path / "records", "--on_bad_image=skip")
    assert done.returncode == 0
    assert "warning: all train images of class 'n02' were skipped" in done.stderr
    assert done.stderr.count("were skipped") == 1


def test_images_are_turned_where_that_is_asked_for(raw, tmp_path):
    turned = Image.new("RGB", (24, 8), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # Its first row is the right side of what was meant.
    turned.save(raw / "train" / "n01" / "n01_1.JPEG", exif=exif)
    plain, asked = tmp_path / "plain", tmp_path / "asked"
    assert convert_here(raw, plain).returncode == 0
    assert convert_here(raw, asked, "--apply_exif_orientation").returncode == 0
    for records, size, is_applied in [(plain, (24, 8), False), (asked, (8, 24), True)]:
        source = manifest.load(str(records), "train").manifest.source
        assert source["apply_exif_orientation"] is is_applied
        assert sum(source["converted_images"].values()) == 2 + is_applied
        sizes = {e["file"]: e["size"] for e in read_examples(records, "train")}
        assert sizes["n01_1.JPEG"] == size
        (records / "manifest.json").unlink()
        indexing.make_if_missing(str(records))
        rebuilt = manifest.load(str(records), "train").manifest
        assert rebuilt.apply_exif_orientation is is_applied


def test_a_second_start_takes_images_that_were_replaced_meanwhile(raw, bad, tmp_path):
    records, more = tmp_path / "records", ("--train_shards=9", "--num_processes=1")
    assert convert_here(raw, records, *more).returncode == 2
    num_finished = len(list((records / ".conversion").glob("*.json"))) - 1
    assert num_finished > 1
    bad.write_bytes(encoded_image(11))
    for index, path in enumerate(sorted((raw / "train").rglob("*.JPEG"))):
        path.write_bytes(encoded_image(40 + index))
    done = succeeded(convert_here(raw, records, *more))
    assert f"{num_finished} shards of the earlier run to write again" in done.stderr
    assert convert_here(raw, tmp_path / "other", *more).returncode == 0
    assert content(records) == content(tmp_path / "other")


def test_a_manifest_stays_and_what_a_kill_at_the_very_end_left_is_removed(
    raw, bad, tmp_path
):
    records = tmp_path / "records"
    more = ("--train_shards=9", "--num_processes=1")
    assert convert_here(raw, records, *more).returncode == 2
    write(records / "manifest.json", b"{}")  # Of something else.
    before = content(records)
    assert any(path.startswith(".conversion/train-") for path in before)
    assert_refused(convert_here(raw, records), "already contains a finished record set")
    assert content(records) == before
    (records / "manifest.json").unlink()
    bad.write_bytes(encoded_image(11))
    assert convert_here(raw, records, *more).returncode == 0
    before = content(records)
    write(records / ".conversion" / "plan.json", b"{}")
    assert convert_here(raw, records, *more).returncode == 0
    assert content(records) == before


def test_a_finished_conversion_is_done_if_nothing_has_changed(raw, bad, tmp_path):
    records = tmp_path / "new" / "parents" / "records"
    skip = ("--on_bad_image=skip", "--num_processes=1")
    first = succeeded(convert_here(raw, records, *skip))
    before = content(records)
    done = succeeded(convert_here(raw, records, *skip))
    assert "already converted" in done.stdout
    lines, earlier = done.stdout.splitlines(), first.stdout.splitlines()
    assert [line for line in earlier if line not in lines] == [
        earlier[-3]
    ]  # The speed.
    for flags, message in (
        ((*skip, "--shuffle_seed=1"), "shuffle_seed is 1, was 0"),
        ((*skip, "--train_shards=2"), "train_shards is 2, was 1"),
        (("--num_processes=1",), "on_bad_image is 'fail', was 'skip'"),
    ):
        refused = convert_here(raw, records, *flags)
        assert_refused(refused, "already contains a finished record set")
        assert message in refused.stderr
    os.utime(bad, (1, 1))
    assert_refused(convert_here(raw, records, *skip), "have changed since")
    write(raw / "train" / "n01" / "new.JPEG", encoded_image(9))
    assert_refused(convert_here(raw, records, *skip), "19 train images, 1 more")
    assert content(records) == before
    (records / "train" / "train-00000-of-00001").write_bytes(b"cut")
    (raw / "train" / "n01" / "new.JPEG").unlink()
    assert_refused(convert_here(raw, records, *skip), "have changed since")


def test_a_set_that_another_conversion_finished_meanwhile_is_not_written_over(
    raw, tmp_path, monkeypatch
):
    records, check_space = tmp_path / "records", output_folder.check_space
    finished: dict[str, bytes] = {}

    def convert_meanwhile(plan: Plan) -> None:
        """Behind the first look of the second conversion, the first one ends."""
        monkeypatch.setattr(output_folder, "check_space", check_space)
        assert convert_here(raw, records).returncode == 0
        finished.update(content(records))

    monkeypatch.setattr(output_folder, "check_space", convert_meanwhile)
    second = convert_here(raw, records, "--shuffle_seed=5")
    assert_refused(second, "already contains a finished record set")
    assert content(records) == finished


OWN = "resnet/resnet_main.py --recipe=own --precision=auto"


@pytest.mark.parametrize(
    ("splits", "words", "model_dir"),
    [
        ("train", f"{OWN} ", "{}-model"),
        ("train val", f"{OWN} --eval_every=5epochs ", "{}-model"),
        ("validation", "eval/resnet_eval.py ", "MODEL"),
    ],
)
def test_the_next_command_is_printed_for_folders_with_spaces(
    tmp_path, splits, words, model_dir
):
    for split in splits.split():
        write(tmp_path / "raw" / split / "cat" / "a.JPEG", encoded_image(1))
    records = tmp_path / "my records"
    done = convert_here(tmp_path / "raw", records)
    (line,) = re.findall(r"^next: +(.*)$", done.stdout, re.M)
    folders = f"--data_dir={records}", f"--model_dir={model_dir.format(records)}"
    assert f"{words}{shlex.join(folders)}" in line


pytestmark = pytest.mark.usefixtures("one_process_is_this")


@pytest.fixture
def lossless(tmp_path) -> pathlib.Path:
    """A lossless folder: 6 PNGs to train on, 3 BMPs for validation, 2 classes."""
    for index in range(9):
        split, kind = ("train", "PNG") if index < 6 else ("val", "BMP")
        path = tmp_path / "lossless" / split / f"c{index % 2}" / f"{index}.{kind}"
        write(path, encoded_image(index, kind))
    return tmp_path / "lossless"


def image_format(records: pathlib.Path) -> str:
    return manifest.load(str(records), "train").manifest.image_format


def test_lossless_images_are_stored_as_png_bit_for_bit(lossless, tmp_path):
    records = tmp_path / "records"
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in (lossless / "train" / "c0").iterdir():
        with Image.open(path) as image:
            image.save(path, exif=exif)
    done = convert_here(lossless, records, "--num_processes=1", "--train_shards=2")
    assert done.returncode == 0, done.stderr
    assert "re-encoded as RGB PNG: 3 (3 BMP)\n" in done.stdout
    assert "not rotated or flipped as their EXIF data tells: 3 (--apply" in done.stdout
    assert image_format(records) == "png"
    source = manifest.load(str(records), "train").manifest.source
    assert source["image_format"] == "png"
    assert source["ignored_exif_orientations"] == 3
    assert "jpeg_quality" not in source
    for split in ("train", "validation"):
        for example in read_examples(records, split):
            (path,) = lossless.rglob(example["file"])
            if split == "train":
                assert example["encoded"] == path.read_bytes()
            decoded = tf.io.decode_png(example["encoded"], channels=3)
            with Image.open(path) as image:
                np.testing.assert_array_equal(decoded, np.asarray(image))
                assert example["size"] == image.size
    record_set = manifest.load(str(records), "train")
    assert verification.verify(record_set, 1, lambda _: None) == []
    split = record_files.open_split(record_set, "train")
    assert split.image_format == "png"
    for record in tf.data.TFRecordDataset(list(split.paths)).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["image/format"].bytes_list.value[0] == b"PNG"
    (records / manifest.FILE_NAME).unlink()
    indexing.make_if_missing(str(records))
    assert image_format(records) == "png"


@pytest.mark.parametrize(("split", "kind"), [("train", "JPEG"), ("val", "WEBP")])
def test_one_lossy_image_makes_a_set_of_jpeg(lossless, tmp_path, split, kind):
    write(lossless / split / "c1" / "z.png", encoded_image(9, kind))
    records = tmp_path / "records"
    succeeded(convert_here(lossless, records, "--num_processes=1"))
    assert image_format(records) == "jpeg"
    for name in ("train", "validation"):
        for example in read_examples(records, name):
            assert example["encoded"].startswith(b"\xff\xd8\xff")
