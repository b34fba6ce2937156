import copy
import json

import pytest

from data_prep.records import manifest
from resnet.base.errors import UserError
from tests.unit.small_manifest import example_manifest


def sorted_pairs(value):
    """Returns nested JSON with each object as the list of its sorted pairs."""
    if isinstance(value, dict):
        return [(key, sorted_pairs(value[key])) for key in sorted(value)]
    return [sorted_pairs(v) for v in value] if isinstance(value, list) else value


def test_json_and_back_is_identity():
    example = example_manifest()
    assert manifest.Manifest.from_json(example.to_json(), "m.json") == example


def test_the_json_is_for_reading_and_always_the_same():
    text = example_manifest().to_json()
    lines = text.splitlines()
    assert lines[:3] == ["{", ' "class_descriptions": [', '  "house cat",']
    assert json.loads(text, object_pairs_hook=list) == sorted_pairs(json.loads(text))
    assert text.endswith("}\n")


def test_a_manifest_of_version_1_is_refused_with_the_way_out():
    fields = json.loads(example_manifest().to_json()) | {"format_version": 1}
    with pytest.raises(UserError, match="must be 2; it is 1") as caught:
        manifest.Manifest.from_json(json.dumps(fields), "m.json")
    assert "delete this file, and the next program" in str(caught.value)


def test_a_measure_of_mixing_must_be_a_number():
    fields = json.loads(example_manifest().to_json())
    fields["splits"]["train"]["shards"][0]["class_mixing"] = float("nan")
    with pytest.raises(UserError, match="class_mixing of shard 0 of split train must"):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


def test_the_split_counts_its_examples():
    assert example_manifest().splits["train"].num_examples == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", '"x"', "{}", "[" * 200_000]
)
def test_a_text_that_is_no_manifest_is_refused_with_the_files_name(text):
    with pytest.raises(
        UserError, match=r"^some/manifest\.json is not a readable manifest"
    ):
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


# What these should be is only known to who reads the records.
ANY_TEXT = {"sha256", "offsets_sha256", "image_key", "label_key", "name", "reason"}


HARMLESS = (("sha256", None), ("class_descriptions", []), ("skipped_images", []))


@pytest.mark.parametrize(
    "place", list(every_place(json.loads(example_manifest().to_json())))
)
@pytest.mark.parametrize("damage", ["missing", None, True, -1, [], "../x", [None]])
def test_every_damaged_field_is_refused(place, damage):
    if (place[-1], damage) in HARMLESS or (damage == "../x" and place[-1] in ANY_TEXT):
        return
    fields = json.loads(example_manifest().to_json())
    parent = fields
    for key in place[:-1]:
        parent = parent[key]
    if damage == "missing":
        del parent[place[-1]]
    else:
        parent[place[-1]] = damage
    with pytest.raises(UserError):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "format_version must be 2; it is 3"),
        ({"image_format": "gif"}, "image_format must be jpeg or png; it is 'gif'"),
        ({"class_descriptions": ["x"]}, "describes 1 of the 2 classes"),
        ({"class_names": ["cat", "cat"]}, "class_names has 'cat' more than once"),
        (
            {"class_names": ["cat"], "class_descriptions": []},
            "counts 2 labels; there are 1 classes",
        ),
    ],
)
def test_a_contradiction_is_named(changes, message):
    fields = json.loads(example_manifest().to_json()) | changes
    with pytest.raises(UserError, match=message):
        manifest.Manifest.from_json(json.dumps(fields), "m.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("first_label",), 2**70),
        (("image_key",), "\ud800"),
        (("label_key",), "\ud800"),
        (("splits", "train", "offsets_path"), "a\0b"),
        (("splits", "train", "shards", 0, "path"), "train/a\0b"),
        (("splits", "train", "shards", 0, "path"), "train/\ud800"),
        (("splits", "train", "shards", 0, "num_bytes"), 10**30),
        (("splits", "train", "shards", 0, "num_bytes"), 1),
        (("splits", "train", "shards", 0, "num_records"), 10**30),
    ],
)
def test_what_no_set_can_have_is_refused(place, value):
    fields = json.loads(example_manifest().to_json())
    parent = fields
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    with pytest.raises(UserError, match="is not a readable manifest"):
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
