import json
import tarfile

import pytest

from data_prep.sources import archives, imagenet_labels, raw_data
from resnet.base.errors import UserError


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def _header(name: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = 3
    return info.tobuf(tarfile.GNU_FORMAT)


def write_validation_archive(folder, num_images: int) -> None:
    name = "ILSVRC2012_val_{:08d}.JPEG"
    # Making a header takes longer than changing its name and its sum of bytes, which
    # are at the bytes 0 and 148 of it.
    first = _header(name.format(0))
    total, data = int(first[148:154], 8), b"abc".ljust(tarfile.BLOCKSIZE)
    parts = []
    for number in range(1, num_images + 1):
        encoded = name.format(number).encode()
        changed = total + sum(encoded) - sum(first[: len(encoded)])
        parts += [encoded, first[len(encoded) : 148], b"%06o" % changed, first[154:]]
        parts.append(data)
    assert b"".join(parts[:4]) == _header(name.format(1))
    parts.append(bytes(2 * tarfile.BLOCKSIZE))
    (folder / archives.VALIDATION_ARCHIVE).write_bytes(b"".join(parts))


def test_folders_are_opened(tmp_path):
    touch(tmp_path, "train/b/1.jpg", "train/a/1.jpg", "val/a/1.jpg", "train/x.txt")
    raw = raw_data.open_raw_data(tmp_path)
    assert raw.class_names == ("a", "b")
    assert raw.class_descriptions == ()
    assert {split: len(images) for split, images in raw.splits.items()} == {
        "train": 2,
        "validation": 1,
    }
    assert raw.num_ignored_files == 1
    assert raw.description == {"raw_data_dir": str(tmp_path)}
    assert raw.warnings == ()


def test_folders_named_by_synsets_are_described(tmp_path):
    touch(tmp_path, "train/n01443537/1.jpg", "train/n15075141/1.jpg")
    raw = raw_data.open_raw_data(tmp_path)
    assert raw.class_descriptions == (
        "goldfish, Carassius auratus",
        "toilet tissue, toilet paper, bathroom tissue",
    )


def test_archives_have_imagenets_classes_and_say_what_is_missing(tmp_path):
    write_validation_archive(tmp_path, 3)
    raw = raw_data.open_raw_data(tmp_path)
    assert raw.class_names == imagenet_labels.synsets()
    assert raw.class_descriptions == imagenet_labels.words()
    assert list(raw.splits) == ["validation"]
    assert raw.description == {
        "raw_data_dir": str(tmp_path),
        "archives": True,
        "incomplete": ["validation holds 3 of 50,000 images"],
    }
    assert json.loads(json.dumps(raw.description)) == raw.description
    assert raw.warnings == (
        "validation holds 3 of 50,000 images of ImageNet; the archive lacks the others",
    )


def test_a_whole_archive_has_every_class_fifty_times(tmp_path):
    write_validation_archive(tmp_path, 50_000)
    raw = raw_data.open_raw_data(tmp_path)
    images = raw.splits["validation"]
    assert raw.warnings == ()
    assert "incomplete" not in raw.description
    assert images.class_indices.tolist() == [i // 50 for i in range(50_000)]
    assert images.num_bytes_estimate() == 150_000
    assert images[49_999].read() == b"abc"


def test_a_relative_folder_is_told_by_its_whole_path(tmp_path, monkeypatch):
    touch(tmp_path, "raw/train/a/1.jpg")
    monkeypatch.chdir(tmp_path)
    raw = raw_data.open_raw_data("raw")
    assert raw.description == {"raw_data_dir": str(tmp_path / "raw")}
    assert raw.splits["train"][0].path == str(tmp_path / "raw/train/a/1.jpg")


def test_a_folder_with_nothing_in_it_is_refused(tmp_path):
    message = (
        f"expected a folder named train or validation, val, test in {tmp_path}, or"
        " ILSVRC2012_img_train.tar or ILSVRC2012_img_val.tar, or"
        " cifar-10-binary.tar.gz or cifar-10-python.tar.gz; it contains none of them"
    )
    with pytest.raises(UserError, match=message):
        raw_data.open_raw_data(tmp_path)


def test_archives_beside_folders_are_refused(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "ILSVRC2012_img_val.tar")
    message = "there are ILSVRC2012_img_val.tar and train/. Remove all but one kind"
    with pytest.raises(UserError, match=message):
        raw_data.open_raw_data(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="absent is not a folder"):
        raw_data.open_raw_data(tmp_path / "absent")
