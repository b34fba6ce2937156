"""What is refused or warned of when the records of another program are indexed."""

import errno
import gzip
import os

import pytest

from data_prep.records import indexing, manifest, schema
from resnet.base.errors import UserError
from tests.unit.tpu_records import record, write_shards

pytestmark = pytest.mark.usefixtures("index_cache")


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_an_empty_file_among_others_is_refused(tmp_path, empty):
    shards = [[record(index, 1) for index in range(3)] for _ in range(3)]
    shards[empty] = []
    write_shards(tmp_path, "train", shards)
    path = tmp_path / schema.shard_name("train", empty, 3)
    with pytest.raises(UserError, match=rf"{path} must contain records like .* empty"):
        indexing.make_if_missing(str(tmp_path))
    assert not (tmp_path / "manifest.json").exists()


def test_a_file_with_far_fewer_records_than_most_is_said(tmp_path):
    shards = [[record(0, 1), record(1, 2), record(2, 1)] for _ in range(5)]
    del shards[1][1:]  # As of a file that was cut between two records.
    write_shards(tmp_path, "train", shards)
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert said[1].startswith("warning: 1 of the 5 files of split train have less than")
    assert "train-00001-of-00005, has 1, the median is 3." in said[1]


def test_the_shorter_last_file_of_the_tpu_scripts_is_as_it_should_be(tmp_path):
    three = [record(0, 1), record(1, 2), record(2, 1)]
    write_shards(tmp_path, "train", [three, three, three, three[:1]])
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert len(said) == 2


def test_files_of_the_tpu_scripts_for_which_nothing_is_left_are_left_out(tmp_path):
    write_shards(tmp_path, "train", [[record(0, 1)], [record(1, 2)], []])
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert said[1] == (
        "warning: 1 of the 3 files of split train are empty, as the last ones are if"
        " there are fewer records than files; they are left out"
    )
    split = manifest.load(str(tmp_path), "train").manifest.splits["train"]
    assert [shard.path[:11] for shard in split.shards] == ["train-00000", "train-00001"]


def test_one_wrong_label_is_said(tmp_path):
    write_shards(tmp_path, "train", [[record(index, 1 + index) for index in range(3)]])
    nameless = {"image/class/synset": None}
    write_shards(tmp_path, "validation", [[record(0, 1), record(1, 999, **nameless)]])
    said = []
    indexing.make_if_missing(str(tmp_path), said.append)
    assert said[1].startswith("warning: 995 of the 999 classes have no example; the")
    offset = len(record(0, 1))
    assert f"record at byte {offset} of {tmp_path}/validation-00000-of-00001" in said[1]


def test_more_classes_than_any_network_has_are_refused(tmp_path):
    nameless = {"image/class/synset": None}
    records = [record(0, 1), record(1, 999_999, **nameless)]
    write_shards(tmp_path, "train", [records])
    with pytest.raises(UserError, match=r"there are 2 examples, and .* label 999,999"):
        indexing.make_if_missing(str(tmp_path))


def test_compressed_records_are_recognized(tmp_path):
    write_shards(tmp_path, "train", [[gzip.compress(record(0, 1))]])
    with pytest.raises(UserError, match="it is compressed with gzip"):
        indexing.make_if_missing(str(tmp_path))


def test_a_pipe_in_place_of_a_record_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "train-00000-of-00001")
    with pytest.raises(UserError, match="not a regular file"):
        indexing.make_if_missing(str(tmp_path))


@pytest.mark.parametrize("name", ["n" * 300, "d/" * 3000])
def test_a_path_that_the_system_refuses_is_a_users_mistake(tmp_path, name):
    with pytest.raises(UserError, match="File name too long"):
        indexing.make_if_missing(str(tmp_path / name))


def test_a_folder_that_may_not_be_read_is_a_users_mistake(tmp_path, monkeypatch):
    def refuse(path):  # The tests may run as root, who may read anything.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        indexing.make_if_missing(str(tmp_path))


def test_a_split_without_records_is_refused(tmp_path):
    write_shards(tmp_path, "train", [[], []])
    with pytest.raises(UserError, match=r"split train of .* has no records"):
        indexing.make_if_missing(str(tmp_path))
