import io
import tarfile

import pytest

from data_prep.sources import archives, imagenet_labels, raw_data
from resnet.base.errors import UserError

TRAIN = archives.TRAIN_ARCHIVE
VALIDATION = archives.VALIDATION_ARCHIVE
TENCH, GOLDFISH = "n01440764", "n01443537"


def tar(members, tar_format=tarfile.GNU_FORMAT) -> bytes:
    """Returns an archive of `(name, content)`; a content of None is a folder."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, None if content is None else io.BytesIO(content))
    return file.getvalue()


def train_tar(images) -> bytes:
    """Returns an archive of archives, of `{synset: [(name, content)]}`."""
    return tar([(f"{synset}.tar", tar(inner)) for synset, inner in images.items()])


def validation_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


IMAGES = {
    GOLDFISH: [(f"{GOLDFISH}_7.JPEG", b"fish"), (f"{GOLDFISH}_10.JPEG", b"gold" * 999)],
    TENCH: [(f"{TENCH}_10026.JPEG", b"tench"), (f"{TENCH}_1.JPEG", b"")],
}


def test_images_are_read_where_they_lie_and_what_is_missing_is_said(tmp_path):
    (tmp_path / TRAIN).write_bytes(train_tar(IMAGES))
    (tmp_path / VALIDATION).write_bytes(tar([(validation_name(1), b"1")]))
    assert archives.find(tmp_path) == [tmp_path / TRAIN, tmp_path / VALIDATION]
    source = raw_data.open_raw_data(tmp_path)
    train = source.splits["train"]
    assert [(image.class_name, image.filename, image.read()) for image in train] == [
        (TENCH, f"{TENCH}_1.JPEG", b""),
        (TENCH, f"{TENCH}_10026.JPEG", b"tench"),
        (GOLDFISH, f"{GOLDFISH}_10.JPEG", b"gold" * 999),
        (GOLDFISH, f"{GOLDFISH}_7.JPEG", b"fish"),
    ]
    assert train.class_indices.tolist() == [0, 0, 1, 1]
    assert train[1].name == f"{tmp_path / TRAIN}: {TENCH}_10026.JPEG"
    assert len(source.splits["validation"]) == 1
    assert source.class_names == train.class_names == imagenet_labels.synsets()
    assert source.class_descriptions == imagenet_labels.words()
    assert source.num_ignored_files == 0
    missing = [
        "train holds 4 of 1,281,167 images",
        "validation holds 1 of 50,000 images",
    ]
    assert source.description["incomplete"] == missing
    assert [warning.split(" of ImageNet")[0] for warning in source.warnings] == missing


@pytest.mark.parametrize(
    ("folder", "tar_format"),
    [
        ("", tarfile.USTAR_FORMAT),
        ("./ILSVRC/2012/", tarfile.PAX_FORMAT),
        ("long/" * 25, tarfile.GNU_FORMAT),
    ],
)
def test_validation_images_are_told_by_their_numbers(tmp_path, folder, tar_format):
    members = [(f"{folder}{validation_name(n)}", b"%d" % n) for n in (50_000, 2, 1)]
    if folder:
        members.insert(0, (folder, None))
    (tmp_path / VALIDATION).write_bytes(tar(members, tar_format))
    images = archives.read(tmp_path).splits["validation"]
    assert [(image.class_name, image.filename, image.read()) for image in images] == [
        ("n01751748", validation_name(1), b"1"),
        ("n02437616", validation_name(50_000), b"50000"),
        ("n09193705", validation_name(2), b"2"),
    ]


def test_a_whole_archive_needs_no_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "NUM_IMAGES", {"validation": 1})
    (tmp_path / VALIDATION).write_bytes(tar([(validation_name(1), b"abc")]))
    source = archives.read(tmp_path)
    assert source.warnings == ()
    assert "incomplete" not in source.description
    assert source.splits["validation"].estimate_kept_bytes("jpeg") == 3


def test_hidden_files_are_passed_over_and_other_files_counted(tmp_path):
    inner = [(f"._{TENCH}_1.JPEG", b"x"), (f"{TENCH}_1.JPEG", b"1"), ("READ.ME", b"x")]
    members = [("LICENSE", b"x"), (".DS_Store", b"x"), (f"{TENCH}.tar", tar(inner))]
    (tmp_path / TRAIN).write_bytes(tar(members))
    members = [(validation_name(1), b"1"), ("labels.txt", b"x")]
    (tmp_path / VALIDATION).write_bytes(tar(members))
    source = archives.read(tmp_path)
    assert [image.read() for image in source.splits["train"]] == [b"1"]
    assert source.num_ignored_files == 3


def test_an_inner_archive_may_lack_its_end_mark(tmp_path):
    # Without the two empty blocks, the next header is that of the archive around it.
    inner = tar(IMAGES[TENCH])
    size = 512 * 3  # Header and content of the first, header of the empty second.
    members = [
        (f"{TENCH}.tar", inner[:size]),
        (f"{GOLDFISH}.tar", tar(IMAGES[GOLDFISH])),
    ]
    (tmp_path / TRAIN).write_bytes(tar(members))
    train = archives.read(tmp_path).splits["train"]
    assert train.class_indices.tolist() == [0, 0, 1, 1]


MEMBER = 512 + 1024  # A header, and 700 bytes in whole blocks.
INNER = tar([(f"{TENCH}_1.JPEG", bytes(700)), (f"{TENCH}_2.JPEG", bytes(700))])


@pytest.mark.parametrize(
    ("archive", "members", "message"),
    [
        (TRAIN, [("n00000000.tar", tar([]))], "it contains 'n00000000.tar'. Use the"),
        (TRAIN, [(f"{TENCH}.tar", b"")] * 2, "it contains .* twice"),
        (
            TRAIN,
            [(f"{TENCH}.tar", tar([("1.JPEG", b""), ("a/1.JPEG", b"")]))],
            r"n01440764.tar must contain each file once; it contains '1.JPEG' twice",
        ),
        (TRAIN, [(f"{TENCH}_1.JPEG", b"1")], "ImageNet's train .* contains none"),
        (TRAIN, [(f"{TENCH}.tar", b"x" * 1024)], "n01440764.tar is truncated or corr"),
        (
            TRAIN,
            [(f"{TENCH}.tar", INNER[: MEMBER + 600]), (f"{GOLDFISH}.tar", tar([]))],
            "n01440764.tar is truncated: its member n01440764_2.JPEG",
        ),
        (VALIDATION, [("cat.JPEG", b"1")], "one is named 'cat.JPEG'. Use the"),
        (VALIDATION, [(validation_name(50_001), b"1")], "'ILSVRC2012_val_00050001.JPE"),
        (
            VALIDATION,
            [(validation_name(1), b"1"), (f"a/{validation_name(1)}", b"")],
            "twice",
        ),
        (VALIDATION, [("labels.txt", b"1")], "must contain ImageNet's validation"),
    ],
)
def test_unexpected_content_is_named(tmp_path, archive, members, message):
    (tmp_path / archive).write_bytes(tar(members))
    with pytest.raises(UserError, match=message) as caught:
        archives.read(tmp_path)
    assert str(tmp_path / archive) in str(caught.value)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (100, "at byte 0 there is neither a member nor"),
        # Inside the second image, and in the filling behind the third.
        (MEMBER + 600, "its member ILSVRC2012_val_00000002.JPEG needs 612 more bytes"),
        (3 * MEMBER - 400, "its member ILSVRC2012_val_00000003.JPEG needs 76 more"),
        # Inside the second header, and between two members, which looks like an end.
        (MEMBER + 300, "at byte 1,536 there is neither a member nor"),
        (3 * MEMBER, "at byte 4,608 there is neither a member nor"),
        (None, "at byte 1,536 there is neither a member nor"),  # A damaged header.
    ],
)
def test_an_archive_that_is_cut_or_damaged_is_noticed(tmp_path, size, message):
    data = bytearray(tar([(validation_name(n), bytes(700)) for n in (1, 2, 3)]))
    if size is None:
        data[MEMBER + 10] ^= 1
    (tmp_path / VALIDATION).write_bytes(data[:size])
    with pytest.raises(UserError, match=message):
        archives.read(tmp_path)


@pytest.mark.parametrize("num_missing", [1, 10_240])
def test_a_train_archive_that_is_cut_short_is_noticed(tmp_path, num_missing):
    data = train_tar(IMAGES)
    without_end = 2 * 512 + 2 * 10_240  # Two members; archives are filled to 10,240.
    (tmp_path / TRAIN).write_bytes(data[: without_end - num_missing])
    message = f"its member n01440764.tar needs {num_missing:,} more bytes"
    with pytest.raises(UserError, match=message):
        archives.read(tmp_path)
