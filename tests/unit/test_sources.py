import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import sources
from data_prep.errors import UserError
from data_prep.sources import SourceImage


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def names(images):
    return [(image.class_name, image.filename) for image in images]


def test_class_folders_are_listed_by_class_and_name(tmp_path):
    touch(tmp_path, "train/b/2.JPEG", "train/b/1.png", "train/a/9.JpG")
    touch(tmp_path, "validation/b/7.webp")
    raw = sources.list_raw_folder(tmp_path)
    assert raw.class_names == ("a", "b")
    assert names(raw.splits["train"]) == [
        ("a", "9.JpG"),
        ("b", "1.png"),
        ("b", "2.JPEG"),
    ]
    assert names(raw.splits["validation"]) == [("b", "7.webp")]
    assert raw.splits["train"][0].path == str(tmp_path / "train" / "a" / "9.JpG")
    assert raw.num_ignored_files == 0


def test_hidden_files_are_passed_over_and_other_files_counted(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/a/.2.jpg", "train/.cache/3.jpg")
    touch(tmp_path, "train/README", "train/a/notes.txt", "train/loose.jpg")
    raw = sources.list_raw_folder(tmp_path)
    assert names(raw.splits["train"]) == [("a", "1.jpg")]
    assert raw.num_ignored_files == 3


def test_flat_validation_pictures_take_their_classes_from_the_labels_file(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg")
    touch(tmp_path, *(f"validation/v{i}.JPEG" for i in (3, 1, 2)))
    (tmp_path / "synset_labels.txt").write_text("b\na\nb\n")  # Of v1, v2, v3.
    raw = sources.list_raw_folder(tmp_path)
    assert names(raw.splits["validation"]) == [
        ("a", "v2.JPEG"),
        ("b", "v1.JPEG"),
        ("b", "v3.JPEG"),
    ]


@pytest.mark.parametrize("folder", ["validation", "val", "test"])
def test_the_validation_folder_has_one_of_three_names(tmp_path, folder):
    touch(tmp_path, "train/a/1.jpg", f"{folder}/a/2.jpg")
    assert names(sources.list_raw_folder(tmp_path).splits["validation"]) == [
        ("a", "2.jpg")
    ]


def test_one_split_alone_is_enough(tmp_path):
    touch(tmp_path, "one/train/a/1.jpg", "other/val/b/1.jpg", "other/val/a/2.jpg")
    assert list(sources.list_raw_folder(tmp_path / "one").splits) == ["train"]
    raw = sources.list_raw_folder(tmp_path / "other")
    assert list(raw.splits) == ["validation"]
    assert raw.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("files", "labels", "message"),
    [
        ([], None, "expected a folder named train or validation, val, test"),
        (["train/1.jpg"], None, "one folder for each class; it holds none"),
        (["train/a/1.jpg", "train/b/1.txt"], None, "1 hold none: 'b'"),
        (["val/a/1.jpg", "test/a/1.jpg"], None, "in one folder, and there are"),
        (["val/1.jpg", "val/a/1.jpg"], None, "it holds both, such as 'a' and '1.jpg'"),
        (["val/1.txt"], None, "must hold pictures; it holds none"),
        (["val/1.jpg"], None, "synset_labels.txt must hold the class"),
        (["val/1.jpg"], "a\nb\n", "each of the 1 pictures of .*; it has 2"),
        (["val/1.jpg", "val/2.jpg"], "\na", "line 1 is empty"),
        (["train/a/1.jpg", "val/c/1.jpg"], None, "1 have none: 'c'"),
        (["train/a/1.jpg", "val/1.jpg"], "c", "1 have none: 'c'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, files, labels, message):
    touch(tmp_path, *files)
    if labels is not None:
        (tmp_path / "synset_labels.txt").write_text(labels)
    with pytest.raises(UserError, match=message):
        sources.list_raw_folder(tmp_path)


def test_a_raw_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="absent is none"):
        sources.list_raw_folder(tmp_path / "absent")


def test_the_order_is_that_of_the_stated_digests():
    images = [SourceImage(f"/raw/train/{c}/{i}.jpg", c) for c in "ab" for i in range(4)]

    def digest(image):
        text = f"7/train/{image.class_name}/{image.filename}"
        return hashlib.sha256(text.encode()).hexdigest()

    assert sources.shuffled(images, 7, "train") == sorted(images, key=digest)


def test_seed_and_split_change_the_order():
    images = [SourceImage(f"{i}.jpg", "a") for i in range(20)]
    orders = {
        tuple(sources.shuffled(images, seed, split))
        for seed in (0, 1)
        for split in ("train", "validation")
    }
    assert len(orders) == 4


@given(
    st.sets(st.tuples(st.sampled_from("abc"), st.text("xyz\udcff", min_size=1))),
    st.integers(),
    st.randoms(use_true_random=False),
)
def test_shuffling_is_a_permutation_whatever_the_listing_and_the_place(
    files, seed, random_order: random.Random
):
    images = [SourceImage(f"/raw/{name}", c) for c, name in files]
    relisted = [SourceImage(f"/elsewhere/{name}", c) for c, name in files]
    random_order.shuffle(relisted)
    shuffled = sources.shuffled(images, seed, "train")
    assert sorted(names(shuffled)) == sorted(names(images))
    assert names(shuffled) == names(sources.shuffled(relisted, seed, "train"))
