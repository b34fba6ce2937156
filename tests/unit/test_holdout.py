"""Which training images are held out for validation."""

import collections
import hashlib

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from data_prep.conversion import holdout
from data_prep.conversion.plan import Options
from data_prep.records import manifest
from data_prep.sources import raw_data
from data_prep.sources.image_list import Entry, ImageList, Source
from resnet.base.errors import UserError
from tests.converter_program import content, convert_here, encoded_image, write
from tests.in_process import assert_refused, succeeded
from tests.record_reader import read_examples

pytestmark = pytest.mark.usefixtures("one_process_is_this")

# Few values, so that images are the same and near the threshold.
_DIGESTS = st.integers(0, 15).map(lambda value: value << 60)
_IMAGES = st.lists(st.tuples(_DIGESTS, st.integers(0, 3)), min_size=1, max_size=30)


def choose(images: list[tuple[int, int]], fraction: float) -> list[bool]:
    digests, classes = np.transpose(np.array(images, np.uint64))
    return holdout.choose(digests, classes.astype(np.int32), fraction).tolist()


@settings(max_examples=50)
@given(_IMAGES, st.sampled_from([0.0625, 0.1, 0.5, 0.9]))
def test_a_class_has_images_on_both_sides_and_copies_stay_on_one(images, fraction):
    is_held = dict(zip(images, choose(images, fraction), strict=True))
    classes = collections.defaultdict(set)
    for digest, index in images:
        classes[index].add(digest)
    sides = {(digest, is_held[digest, index]) for digest, index in images}
    assert len(sides) == len({digest for digest, _ in sides})
    for index, own in classes.items():
        assert not all(is_held[digest, index] for digest in own)
    # The laws in sets: what may be held out, but for what a class needs to train on.
    limit = fraction * 2**64
    low = {digest for digest, _ in images if digest < limit}
    low |= {min(own) for own in classes.values() if len(own) > 1 and min(own) >= limit}
    needed = {max(own) for own in classes.values() if own <= low}
    assert {digest for digest, held in sides if held} == low - needed


@given(_IMAGES, st.sampled_from([0.25, 0.5]))
def test_where_classes_have_images_below_and_above_it_is_the_content_alone(
    images, fraction
):
    limit = int(fraction * 2**64)
    both = {(side, index) for _, index in images for side in (limit - 1, limit)}
    images += sorted(both)  # So no other image, of now or later, makes a difference.
    assert choose(images, fraction) == [digest < limit for digest, _ in images]


def test_the_fraction_is_that_of_a_large_class_and_a_larger_one_holds_more():
    digests = np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64)
    classes = np.arange(20_000, dtype=np.int32) % 4
    tenth, half = (holdout.choose(digests, classes, share) for share in (0.1, 0.5))
    for of_class in range(4):
        assert abs(tenth[classes == of_class].mean() - 0.1) < 0.02
    assert half[tenth].all()
    assert half.mean() == pytest.approx(0.5, abs=0.02)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(2, 1000))
def test_each_digest_is_in_one_fold(digests, num_folds):
    array = np.array([*digests, 0, 2**64 - 1], np.uint64)
    folds = {digest * num_folds >> 64 for digest in map(int, array)}
    sides = {fold: holdout.in_fold(array, fold + 1, num_folds) for fold in folds}
    assert sum(sides.values()).tolist() == [1] * len(array)
    for fold, is_held in sides.items():
        expected = [int(digest) * num_folds >> 64 == fold for digest in array]
        assert is_held.tolist() == expected


def source_of(groups, classes) -> Source:
    entries = [
        Entry("/none", str(number), index) for number, index in enumerate(classes)
    ]
    images = ImageList.of(tuple("abcd"), entries)
    groups = tuple(map(str, groups))
    return Source(images.class_names, {"train": images}, {}, groups=groups)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30),
    st.sampled_from(
        [*({"fold": f"{k}/3"} for k in (1, 2, 3)), {"validation_fraction": 0.4}]
    ),
    st.integers(0, 5),
)
def test_a_group_is_on_one_side(images, options, seed):
    groups, classes = zip(*images, strict=True)
    source = source_of(groups, classes)
    flags = Options(shuffle_seed=seed, **options)
    try:
        splits = holdout.hold_out(source, flags, 1).splits
    except UserError:  # Nothing can be held out.
        reject()
    names = {s: [int(image.filename) for image in splits[s]] for s in splits}
    assert sorted(names["train"] + names["validation"]) == [*range(len(images))]
    sides = {split: {groups[number] for number in names[split]} for split in splits}
    assert sides["train"].isdisjoint(sides["validation"])
    if "fold" not in options:  # As many classes as can be are on both sides.
        assert set(splits["train"].class_indices) == set(classes)


def test_folds_of_groups_are_those_of_their_names():
    source = source_of(range(40), [0, 1] * 20)
    held = []
    for fold in (1, 2, 3, 4):
        divided = holdout.hold_out(source, Options(fold=f"{fold}/4"), 1)
        held += [int(image.filename) for image in divided.splits["validation"]]
        for image in divided.splits["validation"]:
            digest = hashlib.sha256(f"0/{image.filename}".encode()).hexdigest()
            assert int(digest[:16], 16) * 4 >> 64 == fold - 1
    assert sorted(held) == [*range(40)]


def test_a_class_that_a_fold_lacks_is_named():
    source = source_of(range(10), [0] * 9 + [1])
    for fold in (1, 2):
        divided = holdout.hold_out(source, Options(fold=f"{fold}/2"), 1)
        is_held = len(divided.splits["validation"].class_indices.nonzero()[0])
        side = "training" if is_held else "validation"
        assert divided.warnings == (f"there are no {side} images of classes: 'b'",)


@pytest.fixture
def raw(tmp_path):
    """Folders of 20 images of a, 5 of b with a copy of one, and 2 copies of c."""
    root = tmp_path / "raw"
    for number in range(20):
        write(root / "a" / f"{number}.jpg", encoded_image(number))
    for number in range(5):
        write(root / "b" / f"{number}.jpg", encoded_image(30 + number))
    write(root / "b" / "copy.jpg", encoded_image(31))
    for number in range(2):
        write(root / "c" / f"{number}.jpg", encoded_image(40))
    return root


def held_out(records) -> set[str]:
    return {f"{e['class']}/{e['file']}" for e in read_examples(records, "validation")}


def test_the_same_files_are_held_out_also_when_others_are_renamed_or_added(
    raw, tmp_path
):
    flags = ("--validation_fraction=0.3", "--num_processes=1")
    done = succeeded(convert_here(raw, tmp_path / "one", *flags))
    assert "classes with one image, or copies of one: 'c'" in done.stderr
    assert "--validation_fraction" not in done.stderr
    first = held_out(tmp_path / "one")
    assert {"a", "b"} == {name[0] for name in first}
    assert ("b/1.jpg" in first) == ("b/copy.jpg" in first)
    assert len(first) + len(read_examples(tmp_path / "one", "train")) == 28
    for number in range(3):
        write(raw / "a" / f"0{number}.jpg", encoded_image(50 + number))
    (raw / "a" / "3.jpg").rename(raw / "a" / "zz.jpg")
    assert convert_here(raw, tmp_path / "two", *flags).returncode == 0
    more = {name.replace("zz", "3") for name in held_out(tmp_path / "two")}
    assert more - {f"a/0{number}.jpg" for number in range(3)} == first
    source = manifest.load(str(tmp_path / "two"), "train").manifest.source
    assert source["validation_fraction"] == 0.3

    assert (
        convert_here(raw, tmp_path / "three", *flags, "--shuffle_seed=1").returncode
        == 0
    )
    assert held_out(tmp_path / "three") != held_out(tmp_path / "two")
    before = content(tmp_path / "two")
    assert convert_here(raw, tmp_path / "two", *flags).returncode == 0
    assert content(tmp_path / "two") == before


def test_folds_of_a_folder_are_other_images_each_time(raw, tmp_path):
    held = []
    for fold in (1, 2, 3):
        records = tmp_path / f"{fold}"
        done = convert_here(raw, records, f"--fold={fold}/3", "--num_processes=1")
        assert done.returncode == 0, done.stderr
        held += held_out(records)
    assert sorted(held) == sorted(
        f"{path.parent.name}/{path.name}" for path in raw.rglob("*.jpg")
    )
    source = manifest.load(str(records), "train").manifest.source
    assert source["fold"] == "3/3"


def test_a_source_without_validation_is_converted_and_told_how_to_get_one(
    raw, tmp_path
):
    done = succeeded(convert_here(raw, tmp_path / "records", "--num_processes=1"))
    assert "no validation split" in done.stderr
    assert "--validation_fraction=0.1" in done.stderr
    contents = manifest.load(str(tmp_path / "records"), "train").manifest
    assert list(contents.splits) == ["train"]


def test_what_can_not_be_held_out_is_refused(raw, tmp_path):
    flag = "--validation_fraction=0.5"
    for name in ("a", "b"):
        for path in (raw / name).iterdir():
            path.write_bytes(encoded_image(1))
    records = tmp_path / "records"
    done = convert_here(raw, records, flag, "--num_processes=1")
    assert done.returncode == 2
    assert "a class of at least two different images" in done.stderr.splitlines()[-1]
    for value in ("1", "-0.1", "nan"):
        refused = convert_here(raw, records, f"--validation_fraction={value}")
        assert_refused(refused, "validation_fraction")
    for flags, message in (
        (["--fold=2/5", flag], "not both"),
        *([[f"--fold={text}"], "must be K/N"] for text in ("0/5", "6/5", "1/1", "2")),
        (["--group_column=part", flag], "requires --labels"),
    ):
        assert_refused(convert_here(raw, records, *flags), message)
    table = tmp_path / "labels.csv"
    table.write_text("path,label,part\na/0.jpg,a,1\n")
    flags = f"--labels={table}", "--group_column=part"
    assert_refused(
        convert_here(raw, records, *flags), "--validation_fraction or --fold"
    )
    assert_refused(convert_here(raw, records, *flags, "--fold=1/2"), "outside of the")
    write(tmp_path / "whole" / "train" / "a" / "1.jpg", encoded_image(1))
    write(tmp_path / "whole" / "val" / "a" / "1.jpg", encoded_image(1))
    refused = convert_here(tmp_path / "whole", records, flag)
    assert_refused(refused, "this one has 1 validation images")
    refused = convert_here(tmp_path / "whole", records, "--fold=1/2")
    assert_refused(refused, "--fold is for")
    assert not records.exists()


def test_the_choice_does_not_depend_on_the_chunks(raw, monkeypatch):
    options = Options(validation_fraction=0.3)
    held = []
    for count in (256, 3):
        monkeypatch.setattr(holdout, "_CHUNK", count)
        source = holdout.hold_out(raw_data.open_raw_data(raw), options, 1)
        held.append([image.name for image in source.splits["validation"]])
    assert held[0] == held[1]
    with pytest.raises(UserError, match="without a validation split"):
        holdout.hold_out(source, options, 1)
