import errno
import itertools
import os
import re

import pytest

from data_prep.records import indexing, manifest
from resnet.base import atomic_files
from resnet.base.errors import UserError
from tests.unit.tpu_records import SYNSETS, encoded_image, record, write_shards

pytestmark = pytest.mark.usefixtures("index_cache")


TRAIN_LABELS = ((1, 3, 2), (2, 2, 1, 3))
VALIDATION_LABELS = ((3, 1),)


def write_tpu_set(root, in_folders, shift=0):
    for split, shard_labels in (
        ("train", TRAIN_LABELS),
        ("validation", VALIDATION_LABELS),
    ):
        numbers = itertools.count()
        write_shards(
            root / split if in_folders else root,
            split,
            [
                [
                    record(
                        next(numbers),
                        label + shift,
                        **{"image/class/synset": SYNSETS[label - 1].encode()},
                    )
                    for label in labels
                ]
                for labels in shard_labels
            ],
        )


@pytest.mark.parametrize("in_folders", [True, False])
@pytest.mark.parametrize("shift", [0, -1])
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
    assert contents.class_names == SYNSETS
    assert contents.first_label == 1 + shift
    assert contents.image_format == "jpeg"
    assert (contents.image_key, contents.label_key) == (
        "image/encoded",
        "image/class/label",
    )
    prefix = "train/" if in_folders else ""
    assert [shard.path for shard in contents.splits["train"].shards] == [
        f"{prefix}train-00000-of-00002",
        f"{prefix}train-00001-of-00002",
    ]
    assert [shard.num_records for shard in contents.splits["train"].shards] == [3, 4]
    assert [shard.sha256 for shard in contents.splits["train"].shards] == [None, None]
    assert contents.splits["train"].label_counts == (2, 3, 2)
    assert contents.splits["validation"].label_counts == (1, 0, 1)
    # Of 3 records, 6/7, 9/7 and 6/7 were expected, and there is one of each.
    expected = ((1 / 7) ** 2 / (6 / 7) * 2 + (2 / 7) ** 2 / (9 / 7)) / 2
    measure = contents.splits["train"].shards[0].class_mixing
    assert measure == round(expected, 4)
    for split in ("train", "validation"):
        manifest.check_files(record_set, split)
    labels = [label - 1 for labels in TRAIN_LABELS for label in labels]
    images = [encoded_image(index) for index in range(7)]
    assert read_split(record_set, "train") == list(zip(labels, images, strict=True))


@pytest.mark.parametrize("data_dir", ["train", "validation"])
def test_a_set_is_opened_by_the_folder_of_a_split_or_of_that_name(tmp_path, data_dir):
    write_tpu_set(tmp_path / "records", in_folders=True)
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
    assert (above.class_names, own.manifest.class_names) == (
        ("cat", "dog"),
        SYNSETS[:1],
    )
    assert own.records_dir == tmp_path / "validation"


@pytest.mark.parametrize(
    ("module", "name"),
    [(indexing.tf_example, "scan_file"), (manifest, "write_offsets")],
)
def test_a_manifest_that_appears_during_the_scan_or_the_writing_is_kept(
    tmp_path, monkeypatch, module, name
):
    write_tpu_set(tmp_path, in_folders=True)
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
    assert splits[0].offsets_sha256 == splits[1].offsets_sha256
    assert read_split(again, "train") == list(zip(labels, images, strict=True))


def test_anything_else_is_left_to_the_message_of_load(tmp_path):
    (tmp_path / "image.jpg").write_bytes(b"")
    indexing.make_if_missing(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["image.jpg"]
    with pytest.raises(UserError, match="is not a record set"):
        manifest.load(str(tmp_path), "train")
    with pytest.raises(UserError, match="must be a folder of record files"):
        indexing.make_if_missing(str(tmp_path / "absent"))


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_the_index_of_a_folder_that_cannot_be_written_to_goes_to_the_cache(
    tmp_path, index_cache, monkeypatch, forbid_scans, read_split, number
):
    root = tmp_path / "records"
    write_tpu_set(root, in_folders=True)
    before = sorted(root.rglob("*"))
    write = atomic_files.atomic_write_bytes

    def write_elsewhere(path, data):
        if root in path.parents:  # The tests may run as root, who may write anywhere.
            raise OSError(number, os.strerror(number), str(path))
        write(path, data)

    monkeypatch.setattr(atomic_files, "atomic_write_bytes", write_elsewhere)
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


def test_an_index_that_can_be_written_nowhere_is_a_users_mistake(tmp_path, monkeypatch):
    write_tpu_set(tmp_path, in_folders=True)

    def write_nothing(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(atomic_files, "atomic_write_bytes", write_nothing)
    with pytest.raises(UserError, match=r"can't be written to .*No space left"):
        indexing.make_if_missing(str(tmp_path))


@pytest.mark.parametrize(
    ("shards", "removed", "message"),
    [
        (
            [[record(i, 1)] for i in range(6)],
            (1, 2, 4, 5),
            "6 record files .* 4 are missing: train-00001-of-00006, .*00004-of.*, ...",
        ),
        ([[], []], (), "split train of .* has no records"),
        ([[], [record(0, 1)], [record(1, 1)]], (), "-00000-of-00003 must .* is empty"),
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


A_PNG = record(1, 1, **{"image/encoded": encoded_image(1, "PNG")})


def test_two_sets_in_one_folder_are_refused(tmp_path):
    write_shards(tmp_path, "train", [[record(0, 1)]])
    write_shards(tmp_path, "train", [[record(0, 1)]] * 2)
    with pytest.raises(UserError, match="sets with 00001 and 00002 files"):
        indexing.make_if_missing(str(tmp_path))


THREE = [record(0, 1), record(1, 2), record(2, 1)]


@pytest.mark.parametrize(
    ("shards", "warnings"),
    [
        # As of a file that was cut between two records.
        ([THREE, THREE[:1], THREE], ["1 of the 3 files .*00001-of-00003, has 1, the"]),
        # As the TPU scripts divide ten records, and two records, among files.
        ([THREE, THREE, THREE, THREE[:1]], []),
        ([THREE[:1], THREE[1:2], []], []),
        (
            [[record(0, 1), record(1, 999, **{"image/class/synset": None})]],
            ["997 of the 999 classes .* at byte .*-of-00001 has the largest label"],
        ),
    ],
)
def test_what_may_be_wrong_is_said(tmp_path, shards, warnings):
    write_shards(tmp_path, "train", shards)
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert len(said) == 2 + len(warnings)
    for sentence, expected in zip(said[1:], warnings, strict=False):
        assert re.match(f"warning: {expected}", sentence)
    split = manifest.load(str(tmp_path), "train").manifest.splits["train"]
    assert [shard.num_records for shard in split.shards] == [
        len(records) for records in shards if records
    ]


def test_classes_without_a_name_are_called_by_their_number(tmp_path):
    nameless = {"image/class/synset": None}
    empty = {"image/class/synset": b""}
    two = {"image/class/synset": b"2"}
    records = [record(0, 5, **nameless), record(1, 1, **empty), record(2, 3, **two)]
    write_shards(tmp_path, "train", [records])
    indexing.make_if_missing(str(tmp_path))
    contents = manifest.load(str(tmp_path), "train").manifest
    assert contents.class_names == ("1", "label 2", "2", "4", "5")
    assert contents.splits["train"].label_counts == (1, 0, 1, 0, 1)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            [[record(0, 1)], [record(1, 1, **{"image/class/synset": b"other"})]],
            r"label 1 must .* same class name .*'other' in .*-00001-of-00002 and 'n01",
        ),
        (
            [[record(0, 1), record(1, 4)]],
            "must have one label; class 'n01440764' has the labels 1 and 4",
        ),
        ([[record(0, 1), record(1, -1)]], r"must be from 1 to .* has the label -1$"),
        (
            [[record(0, 0), record(1, 2_000_000)]],
            r"from 0 to 999,999; .* has the label 2,000,000",
        ),
        (
            [[record(0, 1), record(1, 1, **{"image/class/label": None})]],
            "it has no feature image/class/label",
        ),
        (
            [[record(0, 1, **{"image/encoded": 1})]],
            "feature image/encoded is not a string of bytes",
        ),
        ([[record(0, 1, **{"image/encoded": b"GIF8"})]], "it starts with b'GIF8'"),
        (
            [[record(0, 1), A_PNG]],
            "all JPEG or all PNG; the first JPEG is in the record at byte 0 of .*PNG",
        ),
        (
            [[record(0, 1), record(1, 999_999, **{"image/class/synset": None})]],
            "there are 2 examples, and .* label 999,999",
        ),
        ([[record(0, 1), b"x"]], "record at byte .* it is truncated: 1 of the 12"),
    ],
)
def test_records_that_cannot_be_used_are_refused(tmp_path, shards, message):
    write_shards(tmp_path, "train", shards)
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(tmp_path))
    assert not (tmp_path / "manifest.json").exists()


def test_the_scan_reads_no_images(tmp_path):
    content = bytearray(record(0, 1, **{"image/encoded": encoded_image(0) * 100}))
    content[2000] ^= 1  # In the image; its checksum would tell.
    write_shards(tmp_path, "train", [[bytes(content)]])
    indexing.make_if_missing(str(tmp_path))
    assert manifest.load(str(tmp_path), "train").manifest.class_names == SYNSETS[:1]


def test_a_pipe_in_place_of_a_record_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "train-00000-of-00001")
    with pytest.raises(UserError, match="not a regular file"):
        indexing.make_if_missing(str(tmp_path))


def test_a_folder_that_may_not_be_read_is_a_users_mistake(tmp_path, monkeypatch):
    def refuse(path):  # The tests may run as root, who may read anything.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        indexing.make_if_missing(str(tmp_path))
