"""Record sets that other programs wrote, in the layout of the TPU scripts."""

import errno
import functools
import hashlib
import itertools
import os
import re
import zlib

import pytest

from data_prep.records import (
    indexing,
    manifest,
    record_index,
    tf_example,
    tfrecord,
    verification,
)
from resnet.base import atomic_files
from resnet.base.errors import UserError
from tests.converter_program import encoded_image

pytestmark = pytest.mark.usefixtures("index_cache")

SYNSETS = ("n01440764", "n01443537", "n01484850")
TRAIN_LABELS = ((1, 3, 2), (2, 2, 1, 3))
VALIDATION_LABELS = ((3, 1),)
SYNSET, LABEL, IMAGE = "image/class/synset", "image/class/label", "image/encoded"


def record(index, label, **changes):
    """Returns a framed record as the TPU scripts write it."""
    features = {
        IMAGE: encoded_image(index),
        LABEL: label,
        SYNSET: SYNSETS[(label - 1) % 3].encode(),
        "image/filename": f"{index}.JPEG".encode(),
    }
    kept = {k: v for k, v in (features | changes).items() if v is not None}
    return tfrecord.frame_record(tf_example.encode_example(kept))


def write_shards(folder, split, shards):
    """Writes record files, each a list of framed records."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, records in enumerate(shards):
        name = manifest.shard_name(split, index, len(shards))
        (folder / name).write_bytes(b"".join(records))


def write_tpu_set(root, in_folders=True, shift=0):
    for split, labels in (("train", TRAIN_LABELS), ("validation", VALIDATION_LABELS)):
        numbers = itertools.count()
        shards = [
            [
                record(
                    next(numbers),
                    label + shift,
                    **{SYNSET: SYNSETS[label - 1].encode()},
                )
                for label in labels_of_shard
            ]
            for labels_of_shard in labels
        ]
        write_shards(root / split if in_folders else root, split, shards)


@pytest.mark.parametrize(("in_folders", "shift"), [(True, 0), (False, -1)])
def test_a_set_of_the_tpu_scripts_is_opened(
    tmp_path, in_folders, shift, forbid_scans, read_split
):
    root = tmp_path / "records"
    write_tpu_set(root, in_folders, shift)
    said = []
    indexing.make_if_missing(str(root), said.append)
    assert said == [
        f"indexing the 3 record files in {root} (only once)",
        f"wrote the index to {root}",
    ]
    forbid_scans()
    indexing.make_if_missing(str(root), said.append)
    assert len(said) == 2

    record_set = manifest.load(str(root), "train")
    assert record_set.records_dir == record_set.index_dir == root
    contents = record_set.manifest
    assert (contents.class_names, contents.first_label) == (SYNSETS, 1 + shift)
    assert (contents.image_key, contents.label_key) == (IMAGE, LABEL)
    assert contents.image_format == "jpeg"
    train = contents.splits["train"]
    prefix = "train/" if in_folders else ""
    for index, (shard, num_records) in enumerate(
        zip(train.shards, (3, 4), strict=True)
    ):
        assert shard.path == f"{prefix}train-0000{index}-of-00002"
        assert shard.num_records == num_records
        content = (root / shard.path).read_bytes()
        assert shard.sha256 == hashlib.sha256(content).hexdigest()
    assert train.label_counts == (2, 3, 2)
    assert contents.splits["validation"].label_counts == (1, 0, 1)
    # Of 3 records, 6/7, 9/7 and 6/7 were expected, and there is one of each.
    expected = ((1 / 7) ** 2 / (6 / 7) * 2 + (2 / 7) ** 2 / (9 / 7)) / 2
    assert train.shards[0].class_mixing == round(expected, 4)
    for split in ("train", "validation"):
        manifest.check_files(record_set, split)
    labels = [label - 1 for labels in TRAIN_LABELS for label in labels]
    images = [encoded_image(index) for index in range(7)]
    assert read_split(record_set, "train") == list(zip(labels, images, strict=True))


@pytest.mark.parametrize("data_dir", ["train", "validation"])
def test_a_set_is_opened_by_the_folder_of_a_split_or_of_that_name(tmp_path, data_dir):
    write_tpu_set(tmp_path / "records")
    indexing.make_if_missing(str(tmp_path / "records" / data_dir))
    record_set = manifest.load(str(tmp_path / "records" / data_dir), "train")
    assert record_set.records_dir == tmp_path / "records"
    assert set(record_set.manifest.splits) == {"train", "validation"}
    write_tpu_set(tmp_path / data_dir, in_folders=False)
    indexing.make_if_missing(str(tmp_path / data_dir))
    record_set = manifest.load(str(tmp_path / data_dir), "validation")
    assert record_set.records_dir == tmp_path / data_dir


def test_records_beside_a_finished_set_are_a_set_of_their_own(tmp_path, write_tiny_set):
    images = [encoded_image(0), encoded_image(1)]
    write_tiny_set(tmp_path, images, [0, 1], ["cat", "dog"], [1, 1])
    write_shards(tmp_path / "validation", "validation", [[record(0, 1)]])
    before = (tmp_path / "manifest.json").read_bytes()
    for folder in ("", "train", "validation"):
        indexing.make_if_missing(str(tmp_path / folder))
    assert (tmp_path / "manifest.json").read_bytes() == before
    above = manifest.load(str(tmp_path), "train").manifest
    own = manifest.load(str(tmp_path / "validation"), "validation")
    assert above.class_names == ("cat", "dog")
    assert own.manifest.class_names == SYNSETS[:1]
    assert own.records_dir == tmp_path / "validation"


@pytest.mark.parametrize(
    ("module", "name"),
    [(indexing.tf_example, "scan_file"), (record_index, "write_index")],
)
def test_a_manifest_that_appears_during_the_scan_or_the_writing_is_kept(
    tmp_path, monkeypatch, module, name
):
    write_tpu_set(tmp_path)
    function = getattr(module, name)

    def index_meanwhile(*arguments):
        monkeypatch.setattr(module, name, function)
        indexing.make_if_missing(str(tmp_path))
        (tmp_path / "manifest.json").chmod(0o640)
        return function(*arguments)

    monkeypatch.setattr(module, name, index_meanwhile)
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert said[-1] == "another process has indexed them meanwhile"
    assert (tmp_path / "manifest.json").stat().st_mode & 0o777 == 0o640


def test_a_set_of_ours_without_its_manifest_is_indexed_as_it_was(
    tmp_path, write_tiny_set, read_split
):
    images = [encoded_image(index) for index in range(5)]
    labels, names = [0, 1, 2, 1, 0], ("7", "cat", "dog")
    write_tiny_set(tmp_path, images, labels, names, [3, 2])
    before = manifest.load(str(tmp_path), "train").manifest
    (tmp_path / "manifest.json").unlink()
    indexing.make_if_missing(str(tmp_path))
    again = manifest.load(str(tmp_path), "train")
    assert (again.manifest.class_names, again.manifest.first_label) == (names, 1)
    splits = again.manifest.splits["train"], before.splits["train"]
    assert splits[0].label_counts == splits[1].label_counts
    assert splits[0].index_sha256 == splits[1].index_sha256
    assert read_split(again, "train") == list(zip(labels, images, strict=True))


def test_anything_else_is_left_to_the_message_of_load(tmp_path):
    (tmp_path / "image.jpg").write_bytes(b"")
    indexing.make_if_missing(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["image.jpg"]
    folders = f"--raw_data_dir={tmp_path}", f"--local_scratch_dir={tmp_path}-records"
    raw = re.escape(" --validation_fraction=0.1 ".join(folders))
    with pytest.raises(UserError, match=f"is not a record set.*{raw}"):
        manifest.load(str(tmp_path), "train")
    (tmp_path / "val").mkdir()
    with pytest.raises(UserError, match=re.escape(" ".join(folders))):
        manifest.load(str(tmp_path), "train")
    (tmp_path / manifest.CONVERSION_FOLDER).mkdir()
    with pytest.raises(UserError, match=r"a conversion that isn't finished.*Rerun"):
        manifest.load(str(tmp_path), "train")
    with pytest.raises(UserError, match="must be a folder of record files"):
        indexing.make_if_missing(str(tmp_path / "absent"))


def test_the_index_of_a_folder_that_cannot_be_written_to_goes_to_the_cache(
    tmp_path, index_cache, monkeypatch, forbid_scans, read_split
):
    root = tmp_path / "records"
    write_tpu_set(root)
    before = sorted(root.rglob("*"))
    write = atomic_files.atomic_write_bytes

    # The tests may run as root, who may write anywhere.
    def write_below(folder, path, data):
        if not path.is_relative_to(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    def write_only_below(folder):
        function = functools.partial(write_below, folder)
        monkeypatch.setattr(atomic_files, "atomic_write_bytes", function)

    write_only_below(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"can't be written to .*No space left"):
        indexing.make_if_missing(str(root))
    write_only_below(index_cache)
    said = []
    indexing.make_if_missing(str(root), said.append)
    index_dir = manifest.cache_folder(root)
    assert index_dir.parent == index_cache / "indexes"
    assert said[-1] == f"wrote the index to {index_dir}"
    assert sorted(root.rglob("*")) == before
    forbid_scans()
    for data_dir in (root, root / "train"):
        indexing.make_if_missing(str(data_dir))
        record_set = manifest.load(str(data_dir), "train")
        assert (record_set.records_dir, record_set.index_dir) == (root, index_dir)
        manifest.check_files(record_set, "train")
        assert len(read_split(record_set, "train")) == 7


@pytest.mark.parametrize(
    ("shards", "removed", "message"),
    [
        (
            [[record(i, 1)] for i in range(6)],
            (1, 2, 4, 5),
            "6 record files .* 4 are missing: train-00001-of-00006, .*00004-of.*, ...",
        ),
        ([[], []], (), "split train of .* has no records"),
        ([[record(0, 1)], [], [record(1, 1)]], (), "-00001-of-00003 must .* is empty"),
        ([[record(0, 1)] * 3, [record(0, 1)] * 3, []], (), "00002-of-00003 .* empty"),
    ],
)
def test_an_incomplete_set_is_refused(tmp_path, shards, removed, message):
    write_shards(tmp_path, "train", shards)
    for index in removed:
        (tmp_path / f"train-{index:05d}-of-{len(shards):05d}").unlink()
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(tmp_path))
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    "counts", [[3, 3, 3, 1], [1, 1, 0]]
)  # As the TPU scripts divide ten records, and two records, among files.
def test_the_last_files_of_the_tpu_scripts_are_shorter(tmp_path, counts):
    write_shards(
        tmp_path, "train", [[record(i, 1 + i % 2) for i in range(n)] for n in counts]
    )
    indexing.make_if_missing(str(tmp_path))
    split = manifest.load(str(tmp_path), "train").manifest.splits["train"]
    assert [shard.num_records for shard in split.shards] == list(filter(None, counts))


@pytest.mark.usefixtures("one_process_is_this")
def test_names_in_either_form_of_unicode_are_one_class(tmp_path):
    names = "\u00e9".encode(), "e\u0301".encode()
    records = [record(index, 1, **{SYNSET: name}) for index, name in enumerate(names)]
    write_shards(tmp_path, "train", [records])
    indexing.make_if_missing(str(tmp_path))
    record_set = manifest.load(str(tmp_path), "train")
    assert record_set.manifest.class_names == ("\u00e9",)
    assert verification.verify(record_set, 1, lambda _: None) == []


def test_classes_without_a_name_are_called_by_their_number(tmp_path):
    names = (5, None), (1, b""), (3, b"2")
    records = [record(0, label, **{SYNSET: name}) for label, name in names]
    write_shards(tmp_path, "train", [records])
    indexing.make_if_missing(str(tmp_path))
    contents = manifest.load(str(tmp_path), "train").manifest
    assert contents.class_names == ("1", "label 2", "2", "4", "5")
    assert contents.splits["train"].label_counts == (1, 0, 1, 0, 1)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [record(1, 1, **{SYNSET: b"other"})],
            r"label 1 must .* same class name .*'other' in .*-00001-of-00002 and 'n01",
        ),
        ([record(1, 4)], "must have one label; class 'n01440764' has the labels 1 and"),
        ([record(1, -1)], r"must be from 1 to .* has the label -1$"),
        (
            [record(1, 0), record(1, 2_000_000)],
            r"from 0 to 999,999; .* has the label 2,000,000",
        ),
        ([record(1, 1, **{LABEL: None})], f"it has no feature {LABEL}"),
        ([record(1, 1, **{IMAGE: 1})], f"feature {IMAGE} is not a string of bytes"),
        (
            [record(1, 1, **{IMAGE: encoded_image(1, "PNG")})],
            "all JPEG or all PNG; the first JPEG is in the record at byte 0 of .*PNG.*"
            "Convert the images, .* data_prep/imagenet_to_tfrecords.py --raw_data_dir",
        ),
        (
            [record(1, 999_999, **{SYNSET: None})],
            "there are 2 examples, and .* label 999,999",
        ),
        ([b"x"], "record at byte .* it is truncated: 1 of the 12"),
        ([zlib.compress(record(0, 1))], "it is compressed with gzip or ZLIB"),
    ],
)
def test_records_that_cannot_be_used_are_refused(tmp_path, records, message):
    write_shards(tmp_path, "train", [[record(0, 1)], records])
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(tmp_path))
    assert not (tmp_path / "manifest.json").exists()
    write_shards(tmp_path, "train", [[record(0, 1)]])
    with pytest.raises(UserError, match="sets with 00001 and 00002 files"):
        indexing.make_if_missing(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["train/00-512x512-9.tfrec", "a_train_00000-of-00002.tfrecord", "a-00000-of-00001"],
)
def test_record_files_of_other_names_are_told_which_are_read(tmp_path, name):
    path = tmp_path / "records" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(record(0, 1))
    with pytest.raises(UserError, match=rf"train-00000-of-.* 1 of other .*{path.name}"):
        indexing.make_if_missing(str(tmp_path / "records"))


def test_the_scan_reads_no_images(tmp_path):
    content = bytearray(record(0, 1, **{IMAGE: encoded_image(0) * 100}))
    content[2000] ^= 1  # In the image; its checksum would tell.
    write_shards(tmp_path, "train", [[bytes(content)]])
    indexing.make_if_missing(str(tmp_path))
    assert manifest.load(str(tmp_path), "train").manifest.class_names == SYNSETS[:1]


def test_files_that_may_not_be_read_are_a_users_mistake(tmp_path, monkeypatch):
    path = tmp_path / "train-00000-of-00001"
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        indexing.make_if_missing(str(tmp_path))

    def refuse(path):  # The tests may run as root, who may read anything.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        indexing.make_if_missing(str(tmp_path))
