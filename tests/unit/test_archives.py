import io
import tarfile

import pytest

from data_prep.sources import archives, imagenet_labels
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
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
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


def test_train_images_are_read_where_they_lie(tmp_path):
    (tmp_path / TRAIN).write_bytes(train_tar(IMAGES))
    source = archives.read(tmp_path)
    splits, num_ignored = source.splits, source.num_ignored_files
    assert list(splits) == ["train"]
    train = splits["train"]
    assert num_ignored == 0
    found = [(p.class_name, p.filename, p.read()) for p in train]
    assert found == [
        (TENCH, f"{TENCH}_1.JPEG", b""),
        (TENCH, f"{TENCH}_10026.JPEG", b"tench"),
        (GOLDFISH, f"{GOLDFISH}_10.JPEG", b"gold" * 999),
        (GOLDFISH, f"{GOLDFISH}_7.JPEG", b"fish"),
    ]
    assert train.class_names == imagenet_labels.synsets()
    assert train.class_indices.tolist() == [0, 0, 1, 1]
    assert train[1].name == f"{tmp_path / TRAIN}: {TENCH}_10026.JPEG"


@pytest.mark.parametrize("folder", ["", "val/", "./ILSVRC/2012/"])
def test_validation_images_are_told_by_their_numbers(tmp_path, folder):
    members = [(f"{folder}{validation_name(n)}", b"%d" % n) for n in (50_000, 2, 1)]
    if folder:
        members.insert(0, (folder, None))
    (tmp_path / VALIDATION).write_bytes(tar(members))
    source = archives.read(tmp_path)
    splits, num_ignored = source.splits, source.num_ignored_files
    assert list(splits) == ["validation"]
    assert num_ignored == 0
    found = [(p.class_name, p.filename, p.read()) for p in splits["validation"]]
    assert found == [
        ("n01751748", validation_name(1), b"1"),
        ("n02437616", validation_name(50_000), b"50000"),
        ("n09193705", validation_name(2), b"2"),
    ]


def test_both_archives_make_two_splits(tmp_path):
    (tmp_path / TRAIN).write_bytes(train_tar(IMAGES))
    (tmp_path / VALIDATION).write_bytes(tar([(validation_name(1), b"1")]))
    assert archives.find(tmp_path) == [tmp_path / TRAIN, tmp_path / VALIDATION]
    splits = archives.read(tmp_path).splits
    assert [len(splits["train"]), len(splits["validation"])] == [4, 1]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_other_formats_are_read(tmp_path, tar_format):
    # A name of this length needs further headers in GNU and PAX archives.
    folder = "long/" * 25
    members = [(f"{folder}{validation_name(n)}", b"%d" % n) for n in (1, 2)]
    (tmp_path / VALIDATION).write_bytes(tar(members, tar_format))
    splits = archives.read(tmp_path).splits
    assert [image.read() for image in splits["validation"]] == [b"1", b"2"]


def test_hidden_files_are_passed_over_and_other_files_counted(tmp_path):
    inner = [(f"._{TENCH}_1.JPEG", b"x"), (f"{TENCH}_1.JPEG", b"1"), ("READ.ME", b"x")]
    members = [("LICENSE", b"x"), (".DS_Store", b"x"), (f"{TENCH}.tar", tar(inner))]
    (tmp_path / TRAIN).write_bytes(tar(members))
    members = [(validation_name(1), b"1"), ("labels.txt", b"x")]
    (tmp_path / VALIDATION).write_bytes(tar(members))
    source = archives.read(tmp_path)
    splits, num_ignored = source.splits, source.num_ignored_files
    assert [image.read() for image in splits["train"]] == [b"1"]
    assert num_ignored == 3


def test_an_inner_archive_may_lack_its_end_mark(tmp_path):
    # Without the two empty blocks, the next header is that of the archive around it.
    inner = tar(IMAGES[TENCH])
    size = 512 * 3  # Header and content of the first, header of the empty second.
    members = [
        (f"{TENCH}.tar", inner[:size]),
        (f"{GOLDFISH}.tar", tar(IMAGES[GOLDFISH])),
    ]
    (tmp_path / TRAIN).write_bytes(tar(members))
    splits = archives.read(tmp_path).splits
    assert splits["train"].class_indices.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("n00000000.tar", tar([]))], "it contains 'n00000000.tar'. Use the"),
        ([(f"{TENCH}.tar", b""), (f"{TENCH}.tar", b"")], "it contains .* twice"),
        (
            [(f"{TENCH}.tar", tar([("1.JPEG", b""), ("a/1.JPEG", b"")]))],
            r"n01440764.tar must contain each file once; it contains '1.JPEG' twice",
        ),
        ([], "must contain ImageNet's train images; it contains none"),
        ([(f"{TENCH}_1.JPEG", b"1")], "must contain ImageNet's train .* contains none"),
        ([(f"{TENCH}.tar", b"x" * 1024)], "n01440764.tar is truncated or corrupt"),
    ],
)
def test_what_is_wrong_with_a_train_archive_is_named(tmp_path, members, message):
    (tmp_path / TRAIN).write_bytes(tar(members))
    with pytest.raises(UserError, match=message):
        archives.read(tmp_path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("cat.JPEG", b"1")], "one is named 'cat.JPEG'. Use the"),
        (
            [(validation_name(50_001), b"1")],
            "one is named 'ILSVRC2012_val_00050001.JPEG'",
        ),
        ([(validation_name(0), b"1")], "one is named 'ILSVRC2012_val_00000000.JPEG'"),
        ([(validation_name(1), b"1"), (f"a/{validation_name(1)}", b"")], "twice"),
        ([("labels.txt", b"1")], "must contain ImageNet's validation images"),
    ],
)
def test_what_is_wrong_with_a_validation_archive_is_named(tmp_path, members, message):
    (tmp_path / VALIDATION).write_bytes(tar(members))
    with pytest.raises(UserError, match=message):
        archives.read(tmp_path)


MEMBER = 512 + 1024  # A header, and 700 bytes in whole blocks.


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "is not a readable tar archive"),
        (100, "is not a readable tar archive"),
        # Inside the second image, and in the filling behind the third.
        (MEMBER + 600, "its member ILSVRC2012_val_00000002.JPEG needs 612 more bytes"),
        (3 * MEMBER - 400, "its member ILSVRC2012_val_00000003.JPEG needs 76 more"),
        # Inside the second header, and between two members, which looks like an end.
        (MEMBER + 300, "at byte 1,536 there is neither a member nor"),
        (MEMBER, "at byte 1,536 there is neither a member nor"),
        (3 * MEMBER, "at byte 4,608 there is neither a member nor"),
    ],
)
def test_an_archive_that_is_cut_short_is_noticed(tmp_path, size, message):
    data = tar([(validation_name(n), bytes(700)) for n in (1, 2, 3)])
    (tmp_path / VALIDATION).write_bytes(data[:size])
    with pytest.raises(UserError, match=message) as error:
        archives.read(tmp_path)
    assert str(tmp_path / VALIDATION) in str(error.value)


def test_a_damaged_header_is_noticed(tmp_path):
    data = bytearray(tar([(validation_name(n), bytes(700)) for n in (1, 2, 3)]))
    data[MEMBER + 10] ^= 1
    (tmp_path / VALIDATION).write_bytes(data)
    with pytest.raises(UserError, match="truncated or corrupt: at byte 1,536 there"):
        archives.read(tmp_path)


@pytest.mark.parametrize("num_missing", [1, 600, 5_000, 10_240])
def test_a_train_archive_that_is_cut_short_is_noticed(tmp_path, num_missing):
    data = train_tar(IMAGES)
    without_end = 2 * 512 + 2 * 10_240  # Two members; archives are filled to 10,240.
    (tmp_path / TRAIN).write_bytes(data[: without_end - num_missing])
    message = f"its member n01440764.tar needs {num_missing:,} more bytes"
    with pytest.raises(UserError, match=message):
        archives.read(tmp_path)


def test_an_inner_archive_that_is_cut_short_is_noticed(tmp_path):
    inner = tar([(f"{TENCH}_1.JPEG", bytes(700)), (f"{TENCH}_2.JPEG", bytes(700))])
    members = [(f"{TENCH}.tar", inner[: MEMBER + 600]), (f"{GOLDFISH}.tar", tar([]))]
    (tmp_path / TRAIN).write_bytes(tar(members))
    with pytest.raises(
        UserError, match=r"n01440764.tar is truncated: its member n01440764_2.JPEG"
    ):
        archives.read(tmp_path)
