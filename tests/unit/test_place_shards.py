import dataclasses
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_prep.records import manifest
from data_prep.records.manifest import Manifest, Shard, Split
from launch import place_shards
from tests.in_process import assert_refused, run, succeeded


def contents(num_shards: int) -> Manifest:
    shards = tuple(
        Shard(f"train/{index}", 10 + index % 2, 1000, "0" * 64, 1.0)
        for index in range(num_shards)
    )
    split = Split("train", shards, (sum(s.num_records for s in shards),), "t.npy", "0")
    splits = {"train": split}
    return Manifest(class_names=("a",), first_label=1, splits=splits, source={})


@given(num_nodes=st.integers(1, 300), more=st.integers(0, 1000))
def test_each_shard_is_on_one_node_and_the_nodes_are_even(num_nodes, more):
    placement = place_shards.place(contents(num_nodes + more), num_nodes)["train"]
    assert len(placement) == num_nodes
    placed = [shard for shards in placement for shard in shards]
    assert placed == list(range(num_nodes + more))
    sizes = [len(shards) for shards in placement]
    assert max(sizes) - min(sizes) <= 1


def test_the_table_tells_ranks_files_examples_and_bytes():
    whole = contents(5)
    placement = place_shards.place(whole, 2)
    assert place_shards.table(whole, placement, 3).splitlines() == [
        "train: 52 examples in 5 files",
        "  node 0, ranks 0 to 2: 2 files (0 to 1), 7 examples per rank, 0.00 GB",
        "  node 1, ranks 3 to 5: 3 files (2 to 4), 10 examples per rank, 0.00 GB",
    ]


@pytest.fixture
def converted(tmp_path, write_tiny_set) -> Path:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    write_tiny_set(tmp_path, [file.getvalue()] * 8, [0, 1] * 4, ("a", "b"), (4, 2, 2))
    return tmp_path


def test_the_files_of_a_node_are_printed_one_a_line(converted):
    flags = ("--num_nodes=2", "--node=1")
    done = succeeded(run(place_shards, f"--data_dir={converted}", *flags))
    names = done.stdout.splitlines()
    assert names[:2] == ["manifest.json", "train-index.npy"]
    assert names[2:] == ["train/train-00001-of-00003", "train/train-00002-of-00003"]
    assert all((converted / name).is_file() for name in names)


def test_an_index_elsewhere_is_refused_for_the_files_of_a_node(
    converted, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "cache"
    found = dataclasses.replace(manifest.find(str(converted)), index_dir=elsewhere)
    monkeypatch.setattr(place_shards.manifest, "find", lambda folder: found)
    flags = (f"--data_dir={converted}", "--num_nodes=2")
    assert run(place_shards, *flags).returncode == 0
    message = f"are in {converted} and {elsewhere}"
    assert_refused(run(place_shards, *flags, "--node=1"), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--num_nodes is required"),
        (("--num_nodes=0",), "at least 1; got 0"),
        (("--num_nodes=2", "--node=2"), "--node must be from 0 to 1; got 2"),
        (("--num_nodes=3", "--node=0"), "the 3 record files give the 3 nodes from 2"),
        (("--num_nodes=4",), "--train_shards=4 or a multiple"),
        (("--num_nodes=2", "--data_dir=/"), "/ must contain a manifest.json"),
    ],
)
def test_what_is_wrong_is_one_sentence(converted, arguments, message):
    done = run(place_shards, f"--data_dir={converted}", *arguments)
    assert_refused(done, message)
