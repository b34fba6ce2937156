"""Class folders, and which kind of source a folder is."""

import re

import pytest

from data_prep.sources import folders, imagenet_labels, raw_data
from resnet.base.errors import UserError


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def names(images):
    return [(image.class_name, image.filename) for image in images]


def test_class_folders_are_listed_by_class_and_name(tmp_path, monkeypatch):
    touch(tmp_path, "raw/train/b/2.JPEG", "raw/train/b/1.png", "raw/train/a/9.JpG")
    touch(tmp_path, "raw/validation/b/7.webp")
    monkeypatch.chdir(tmp_path)
    source = raw_data.open_raw_data("raw")
    assert source.class_names == ("a", "b")
    train, validation = source.splits["train"], source.splits["validation"]
    assert names(train) == [("a", "9.JpG"), ("b", "1.png"), ("b", "2.JPEG")]
    assert train.class_indices.tolist() == [0, 1, 1]
    assert train[0].path == str(tmp_path / "raw/train/a/9.JpG")
    assert names(validation) == [("b", "7.webp")]
    assert validation.class_indices.tolist() == [1]
    assert validation.class_names == ("a", "b")
    assert source.num_ignored_files == 0
    assert source.class_descriptions == source.warnings == ()
    assert source.description == {"raw_data_dir": str(tmp_path / "raw")}


def test_hidden_files_are_passed_over_and_others_counted_by_kind(tmp_path):
    touch(tmp_path, "train/a/1.jpe", "train/a/2.JFIF", "train/a/3.psd", "train/a/4.PSD")
    touch(tmp_path, "train/a/.5.jpg", "train/.cache/6.jpg", "val/empty/.hidden")
    touch(
        tmp_path,
        "train/a/b/7.jpg",
        "train/a/b/c/7.jpg",
        "train/8.jpg",
        "train/README",
        "val/x.txt",
    )
    touch(tmp_path, "val/a/9.jpg", "val/a/10.heic")
    source = folders.read(tmp_path)
    assert names(source.splits["train"]) == [("a", "1.jpe"), ("a", "2.JFIF")]
    assert names(source.splits["validation"]) == [("a", "9.jpg")]
    assert source.ignored_kinds == {
        ".heic": 1,
        ".psd": 2,
        ".txt": 1,
        "file without an extension": 1,
        "folder in a class folder": 1,
        "image in a folder in a class folder": 2,
        "image outside of the class folders": 1,
    }
    assert source.num_ignored_files == 9


def test_a_class_name_is_the_same_in_either_form_of_unicode(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    touch(tmp_path, f"train/{decomposed}/1.jpg", "train/b/2.jpg")
    source = folders.read(tmp_path)
    assert source.class_names == ("b", composed)
    train = {image.path for image in source.splits["train"]}
    assert str(tmp_path / "train" / decomposed / "1.jpg") in train
    touch(tmp_path, f"val/{composed}/4.jpg")
    validation = folders.read(tmp_path).splits["validation"]
    assert names(validation) == [(composed, "4.jpg")]
    touch(tmp_path, f"train/{composed}/5.jpg")
    with pytest.raises(UserError, match="are the same name"):
        folders.read(tmp_path)


def test_links_are_followed_and_broken_ones_refused(tmp_path):
    touch(tmp_path, "elsewhere/1.jpg")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "2.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    source = folders.read(tmp_path)
    assert names(source.splits["train"]) == [("a", "1.jpg"), ("a", "2.jpg")]
    (tmp_path / "elsewhere" / "3.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(UserError, match=r"a/3\.jpg is a broken link"):
        folders.read(tmp_path)


def test_imagenets_validation_images_are_told_by_their_numbers(tmp_path):
    numbers = (50_000, 2, 1)
    touch(tmp_path, *(f"val/ILSVRC2012_val_{n:08d}.JPEG" for n in numbers))
    expected = [
        ("n01751748", "ILSVRC2012_val_00000001.JPEG"),
        ("n02437616", "ILSVRC2012_val_00050000.JPEG"),
        ("n09193705", "ILSVRC2012_val_00000002.JPEG"),
    ]
    alone = folders.read(tmp_path)
    assert names(alone.splits["validation"]) == expected
    assert alone.class_names == imagenet_labels.synsets()
    touch(tmp_path, *(f"train/{class_name}/1.jpg" for class_name, _ in expected))
    with_train = folders.read(tmp_path)
    assert names(with_train.splits["validation"]) == expected
    assert with_train.class_names == ("n01751748", "n02437616", "n09193705")


def test_a_folder_is_chosen_and_what_lies_beside_it_is_counted_and_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/a/3.jpg", "holdout/a/4.jpg")
    touch(tmp_path, "README", ".cache/1", "synset_labels.txt")
    for split, other in (("test", "val"), ("holdout", "test")):
        source = raw_data.open_raw_data(tmp_path, split)
        (image,) = source.splits["validation"]
        assert image.path.startswith(str(tmp_path / split))
        (warning,) = source.warnings
        assert warning.startswith(
            f"not converted of the files and folders in {tmp_path}, 3"
        )
        assert f"'{other}'" in warning
    for split in ("train", "absent"):
        with pytest.raises(UserError, match=f"--validation_split={split} must name a"):
            raw_data.open_raw_data(tmp_path, split)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "test").symlink_to(tmp_path / "test")
    source = raw_data.open_raw_data(tmp_path / "alone")
    assert (list(source.splits), source.warnings) == (["validation"], ())


@pytest.mark.parametrize("folder", ["validation", "valid", "dev", "Test", "TESTING"])
def test_the_validation_folder_has_one_of_some_names(tmp_path, folder):
    touch(tmp_path, f"{folder}/b/2.jpg", f"{folder}/a/2.jpg")
    source = folders.read(tmp_path)
    assert (list(source.splits), source.class_names) == (["validation"], ("a", "b"))
    train = "train" if folder.islower() else "Training"
    touch(tmp_path, *(f"{train}/{name}/1.jpg" for name in "abc"))
    source = folders.read(tmp_path)
    assert list(source.splits) == ["train", "validation"]
    assert names(source.splits["validation"]) == [("a", "2.jpg"), ("b", "2.jpg")]
    assert folders.find(tmp_path) == [tmp_path / train, tmp_path / folder]
    touch(tmp_path, "TRAIN/a/1.jpg")
    with pytest.raises(UserError, match=r"one train split.*; there are .*TRAIN"):
        folders.find(tmp_path)


def test_folders_of_classes_need_no_folder_of_the_split(tmp_path):
    touch(tmp_path, "raw/b/2.jpg", "raw/a/1.jpg", "raw/a/x.txt", "raw/README")
    touch(tmp_path, "raw/records/train/train-00000-of-00001", "raw/.cache/1.jpg")
    source = raw_data.open_raw_data(tmp_path / "raw")
    assert names(source.splits["train"]) == [("a", "1.jpg"), ("b", "2.jpg")]
    assert list(source.splits) == ["train"]
    assert source.ignored_kinds == {".txt": 1}
    (warning,) = source.warnings
    assert ", 2: " in warning
    assert "'README', 'records'" in warning
    touch(tmp_path, "raw/train/3.jpg")
    assert raw_data.open_raw_data(tmp_path / "raw").class_names == ("a", "b", "train")


@pytest.mark.parametrize(
    ("folder", "advice"),
    [
        ("..", "Found folders train, val in RAW: pass --raw_data_dir=RAW."),
        (
            "train/a",
            "Found folders train, val in RAW: pass --raw_data_dir=RAW, or name",
        ),
        ("more", "Found class folders n1, n2 in RAW/more/in: pass .*_dir=RAW/more/in."),
        ("more/in/n1", "class folders n1, n2 in RAW/more/in: pass .*, or .*--labels="),
        ("flat/x", "images in RAW/flat/x, not in folders of several .*--labels=FILE"),
        ("flat", "images in RAW/flat/x, not in folders of several .*--labels=FILE"),
        ("deep", "1 contain none: 'b'. Found images in RAW/deep/train/b/images, not"),
    ],
)
def test_another_level_is_named(tmp_path, folder, advice):
    root = tmp_path / "raw"
    touch(root, *(f"{split}/{c}/1.jpg" for split in ("train", "val") for c in "ab"))
    touch(root, "more/in/n1/1.jpg", "more/in/n2/1.jpg", "flat/x/1.png", "flat/y/1.txt")
    touch(root, "deep/train/a/1.jpg", "deep/train/b/images/1.jpg")
    with pytest.raises(UserError) as caught:
        raw_data.open_raw_data(root / folder)
    assert re.search(advice, str(caught.value).replace(str(root), "RAW"))


def test_the_folder_of_a_split_is_read_as_that_and_the_others_are_named(tmp_path):
    touch(
        tmp_path, *(f"{split}/{c}/1.jpg" for split in ("train", "test") for c in "ab")
    )
    touch(tmp_path, "val/a/1.jpg")
    for folder, split, beside in (
        ("train", "train", "test and val"),
        ("test", "validation", "train"),
    ):
        source = raw_data.open_raw_data(tmp_path / folder)
        assert list(source.splits) == [split]
        (warning,) = source.warnings
        assert warning.startswith(f"{beside} beside {tmp_path / folder} ")
        assert warning.endswith(f"--raw_data_dir={tmp_path}")
    (tmp_path / "train").rename(tmp_path / "other")  # Now it is only a name.
    assert list(raw_data.open_raw_data(tmp_path / "test").splits) == ["train"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train/1.txt"], "one folder per class; it contains no folders"),
        (["train/1.jpg"], "Found images in .*/train, not in folders of several"),
        (["train/a/1.jpg", "train/b/1.txt"], "1 contain none: 'b'"),
        (
            ["train/a/1.jpg", "valid/a/1.jpg", "test/a/1.jpg"],
            "there are valid and test. Choose one, as --validation_split=valid",
        ),
        (["val/1.jpg", "val/a/1.jpg"], "contains both, .* 'a' and '1.jpg'"),
        (["val/1.txt"], "must contain images; it contains none"),
        (
            ["val/ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00050001.JPEG"],
            "1 have others, such as 'ILSVRC2012_val_00050001.JPEG'.*--labels=FILE",
        ),
        (
            ["train/a/1.jpg", "val/ILSVRC2012_val_00000001.JPEG"],
            "1 have none: 'n01751748'",
        ),
        (
            ["train/a/1.jpg", *(f"val/{c}/1.jpg" for c in "bcdefg")],
            "6 have none: 'b', 'c', 'd', 'e' and 2 more",
        ),
        (["a/1.jpg"], r"<class>/ of at least two classes.* images in .*/a, not in"),
        (
            ["train/a/1.jpg", "cifar-10-binary.tar.gz"],
            "there are cifar-10-binary.tar.gz and train/. Name a folder with one of",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, files, message):
    touch(tmp_path, *files)
    with pytest.raises(UserError, match=message):
        raw_data.open_raw_data(tmp_path)
    with pytest.raises(UserError, match="absent does not exist"):
        raw_data.open_raw_data(tmp_path / "absent")
