import dataclasses
import hashlib
import json
import os
import shlex

import numpy as np
import pytest

from data_prep.records import manifest, record_index
from data_prep.records.class_mixing import ShardContent, write_split
from resnet.base.errors import UserError

pytestmark = pytest.mark.usefixtures("index_cache")


def example_manifest() -> manifest.Manifest:
    train = manifest.Split(
        name="train",
        shards=(
            manifest.Shard("train/train-00000-of-00002", 2, 20, "a" * 64, 0.5),
            manifest.Shard("train/train-00001-of-00002", 1, 10, "b" * 64, 0.0),
        ),
        label_counts=(1, 2),
        index_path="train-index.npy",
        index_sha256="c" * 64,
        skipped_images=(manifest.SkippedImage("cat/1.jpg", "it is empty"),),
    )
    return manifest.Manifest(
        class_names=("cat", "dog"),
        first_label=1,
        splits={"train": train},
        source={"shuffle_seed": 0},
        class_descriptions=("house cat", "domestic dog"),
    )


@pytest.fixture
def converted_set(tmp_path):
    """Writes a set of two shards whose content doesn't matter; gives its root."""
    root = tmp_path / "set"
    (root / "train").mkdir(parents=True)
    write_set(root, root)
    return root


def index_of(offsets):
    index = np.zeros(len(offsets), record_index.record_index_type())
    index["offset"] = offsets
    return index


def write_set(records_dir, index_dir, **source):
    name = "train/train-0000{}-of-00002".format
    contents = [
        ShardContent(name(0), 20, "a" * 64, [0, 10], np.array([0, 1])),
        ShardContent(name(1), 10, "b" * 64, [0], np.array([1])),
    ]
    for shard in contents:
        (records_dir / shard.path).write_bytes(bytes(shard.num_bytes))
    split = write_split(index_dir, "train", contents, 2)
    manifest.write(
        dataclasses.replace(example_manifest(), splits={"train": split}, source=source),
        index_dir,
    )


def test_json_and_back_is_identity_and_the_json_always_the_same(tmp_path):
    example = example_manifest()
    assert example.splits["train"].num_examples == 3
    manifest.write(example, tmp_path)
    path = tmp_path / manifest.FILE_NAME
    assert manifest.read_file(path) == example
    fields = json.loads(path.read_text())
    assert path.read_text() == json.dumps(fields, indent=1, sort_keys=True) + "\n"


def fields_of_example():
    return json.loads(example_manifest().to_json())


def refusal(folder, content) -> str:
    """Returns the error about a manifest with this content."""
    path = folder / "manifest.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as caught:
        manifest.read_file(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} must hold the manifest of a record set; ")
    assert "delete this file, and the next program" in sentence
    return sentence


def test_a_text_that_is_no_manifest_is_refused(tmp_path):
    for text in ("", "[]", "{}", "[" * 200_000):
        refusal(tmp_path, text)


def replaced(fields, place, value):
    """Returns nested JSON with another value, or without it if that is "missing"."""
    if not place:
        return value
    changed = fields.copy()
    if value == "missing" and len(place) == 1:
        del changed[place[0]]
    else:
        changed[place[0]] = replaced(fields[place[0]], place[1:], value)
    return changed


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


# What these should be is only known to who reads the records.
ANY_TEXT = {"sha256", "index_sha256", "image_key", "label_key", "name", "reason"}
HARMLESS = [(n, []) for n in ("class_descriptions", "skipped_images", "depth_window")]
HARMLESS.append(("multi_label", True))  # The index has another form then.
OPTIONAL = {
    *("images_dir", "multi_label"),
    *("class_descriptions", "skipped_images"),
    *("image_key", "label_key", "image_format", "median_side", "depth_window"),
}


@pytest.mark.parametrize("damage", ["missing", None, True, -1, [], "../x", [None]])
def test_every_damaged_field_is_refused(tmp_path, damage):
    for place in every_place(fields_of_example()):
        is_good = (
            (place[-1], damage) in HARMLESS
            or (damage == "../x" and place[-1] in ANY_TEXT)
            or (damage == "missing" and place[-1] in OPTIONAL)
        )
        if not is_good:
            refusal(tmp_path, replaced(fields_of_example(), place, damage))


TRAIN = ("splits", "train")
FIRST = (*TRAIN, "shards", 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("format_version",), 3, "format_version must be 2; it is 3"),
        (("image_format",), "gif", "must be jpeg or png; it is 'gif'"),
        (("class_descriptions",), ["x"], "describes 1 of the 2 classes"),
        (("class_names",), ["cat", "cat"], "'cat' more than once"),
        (("label_key",), "\ud800", "can't be a name"),
        ((*TRAIN, "label_counts"), [1, 1], "add up to 2 examples, its shards to 3"),
        ((*TRAIN, "index_path"), "a\0b", "must be inside the set"),
        ((*FIRST, "path"), "train/\ud800", "must be inside the set"),
        ((*FIRST, "path"), "train/train-00001-of-00002", "more than once"),
        ((*FIRST, "num_bytes"), 10**30, "num_bytes"),
        ((*FIRST, "num_bytes"), 1, "num_records"),
        ((*FIRST, "class_mixing"), float("nan"), "class_mixing"),
    ],
)
def test_a_contradiction_is_named(tmp_path, place, value, message):
    sentence = refusal(tmp_path, replaced(fields_of_example(), place, value))
    assert message in sentence


@pytest.mark.parametrize("data_dir", ["", "train", "train/"])
def test_a_set_is_found_from_its_root_and_from_its_split_folder(
    converted_set, data_dir, monkeypatch
):
    loaded = manifest.load(f"{converted_set}/{data_dir}", "train")
    assert loaded.manifest.class_names == ("cat", "dog")
    assert loaded.records_dir == loaded.index_dir == converted_set
    monkeypatch.chdir(converted_set / data_dir)
    assert manifest.load(".", "train").records_dir == converted_set


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("RESNET_CPU_CACHE")
    name = hashlib.sha256(b"/some/set").hexdigest()[:16]
    folder = manifest.cache_folder("/some/set")
    assert folder == tmp_path / "home/.cache/resnet-cpu/indexes" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = manifest.cache_folder("/some/set/")
    assert folder == tmp_path / "xdg/resnet-cpu/indexes" / name
    monkeypatch.setenv("RESNET_CPU_CACHE", str(tmp_path / "ours"))
    assert manifest.cache_folder("x").parent == tmp_path / "ours/indexes"


def test_a_folder_above_is_looked_at_for_a_split_only(converted_set):
    (converted_set / "other").mkdir()
    with pytest.raises(UserError, match=r"other is not a record set"):
        manifest.load(str(converted_set / "other"), "train")
    (converted_set / "validation").mkdir()  # The set above has no such split.
    assert manifest.find(str(converted_set / "validation")) is None
    (converted_set / "manifest.json").write_text("of another program")
    assert manifest.find(str(converted_set / "other")) is None
    with pytest.raises(UserError, match="must hold the manifest of a record set"):
        manifest.find(str(converted_set / "validation"))


def test_what_is_no_set_is_named(converted_set, tmp_path):
    with pytest.raises(UserError, match=r"it has train: .*_fraction=0.1"):
        manifest.load(str(converted_set), "validation")
    with pytest.raises(UserError, match="must be a folder of record files"):
        manifest.load(str(tmp_path / "absent"), "train")
    with pytest.raises(UserError, match=r"reading the record set in .* failed: "):
        manifest.find(str(tmp_path / ("n" * 300)))


def test_a_manifest_is_never_replaced(converted_set):
    before = (converted_set / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="another manifest is there and isn't replaced"):
        manifest.write(example_manifest(), converted_set)
    assert (converted_set / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not of NumPy", b"\x93NUMPY"])
def test_a_file_that_only_has_the_name_of_the_offsets_is_kept(tmp_path, content):
    (tmp_path / "train-index.npy").write_bytes(content)
    with pytest.raises(UserError, match="contains something else than an index"):
        record_index.write_index(tmp_path, "train", index_of([0]))
    assert (tmp_path / "train-index.npy").read_bytes() == content


def test_the_check_finds_a_shard_that_may_not_be_read(converted_set, monkeypatch):
    record_set = manifest.load(str(converted_set), "train")
    closed = converted_set / "train" / "train-00001-of-00002"
    monkeypatch.setattr(os, "access", lambda path, _: path != closed)
    with pytest.raises(UserError, match="00001-of-00002 can't be read"):
        manifest.check_files(record_set, "train")


@pytest.mark.parametrize("name", ["manifest.json", "train-index.npy"])
def test_a_pipe_in_place_of_a_file_is_refused(converted_set, name):
    (converted_set / name).unlink()
    os.mkfifo(converted_set / name)
    with pytest.raises(UserError, match=r"not a regular file|can't be read"):
        manifest.check_files(manifest.load(str(converted_set), "train"), "train")


def test_the_check_names_the_first_bad_file_and_counts_them(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    manifest.check_files(loaded, "train")
    split = loaded.manifest.splits["train"]
    first = converted_set / split.shards[0].path
    os.truncate(first, 19)
    with pytest.raises(UserError, match=r"1 of the 3 .*19 bytes; expected 20.* Copy"):
        manifest.check_files(loaded, "train")
    manifest.check_files(loaded, "train", [1])
    manifest.check_files(loaded, "train", [])

    first.unlink()
    record_index.write_index(converted_set, "train", index_of([0, 10]))
    with pytest.raises(UserError, match=r"2 of the 3 .*00002 can't be read \(No such"):
        manifest.check_files(loaded, "train")
    with pytest.raises(UserError, match=r"1 of the 2 .*\(2,\); expected \(3,\)"):
        manifest.check_files(loaded, "train", [1])


def test_a_stale_index_is_to_be_removed(tmp_path):
    (tmp_path / "train").mkdir()
    write_set(tmp_path, tmp_path, indexed="TFRecord files")
    beside = manifest.load(str(tmp_path), "train")
    os.truncate(tmp_path / "train/train-00000-of-00002", 21)
    cached = dataclasses.replace(beside, index_dir=tmp_path / "cache")
    for record_set, index in (
        (cached, tmp_path / "cache"),
        (beside, tmp_path / "manifest.json"),
    ):
        with pytest.raises(UserError, match=f"delete their old index, {index}, and"):
            manifest.check_files(record_set, "train")


@pytest.mark.parametrize(
    "offsets", [[-5, 10, 0], [0, -(2**63), 0], [0, 0, 0], [0, 20, 0], [0, 10, 1]]
)
def test_offsets_at_which_no_records_can_be_are_refused(converted_set, offsets):
    record_set = manifest.load(str(converted_set), "train")
    path, sha256 = record_index.write_index(converted_set, "train", index_of(offsets))
    split = dataclasses.replace(
        record_set.manifest.splits["train"], index_path=path, index_sha256=sha256
    )
    with pytest.raises(UserError, match=r"contradicts manifest\.json: the offsets of"):
        record_index.read_index(record_set, split)


def test_changed_offsets_are_refused(converted_set):
    loaded = manifest.load(str(converted_set), "train")
    split = loaded.manifest.splits["train"]
    path = converted_set / split.index_path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="has another SHA-256 than in manifest"):
        record_index.read_index(loaded, split)
    path.unlink()
    with pytest.raises(UserError, match="can't be read"):
        record_index.read_index(loaded, split)


def test_a_set_one_level_below_is_proposed(converted_set):
    with pytest.raises(
        UserError, match=r"is not a record set\. Found .* pass"
    ) as error:
        manifest.load(str(converted_set.parent), "train")
    assert f"pass --data_dir={shlex.quote(str(converted_set))}" in str(error.value)


def test_the_folder_of_a_run_is_no_folder_of_images(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is the folder of a run, not a record set"):
        manifest.load(str(tmp_path), "train")
