"""Record files that aren't those of the manifest any more, and when they are read."""

import errno
import hashlib
import os
import pathlib
import shutil
from collections import Counter

import pytest

from data_prep.records import indexing, manifest, tfrecord, verified
from data_prep.records.manifest import RecordSet
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.data import record_sets
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.hardware.placement import ProcessInfo
from resnet.runtime import startup
from tests.unit import simulated_ranks

pytestmark = pytest.mark.usefixtures("index_cache")
NAMES = [f"train/train-0000{index}-of-00003" for index in range(3)]


@pytest.fixture(params=["ours", "another program's"])
def records(request, numbered_set, tmp_path) -> pathlib.Path:
    """The folder of a set that may be changed."""
    folder = shutil.copytree(numbered_set, tmp_path / "records")
    if request.param != "ours":
        (folder / "manifest.json").unlink()
        indexing.make_if_missing(str(folder))
    return folder


@pytest.fixture
def read(monkeypatch) -> Counter[str]:
    """Counts how often each file is read as a whole."""
    count, sha256 = Counter[str](), regular_file.sha256

    def counted(path):
        count[str(path)] += 1
        return sha256(path)

    monkeypatch.setattr(regular_file, "sha256", counted)
    return count


def check(*folders: pathlib.Path, on_bad_record: str = "skip") -> list[object]:
    """Returns what each rank gets that opens and checks its view of the set."""

    def check_one(communicator, _) -> object:
        record_set = manifest.load(str(folders[communicator.rank]), "train")
        shards = startup.check_shards(
            record_set, ["train"], "example", communicator, on_bad_record
        )
        return len(shards["train"])

    return simulated_ranks.on_all_ranks(check_one, len(folders))[0]


def test_the_digest_of_a_set_is_that_of_its_files_wherever_it_is(records):
    split = manifest.load(str(records), "train").manifest.splits["train"]
    digests = [hashlib.sha256((records / name).read_bytes()) for name in NAMES]
    joined = "".join(digest.hexdigest() for digest in digests)
    assert split.records_sha256 == hashlib.sha256(joined.encode()).hexdigest()
    records.rename(records.with_name("moved"))
    moved = manifest.load(str(records.with_name("moved")), "train")
    assert moved.manifest.splits["train"].records_sha256 == split.records_sha256


def test_files_are_read_once_by_the_ranks_that_see_them_together(records, read):
    copy = shutil.copytree(records, records.with_name("copy"))
    views = (records, records, copy, records)
    assert check(*views) == [4] * 4
    assert set(read.values()) == {1}
    assert set(read) >= {str(copy / name) for name in NAMES}
    read.clear()
    assert check(*views) == [4] * 4
    assert not read
    records.rename(records.with_name("moved"))
    assert check(records.with_name("moved")) == [1]
    assert not read
    os.utime(copy / NAMES[1])
    assert check(*[copy] * 3) == [3] * 3
    assert read == {str(copy / NAMES[1]): 1}


def test_other_records_of_the_same_size_are_refused_on_all_ranks(records):
    assert check(records) == [1]
    first, status = (records / NAMES[0]).read_bytes(), (records / NAMES[0]).stat()
    record = bytes(tfrecord.read_record(first, 0))
    other = tfrecord.frame_record(record[:-1] + bytes([record[-1] ^ 1]))
    (records / NAMES[0]).write_bytes(other + first[len(other) :])
    os.utime(records / NAMES[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    copy = shutil.copytree(records, records.with_name("copy"))
    (copy / NAMES[0]).write_bytes(first)
    for views in ((records,), (copy, records, copy)):
        for error in check(*views):
            assert isinstance(error, AgreedError)
            assert f"{records / NAMES[0]} must be the file that manifest" in str(error)
    (records / NAMES[0]).write_bytes(first)
    assert check(copy, records) == [2] * 2


def test_a_file_with_a_corrupt_record_is_left_to_those_who_skip_that(records):
    path = records / NAMES[0]
    fault = f"the record at byte 0 of {path} is corrupt: the checksum of its data"
    assert tfrecord.describe_fault(path) == ""
    (byte,) = path.read_bytes()[20:21]
    with path.open("r+b") as file:
        file.seek(20)
        file.write(bytes([byte ^ 1]))
    assert fault in tfrecord.describe_fault(path)
    for error in check(records, records, on_bad_record="fail"):
        assert isinstance(error, AgreedError)
        assert fault in str(error)
    assert check(records) == [1]


def test_an_emptied_file_is_another_one(records):
    (records / NAMES[0]).write_bytes(b"")
    assert tfrecord.describe_fault(records / NAMES[0]) == ""
    record_set = manifest.load(str(records), "train")
    with pytest.raises(UserError, match=f"{NAMES[0]} must be the file that manifest"):
        verified.verify(record_set, record_set.manifest.splits["train"].shards)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ESTALE, RuntimeError), (errno.EACCES, AgreedError)]
)
def test_a_file_that_cannot_be_read_now_is_no_mistake_of_the_user(
    records, monkeypatch, number, error
):
    def failing(path):
        raise OSError(number, os.strerror(number), str(path))

    (records / verified.FILE_NAME).unlink(missing_ok=True)
    monkeypatch.setattr(regular_file, "sha256", failing)
    record_set = manifest.load(str(records), "train")
    with pytest.raises(error, match=f"can't be read .{os.strerror(number)}.; "):
        startup.check_shards(
            record_set, ["train"], "example", Communicator(ProcessInfo())
        )


def test_states_are_in_the_cache_if_they_cannot_be_beside_the_records(
    records, read, index_cache
):
    (records / verified.FILE_NAME).unlink(missing_ok=True)
    (records / verified.FILE_NAME).mkdir()
    assert check(records, records) == [2] * 2
    assert sum(read.values()) == 3
    assert check(records) == [1]
    assert sum(read.values()) == 3
    assert len(list(index_cache.glob(f"indexes/*/{verified.FILE_NAME}"))) == 1


def test_a_change_during_a_run_is_noticed(records):
    record_set: RecordSet = manifest.load(str(records), "train")
    alone = Communicator(ProcessInfo())
    shards = startup.check_shards(record_set, ["train"], "example", alone)
    record_sets.verify_changed(record_set, shards, alone)
    last = (records / NAMES[2]).read_bytes()
    shutil.copy2(records / NAMES[1], records / "other")
    os.replace(records / "other", records / NAMES[2])  # Of other, valid records.
    with pytest.raises(AgreedError, match=r"train-00002-of-00003 must be the file"):
        record_sets.verify_changed(record_set, shards, alone)
    (records / NAMES[2]).write_bytes(last)
    record_sets.verify_changed(record_set, shards, alone)
