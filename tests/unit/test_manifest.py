import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from data_prep.records import index_location, manifest
from resnet.base.errors import UserError
from tests.unit.small_manifest import example_manifest

pytestmark = pytest.mark.usefixtures("index_cache")

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def converted_set(tmp_path):
    """Writes a set of two shards whose content doesn't matter; gives its root."""
    root = tmp_path / "set"
    (root / "train").mkdir(parents=True)
    write_set(root, root)
    return root


def write_set(records_dir, index_dir, sha256="a" * 64):
    example = example_manifest()
    shards = tuple(
        dataclasses.replace(shard, sha256=sha256)
        for shard in example.splits["train"].shards
    )
    for shard in shards:
        (records_dir / shard.path).write_bytes(bytes(shard.num_bytes))
    path, offsets_sha256 = manifest.write_offsets(
        index_dir, "train", np.array([0, 10, 0])
    )
    split = dataclasses.replace(
        example.splits["train"],
        shards=shards,
        offsets_path=path,
        offsets_sha256=offsets_sha256,
    )
    manifest.write(dataclasses.replace(example, splits={"train": split}), index_dir)


@pytest.mark.parametrize("data_dir", ["", "train", "train/"])
def test_a_set_is_found_from_its_root_and_from_its_split_folder(
    converted_set, data_dir
):
    loaded = manifest.load(f"{converted_set}/{data_dir}", "train")
    assert loaded.manifest.class_names == ("cat", "dog")
    assert loaded.records_dir == loaded.index_dir == converted_set


def test_a_set_is_found_from_inside_its_split_folder(converted_set, monkeypatch):
    monkeypatch.chdir(converted_set / "train")
    assert manifest.load(".", "train").records_dir == converted_set


@pytest.fixture
def set_with_cached_index(tmp_path):
    """Writes a set whose index lies in the cache; gives the folders of both."""
    records_dir = tmp_path / "foreign"
    (records_dir / "train").mkdir(parents=True)
    index_dir = index_location.cache_folder(records_dir)
    index_dir.mkdir(parents=True)
    write_set(records_dir, index_dir, sha256=None)
    return records_dir, index_dir


@pytest.mark.parametrize("data_dir", ["", "train"])
def test_an_index_is_found_in_the_cache(set_with_cached_index, index_cache, data_dir):
    records_dir, index_dir = set_with_cached_index
    assert index_dir.parent == index_cache / "indexes"
    loaded = manifest.load(str(records_dir / data_dir), "train")
    assert (loaded.records_dir, loaded.index_dir) == (records_dir, index_dir)
    manifest.check_files(loaded, "train")
    offsets = manifest.read_offsets(loaded, loaded.manifest.splits["train"])
    assert offsets.tolist() == [0, 10, 0]


def test_a_version_folder_is_found_from_the_folder_above(converted_set, tmp_path):
    (tmp_path / "data").mkdir()
    converted_set.rename(tmp_path / "data" / "5.1.0")
    loaded = manifest.load(str(tmp_path / "data"), "train")
    assert loaded.records_dir == tmp_path / "data" / "5.1.0"

    (tmp_path / "data" / "5.0.0").mkdir()
    with pytest.raises(UserError, match=r"several versions .*for example .*5\.1\.0"):
        manifest.load(str(tmp_path / "data"), "train")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("RESNET_CPU_CACHE")
    folder = index_location.cache_folder("/some/set")
    assert folder.parent == tmp_path / "home/.cache/resnet-cpu/indexes"
    assert folder.name == hashlib.sha256(b"/some/set").hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = index_location.cache_folder("/some/set/")
    assert folder.parent == tmp_path / "xdg/resnet-cpu/indexes"
    assert folder.name == hashlib.sha256(b"/some/set").hexdigest()[:16]
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "ours"))
    assert index_location.cache_folder("x").parent == tmp_path / "ours/indexes"


def test_another_folder_in_a_set_is_not_a_set(converted_set):
    (converted_set / "other").mkdir()
    with pytest.raises(UserError, match=r"other is not a record set"):
        manifest.load(str(converted_set / "other"), "train")


def test_a_folder_above_is_looked_at_for_a_split_only(converted_set):
    (converted_set / "manifest.json").write_text("of another program")
    (converted_set / "other").mkdir()
    assert manifest.find(str(converted_set / "other")) is None
    (converted_set / "validation").mkdir()
    with pytest.raises(UserError, match="is not a readable manifest"):
        manifest.find(str(converted_set / "validation"))


def test_a_split_that_the_set_above_lacks_is_no_part_of_it(converted_set):
    (converted_set / "validation").mkdir()
    assert manifest.find(str(converted_set / "validation")) is None


def test_a_manifest_is_never_replaced(converted_set):
    before = (converted_set / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="another one is there and isn't replaced"):
        manifest.write(example_manifest(), converted_set)
    assert (converted_set / "manifest.json").read_bytes() == before


def test_loading_names_what_is_missing(converted_set, tmp_path_factory):
    with pytest.raises(UserError, match="must be a folder of record files"):
        manifest.load(str(converted_set / "absent"), "train")
    with pytest.raises(UserError, match="convert the images first"):
        manifest.load(str(tmp_path_factory.mktemp("empty")), "train")
    with pytest.raises(UserError, match="no split 'validation'; it has train"):
        manifest.load(str(converted_set), "validation")


def test_a_manifest_that_is_not_text_is_refused(converted_set):
    (converted_set / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"manifest\.json can't be read"):
        manifest.load(str(converted_set), "train")


def test_whole_files_pass_the_check(converted_set):
    manifest.check_files(manifest.load(str(converted_set), "train"), "train")


def test_the_check_finds_a_shard_that_may_not_be_read(converted_set, monkeypatch):
    record_set = manifest.load(str(converted_set), "train")
    closed = converted_set / "train" / "train-00001-of-00002"
    monkeypatch.setattr(os, "access", lambda path, _: path != closed)
    with pytest.raises(
        UserError, match=r"00001-of-00002 can't be read .Permission den"
    ):
        manifest.check_files(record_set, "train")


@pytest.mark.parametrize("name", ["manifest.json", "train-offsets.npy"])
def test_a_pipe_in_place_of_a_file_is_refused(converted_set, name):
    (converted_set / name).unlink()
    os.mkfifo(converted_set / name)
    with pytest.raises(UserError, match="not a regular file"):
        manifest.check_files(manifest.load(str(converted_set), "train"), "train")


def test_a_path_that_the_system_refuses_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match=r"reading the record set in .* failed: "):
        manifest.find(str(tmp_path / ("n" * 300)))


def test_the_check_names_the_first_bad_file_and_counts_them(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    split = loaded.manifest.splits["train"]
    os.truncate(converted_set / split.shards[0].path, 19)
    with pytest.raises(UserError) as caught:
        manifest.check_files(loaded, "train")
    assert "train-00000-of-00002 has 19 bytes; expected 20" in str(caught.value)
    assert "1 of the 3 files" in str(caught.value)
    assert "Copy the record set again or convert it again." in str(caught.value)

    (converted_set / split.shards[0].path).unlink()
    (converted_set / split.offsets_path).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        manifest.check_files(loaded, "train")
    assert "train-00000-of-00002 can't be read (No such file" in str(caught.value)
    assert "2 of the 3 files" in str(caught.value)


def test_the_check_looks_at_the_wanted_shards_only(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    (converted_set / "train/train-00000-of-00002").unlink()
    manifest.check_files(loaded, "train", [1])
    manifest.check_files(loaded, "train", [])
    with pytest.raises(UserError, match="1 of the 3 files"):
        manifest.check_files(loaded, "train", [0, 1])


def test_the_check_finds_each_bad_file_of_a_thousand(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    shards = tuple(
        manifest.Shard(f"train/{index}", 1, 16 + index, "a" * 64, 0.0)
        for index in range(1024)
    )
    for shard in shards:
        (converted_set / shard.path).write_bytes(bytes(shard.num_bytes))
    path, sha256 = manifest.write_offsets(converted_set, "train", np.zeros(1024))
    split = manifest.Split("train", shards, (512, 512), path, sha256)
    loaded = dataclasses.replace(
        loaded, manifest=dataclasses.replace(loaded.manifest, splits={"train": split})
    )
    manifest.check_files(loaded, "train")
    for index in (3, 700, 1023):
        os.truncate(converted_set / f"train/{index}", 0)
    with pytest.raises(UserError, match=r"^3 of the 1025 files .* train/3 has 0 "):
        manifest.check_files(loaded, "train")


def test_a_stale_index_is_to_be_removed(set_with_cached_index):
    records_dir, index_dir = set_with_cached_index
    loaded = manifest.load(str(records_dir), "train")
    os.truncate(records_dir / "train/train-00000-of-00002", 21)
    with pytest.raises(UserError) as caught:
        manifest.check_files(loaded, "train")
    assert f"delete their old index, {index_dir}, and rerun" in str(caught.value)

    beside = dataclasses.replace(loaded, index_dir=records_dir)
    with pytest.raises(UserError) as caught:
        manifest.check_files(beside, "train")
    assert f"old index, {records_dir / 'manifest.json'}, and" in str(caught.value)


def test_the_check_finds_offsets_of_the_wrong_number(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    manifest.write_offsets(converted_set, "train", np.array([0, 10]))
    with pytest.raises(UserError, match=r"has shape \(2,\); expected \(3,\)"):
        manifest.check_files(loaded, "train")


def test_offsets_and_shards_tell_where_each_record_is(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    split = loaded.manifest.splits["train"]
    offsets = manifest.read_offsets(loaded, split)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, 10, 0]
    shard_indices = manifest.shard_of_example(split)
    assert shard_indices.dtype == np.int32
    assert shard_indices.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "offsets",
    [
        [-5, 10, 0],
        [0, 2**62, 0],
        [0, -(2**63), 0],
        [0, 0, 0],
        [0, 20, 0],
        [10, 0, 0],
        [0, 10, 1],
    ],
)
def test_offsets_at_which_no_records_can_be_are_refused(converted_set, offsets):
    record_set = manifest.load(str(converted_set), "train")
    path, sha256 = manifest.write_offsets(converted_set, "train", np.array(offsets))
    split = dataclasses.replace(
        record_set.manifest.splits["train"], offsets_path=path, offsets_sha256=sha256
    )
    with pytest.raises(UserError, match=r"contradicts manifest\.json: the offsets of"):
        manifest.read_offsets(record_set, split)


def test_changed_offsets_are_refused(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    split = loaded.manifest.splits["train"]
    path = converted_set / split.offsets_path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="SHA-256 of the offsets file"):
        manifest.read_offsets(loaded, split)
    path.unlink()
    with pytest.raises(UserError, match="can't be read"):
        manifest.read_offsets(loaded, split)


def test_the_manifest_needs_no_tensorflow():
    program = (
        "import sys; from data_prep.records import indexing, manifest, verification;"
    )
    program += " sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
