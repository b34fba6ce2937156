import os

import pytest

from data_prep.sources import folders, imagenet_labels
from resnet.base.errors import UserError


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def names(images):
    return [(image.class_name, image.filename) for image in images]


def test_class_folders_are_listed_by_class_and_name(tmp_path):
    touch(tmp_path, "train/b/2.JPEG", "train/b/1.png", "train/a/9.JpG")
    touch(tmp_path, "validation/b/7.webp")
    listing = folders.read(tmp_path)
    assert listing.class_names == ("a", "b")
    train = listing.splits["train"]
    assert names(train) == [("a", "9.JpG"), ("b", "1.png"), ("b", "2.JPEG")]
    assert train.class_indices.tolist() == [0, 1, 1]
    assert train[0].path == str(tmp_path / "train" / "a" / "9.JpG")
    validation = listing.splits["validation"]
    assert names(validation) == [("b", "7.webp")]
    assert validation.class_indices.tolist() == [1]
    assert validation.class_names == ("a", "b")
    assert listing.num_ignored_files == 0


def test_hidden_files_are_passed_over_and_other_files_counted(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/a/.2.jpg", "train/.cache/3.jpg")
    touch(tmp_path, "train/README", "train/a/notes.txt", "train/loose.jpg")
    touch(tmp_path, "val/a/1.jpg", "val/a/more/2.jpg", "val/empty/.hidden", "val/x.txt")
    listing = folders.read(tmp_path)
    assert names(listing.splits["train"]) == [("a", "1.jpg")]
    assert names(listing.splits["validation"]) == [("a", "1.jpg")]
    assert listing.num_ignored_files == 3 + 2


def test_what_is_ignored_is_counted_by_its_kind(tmp_path):
    touch(tmp_path, "train/a/1.jpe", "train/a/2.JFIF", "train/a/3.tif", "train/a/4.TIF")
    touch(tmp_path, "train/a/b/5.jpg", "train/6.jpg", "train/README", "val/a/7.heic")
    touch(tmp_path, "val/a/8.jpg")
    listing = folders.read(tmp_path)
    assert names(listing.splits["train"]) == [("a", "1.jpe"), ("a", "2.JFIF")]
    assert listing.ignored_kinds == {
        ".tif": 2,
        ".heic": 1,
        "folder in a class folder": 1,
        "image outside of the class folders": 1,
        "file without an extension": 1,
    }


def test_links_are_followed(tmp_path):
    touch(tmp_path, "elsewhere/1.jpg")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "2.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    listing = folders.read(tmp_path)
    assert names(listing.splits["train"]) == [("a", "1.jpg"), ("a", "2.jpg")]
    assert listing.num_ignored_files == 0


def test_flat_validation_images_take_their_classes_from_the_labels_file(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg")
    touch(tmp_path, *(f"validation/v{i}.JPEG" for i in (3, 1, 2)))
    (tmp_path / "synset_labels.txt").write_text("b\na\nb\n")  # Of v1, v2, v3.
    listing = folders.read(tmp_path)
    validation = listing.splits["validation"]
    assert names(validation) == [("a", "v2.JPEG"), ("b", "v1.JPEG"), ("b", "v3.JPEG")]
    assert validation.class_indices.tolist() == [0, 1, 1]
    assert validation[0].path == str(tmp_path / "validation" / "v2.JPEG")


def test_the_labels_file_may_be_as_windows_writes_it(tmp_path):
    touch(tmp_path, "val/1.jpg", "val/2.jpg", "val/3.jpg")
    labels = "\ufeffcat \r\ndog\x85house\r\ncat\r\n\r\n"
    (tmp_path / "synset_labels.txt").write_bytes(labels.encode())
    listing = folders.read(tmp_path)
    assert listing.class_names == ("cat", "dog\x85house")


def test_a_pipe_in_place_of_the_labels_file_is_refused(tmp_path):
    touch(tmp_path, "val/1.jpg")
    os.mkfifo(tmp_path / "synset_labels.txt")
    with pytest.raises(UserError, match="not a regular file"):
        folders.read(tmp_path)


def test_imagenets_validation_images_are_told_by_their_numbers(tmp_path):
    numbers = (50_000, 2, 1)
    files = [f"val/ILSVRC2012_val_{number:08d}.JPEG" for number in numbers]
    touch(tmp_path, *files, "train/n01751748/1.jpg", "train/n02437616/1.jpg")
    touch(tmp_path, "train/n09193705/1.jpg")
    listing = folders.read(tmp_path)
    assert listing.class_names == ("n01751748", "n02437616", "n09193705")
    assert names(listing.splits["validation"]) == [
        ("n01751748", "ILSVRC2012_val_00000001.JPEG"),
        ("n02437616", "ILSVRC2012_val_00050000.JPEG"),
        ("n09193705", "ILSVRC2012_val_00000002.JPEG"),
    ]


def test_imagenets_validation_images_alone_have_all_its_classes(tmp_path):
    touch(tmp_path, "val/ILSVRC2012_val_00000002.JPEG")
    listing = folders.read(tmp_path)
    assert listing.class_names == imagenet_labels.synsets()
    (image,) = listing.splits["validation"]
    assert image.class_name == "n09193705"


def test_a_link_to_an_image_that_is_not_there_is_refused(tmp_path):
    touch(tmp_path, "train/a/1.jpg")
    (tmp_path / "train" / "a" / "2.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(UserError, match=r"a/2\.jpg is a broken link"):
        folders.read(tmp_path)
    (tmp_path / "train" / "a" / "2.jpg").unlink()
    (tmp_path / "train" / "a" / "2.jpg").symlink_to("1.jpg")
    assert len(folders.read(tmp_path).splits["train"]) == 2


def test_labels_that_are_not_imagenets_are_said(tmp_path):
    # Those of 1 and 2 are n01751748 and n09193705: here they have changed places.
    touch(tmp_path, *(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in (1, 2)))
    labels_file = tmp_path / "synset_labels.txt"
    labels_file.write_text("n09193705\nn01751748\n")
    (warning,) = folders.read(tmp_path).warnings
    assert "2 of 2 images" in warning
    assert "00000001.JPEG: n09193705 in the file, n01751748 published" in warning
    labels_file.write_text("n01751748\nn09193705\n")
    assert folders.read(tmp_path).warnings == ()


def test_wrong_labels_of_all_of_imagenet_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.imagenet_labels, "NUM_VALIDATION", 2)
    monkeypatch.setattr(
        folders.imagenet_labels,
        "validation_synset",
        lambda name: {"1.JPEG": "n1", "2.JPEG": "n2"}[name],
    )
    touch(tmp_path, "val/1.JPEG", "val/2.JPEG")
    (tmp_path / "synset_labels.txt").write_text("n2\nn1\n")
    with pytest.raises(UserError, match="Delete the file"):
        folders.read(tmp_path)


def test_a_labels_file_goes_before_the_numbers(tmp_path):
    touch(tmp_path, "val/ILSVRC2012_val_00000002.JPEG")
    (tmp_path / "synset_labels.txt").write_text("cat\n")
    listing = folders.read(tmp_path)
    assert listing.class_names == ("cat",)


@pytest.mark.parametrize("folder", ["validation", "val", "test"])
def test_the_validation_folder_has_one_of_three_names(tmp_path, folder):
    touch(tmp_path, "train/a/1.jpg", f"{folder}/a/2.jpg")
    listing = folders.read(tmp_path)
    assert names(listing.splits["validation"]) == [("a", "2.jpg")]
    assert folders.find(tmp_path) == [tmp_path / "train", tmp_path / folder]


def test_one_split_alone_is_enough(tmp_path):
    touch(tmp_path, "one/train/a/1.jpg", "other/val/b/1.jpg", "other/val/a/2.jpg")
    assert list(folders.read(tmp_path / "one").splits) == ["train"]
    listing = folders.read(tmp_path / "other")
    assert list(listing.splits) == ["validation"]
    assert listing.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("files", "labels", "message"),
    [
        (["train/1.jpg"], None, "one folder per class; it contains no folders"),
        (["train/a/1.jpg", "train/b/1.txt"], None, "1 contain none: 'b'"),
        (
            ["val/a/1.jpg", "test/a/1.jpg"],
            None,
            "expected one folder with validation images",
        ),
        (
            ["val/1.jpg", "val/a/1.jpg"],
            None,
            "it contains both, for example 'a' and '1.jpg'",
        ),
        (["val/1.txt"], None, "must contain images; it contains none"),
        (["val/1.jpg"], None, "synset_labels.txt must contain the class"),
        (
            ["val/ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00050001.JPEG"],
            None,
            "synset_labels.txt must contain the class",
        ),
        (["val/1.jpg"], "a\nb\n", "each of the 1 images in .*; it has 2"),
        (["val/1.jpg", "val/2.jpg"], "\na", "line 1 is empty"),
        (["train/a/1.jpg", "val/c/1.jpg"], None, "1 have none: 'c'"),
        (["train/a/1.jpg", "val/1.jpg"], "c", "1 have none: 'c'"),
        (
            ["train/a/1.jpg", *(f"val/{c}/1.jpg" for c in "bcdefg")],
            None,
            "6 have none: 'b', 'c', 'd', 'e', 'f', ...",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, files, labels, message):
    touch(tmp_path, *files)
    if labels is not None:
        (tmp_path / "synset_labels.txt").write_text(labels)
    with pytest.raises(UserError, match=message):
        folders.read(tmp_path)
