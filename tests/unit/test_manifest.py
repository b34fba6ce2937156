import copy
import dataclasses
import json
import os

import numpy as np
import pytest

from data_prep import manifest
from data_prep.errors import UserError


def example_manifest() -> manifest.Manifest:
    train = manifest.Split(
        name="train",
        shards=(
            manifest.Shard("train/train-00000-of-00002", 2, 20, "a" * 64),
            manifest.Shard("train/train-00001-of-00002", 1, 10, "b" * 64),
        ),
        label_counts=(1, 2),
        offsets_path="train-offsets.npy",
        offsets_sha256="c" * 64,
    )
    return manifest.Manifest(("cat", "dog"), 1, {"train": train}, {"shuffle_seed": 0})


@pytest.fixture
def converted_set(tmp_path):
    """Writes a set of two shards whose content doesn't matter; gives its root."""
    example = example_manifest()
    (tmp_path / "train").mkdir()
    for shard in example.splits["train"].shards:
        (tmp_path / shard.path).write_bytes(bytes(shard.num_bytes))
    path, sha256 = manifest.write_offsets(tmp_path, "train", np.array([0, 10, 0]))
    split = dataclasses.replace(
        example.splits["train"], offsets_path=path, offsets_sha256=sha256
    )
    manifest.write(dataclasses.replace(example, splits={"train": split}), tmp_path)
    return tmp_path


def test_json_and_back_is_identity():
    example = example_manifest()
    assert manifest.Manifest.from_json(example.to_json(), "m.json") == example


def test_the_split_counts_its_examples():
    assert example_manifest().splits["train"].num_examples == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '"x"', "{}"])
def test_a_text_that_is_no_manifest_is_refused_with_the_files_name(text):
    with pytest.raises(UserError, match=r"^some/manifest\.json is not a manifest"):
        manifest.Manifest.from_json(text, "some/manifest.json")


def every_place(value, place=()):
    """Yields the path of each key in nested JSON, but not inside `source`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield (*place, key)
            if key != "source":
                yield from every_place(child, (*place, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from every_place(child, (*place, index))


@pytest.mark.parametrize(
    "place", list(every_place(json.loads(example_manifest().to_json())))
)
@pytest.mark.parametrize("damage", ["missing", None, True, -1, [], "../x", [None]])
def test_every_damaged_field_is_refused(place, damage):
    fields = json.loads(example_manifest().to_json())
    parent = fields
    for key in place[:-1]:
        parent = parent[key]
    if damage == "missing":
        del parent[place[-1]]
    elif isinstance(damage, str) and place[-1] in ("sha256", "offsets_sha256"):
        return  # Any text; what it should be is only known to who reads the file.
    else:
        parent[place[-1]] = damage
    with pytest.raises(UserError):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version must be 1; it is 2"),
        ({"class_names": ["cat", "cat"]}, "class_names has 'cat' more than once"),
        ({"class_names": ["cat"]}, "counts 2 labels; there are 1 classes"),
    ],
)
def test_a_contradiction_is_named(changes, message):
    fields = json.loads(example_manifest().to_json()) | changes
    with pytest.raises(UserError, match=message):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


def test_label_counts_must_add_up_to_the_examples():
    fields = json.loads(example_manifest().to_json())
    fields["splits"]["train"]["label_counts"] = [1, 1]
    with pytest.raises(UserError, match="add up to 2 examples, its shards to 3"):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


def test_a_shard_may_not_be_listed_twice():
    fields = json.loads(example_manifest().to_json())
    split = fields["splits"]["train"]
    split["shards"] = [copy.copy(split["shards"][1]) for _ in range(3)]
    with pytest.raises(UserError, match="more than once"):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


@pytest.mark.parametrize("data_dir", ["", "train", "train/"])
def test_a_set_is_found_from_its_root_and_from_its_split_folder(
    converted_set, data_dir
):
    loaded, root = manifest.load(f"{converted_set}/{data_dir}", "train")
    assert loaded.class_names == ("cat", "dog")
    assert root == converted_set


def test_a_set_is_found_from_inside_its_split_folder(converted_set, monkeypatch):
    monkeypatch.chdir(converted_set / "train")
    assert manifest.load(".", "train")[1] == converted_set


def test_another_folder_in_a_set_is_not_a_set(converted_set):
    (converted_set / "other").mkdir()
    with pytest.raises(UserError, match=r"expected a converted set in .*other"):
        manifest.load(str(converted_set / "other"), "train")


def test_loading_names_what_is_missing(converted_set, tmp_path_factory):
    with pytest.raises(UserError, match="must be a folder of records"):
        manifest.load(str(converted_set / "absent"), "train")
    with pytest.raises(UserError, match="imagenet-to-tfrecords writes it"):
        manifest.load(str(tmp_path_factory.mktemp("empty")), "train")
    with pytest.raises(UserError, match="no split 'validation'; it has train"):
        manifest.load(str(converted_set), "validation")


def test_a_manifest_that_is_not_text_is_refused(converted_set):
    (converted_set / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"manifest\.json can't be read"):
        manifest.load(str(converted_set), "train")


def test_whole_files_pass_the_check(converted_set):
    loaded, root = manifest.load(str(converted_set), "train")
    manifest.check_files(root, loaded.splits["train"])


def test_the_check_names_the_first_bad_file_and_counts_them(converted_set):
    split = manifest.load(str(converted_set), "train")[0].splits["train"]
    os.truncate(converted_set / split.shards[0].path, 19)
    with pytest.raises(UserError) as caught:
        manifest.check_files(converted_set, split)
    assert "train-00000-of-00002 has 19 bytes instead of 20" in str(caught.value)
    assert "1 of the 3 files" in str(caught.value)

    (converted_set / split.shards[0].path).unlink()
    (converted_set / split.offsets_path).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        manifest.check_files(converted_set, split)
    assert "train-00000-of-00002 can't be read (No such file" in str(caught.value)
    assert "2 of the 3 files" in str(caught.value)


def test_the_check_finds_offsets_of_the_wrong_number(converted_set):
    split = manifest.load(str(converted_set), "train")[0].splits["train"]
    manifest.write_offsets(converted_set, "train", np.array([0, 10]))
    with pytest.raises(UserError, match=r"has the shape \(2,\) instead of \(3,\)"):
        manifest.check_files(converted_set, split)


def test_offsets_and_shards_tell_where_each_record_is(converted_set):
    split = manifest.load(str(converted_set), "train")[0].splits["train"]
    offsets = manifest.read_offsets(converted_set, split)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, 10, 0]
    shard_indices = manifest.shard_of_example(split)
    assert shard_indices.dtype == np.int32
    assert shard_indices.tolist() == [0, 0, 1]


def test_changed_offsets_are_refused(converted_set):
    split = manifest.load(str(converted_set), "train")[0].splits["train"]
    path = converted_set / split.offsets_path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="another SHA-256"):
        manifest.read_offsets(converted_set, split)
    path.unlink()
    with pytest.raises(UserError, match="can't be read"):
        manifest.read_offsets(converted_set, split)
