"""A job's ranks are threads here, each with its communicator and its view of disks."""

import os
import shutil
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from data_prep.records import indexing, manifest
from data_prep.records.manifest import RecordSet, Split
from resnet.base.errors import UserError
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.hardware.placement import ProcessInfo
from tests.unit import simulated_ranks

NUM_RANKS = 4


def on_all_ranks(call: simulated_ranks.Call) -> list[Any]:
    """Returns what a function returns, or raises, on each of the ranks at once."""
    return simulated_ranks.on_all_ranks(call, NUM_RANKS)[0]


@pytest.fixture
def record_set(numbered_set, tmp_path) -> RecordSet:
    """A set of three shards that may be changed."""
    shutil.copytree(numbered_set, tmp_path / "records")
    return manifest.load(str(tmp_path / "records"), "train")


def test_a_folder_whose_name_is_not_utf_8_is_refused(record_set):
    folder = os.fsdecode(os.fsencode(record_set.records_dir) + b"\xe9")
    os.rename(record_set.records_dir, folder)
    place = ProcessInfo()
    with pytest.raises(AgreedError, match="--data_dir must be a name in UTF-8; got b'"):
        record_sets.open_record_set(folder, "train", place, Communicator(place))


def test_the_watchdog_hears_of_each_file_that_is_indexed(tmp_path, monkeypatch):
    report_status = mock.Mock()
    monkeypatch.setattr(Communicator, "report_status", report_status)
    monkeypatch.setattr(
        indexing,
        "make_if_missing",
        lambda folder, report, file_begins: [file_begins(i, 2) for i in (1, 2)],
    )
    loaded = SimpleNamespace(records_dir=tmp_path)
    monkeypatch.setattr(manifest, "load", lambda *_: loaded)
    place = ProcessInfo()
    record_sets.open_record_set("records", "train", place, Communicator(place))
    assert not any(call.kwargs["is_timed"] for call in report_status.call_args_list)
    opening = "opening the records"
    files = [f"indexing record file {i} of 2" for i in (1, 2)]
    reported = [call.args[0] for call in report_status.call_args_list]
    assert reported == [opening, *files, opening, *files, "starting"]


def test_the_index_is_made_by_rank_0_and_then_once_on_each_node(
    record_set, monkeypatch
):
    # Ranks run at the same time, but a round ends before the next one begins.
    makers: list[int] = []
    ranks = threading.local()
    monkeypatch.setattr(
        indexing, "make_if_missing", lambda data_dir, *_: makers.append(ranks.rank)
    )

    def open_set(communicator: Communicator, place: ProcessInfo) -> RecordSet:
        ranks.rank = communicator.rank
        folder = str(record_set.records_dir)
        return record_sets.open_record_set(folder, "train", place, communicator)

    assert on_all_ranks(open_set) == [record_set] * NUM_RANKS
    assert makers[0] == 0
    assert sorted(makers[1:]) == [0, 2]


def check(
    views: Sequence[RecordSet], shard_by: str
) -> list[list[tuple[int, ...]] | AgreedError]:
    return on_all_ranks(
        lambda communicator, place: record_sets.check_split(
            views[communicator.rank],
            views[communicator.rank].manifest.splits["train"],
            shard_by,
            communicator,
        )
    )


def view(record_set: RecordSet, name: str, shards: Sequence[int]) -> RecordSet:
    """Returns the set as a node sees it that has some of the shards."""
    folder = record_set.records_dir.parent / name
    shutil.copytree(record_set.records_dir, folder)
    for index, shard in enumerate(record_set.manifest.splits["train"].shards):
        if index not in shards:
            (folder / shard.path).unlink()
    return manifest.load(str(folder), "train")


def test_by_file_each_rank_reads_the_shards_on_its_node(record_set, monkeypatch):
    monkeypatch.setattr(manifest, "MAX_IMBALANCE", 1.0)
    one, other = view(record_set, "one", [0, 2]), view(record_set, "other", [1])
    of_each_rank = [(0, 2), (0, 2), (1,), (1,)]
    assert check([one, one, other, other], "file") == [of_each_rank] * NUM_RANKS


@pytest.mark.parametrize(
    ("shard_by", "shards", "words"),
    [
        ("file", [0, 1, 2], "train/train-00001-of-00003 has "),
        ("example", [0, 2], "train/train-00001-of-00003 can't be read (No such file"),
        ("file", [0, 2], "train/train-00000-of-00003 is on the nodes of ranks 0 and 2"),
    ],
)
def test_what_is_wrong_on_one_node_is_an_error_of_all(
    record_set, shard_by, shards, words
):
    one, other = view(record_set, "one", [0, 1, 2]), view(record_set, "two", shards)
    path = other.records_dir / "train" / "train-00001-of-00003"
    if path.exists():
        path.write_bytes(path.read_bytes()[:-1])
    for error in check([one, one, other, one], shard_by):
        assert isinstance(error, AgreedError)
        assert words in str(error)


def split_of(shard_sizes: Sequence[int], name: str = "train") -> Split:
    shards = tuple(
        manifest.Shard(f"{name}/{index}", size, 1, None, 1.0)
        for index, size in enumerate(shard_sizes)
    )
    return Split(name, shards, (sum(shard_sizes),), "offsets", "")


@pytest.mark.parametrize(
    ("shard_sizes", "shards_of_ranks", "words"),
    [
        # A tenth of the mean of 100 a rank, and more.
        ([220, 180], [(0,), (1,), (0,), (1,)], None),
        ([111, 89], [(0,), (1,)], "from 89 to 111"),
        ([100, 100], [(0,), (0,), (1,)], "from 50 to 100"),
        ([100], [(0,), ()], "from 0 to 100"),
        ([100, 30], [(0,), (0,)], "train/1 is on no node"),
        ([100, 30], [(0,), (0, 1)], "train/0 is on the nodes of ranks 0 and 1"),
    ],
)
def test_each_shard_is_on_one_node_and_the_ranks_are_balanced(
    shard_sizes, shards_of_ranks, words
):
    split = split_of(shard_sizes)
    if words is None:
        record_sets.check_shards_of_nodes(split, shards_of_ranks)
        return
    with pytest.raises(UserError, match=rf"--shard_by=file needs .*{words}"):
        record_sets.check_shards_of_nodes(split, shards_of_ranks)


def test_evaluation_may_be_uneven_and_leave_a_node_out():
    split = split_of([100, 30], "validation")
    record_sets.check_shards_of_nodes(split, [(0,), (1,), ()])
