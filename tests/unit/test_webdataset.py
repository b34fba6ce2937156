"""Images in tar archives, as WebDataset's shards or class folders."""

import gzip
import itertools
import json
import tarfile
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import raw_data, tar_members
from resnet.base.errors import UserError
from tests.converter_program import convert_here, encoded_image, write
from tests.record_reader import read_examples
from tests.unit.test_archives import tar

pytestmark = pytest.mark.usefixtures("one_process_is_this")


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return [
            (member.name, data[member.offset :][: member.num_bytes])
            for member in tar_members.members(file, "file")
        ]


NAMES = st.lists(st.text("aé", min_size=1, max_size=90), min_size=1, max_size=3)
CONTENTS = st.one_of(st.binary(max_size=3), st.sampled_from([511, 512, 513]).map(bytes))


@settings(max_examples=50)
@given(
    st.lists(st.tuples(NAMES.map("/".join), CONTENTS), max_size=4),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_spans_hold_the_bytes_that_tarfile_wrote(files, form):
    assert members_of(tar([("folder", None), *files], form)) == files


def test_other_headers():
    prefix = [("folder/" * 20 + "x" * 90, b"1")]
    assert members_of(tar(prefix, tarfile.USTAR_FORMAT)) == prefix
    data = bytearray(tar([("1.jpg", b"12")]))
    data[124:136] = b"\x80" + (2).to_bytes(11, "big")  # A binary size, as of 8 GB.
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 8 * 32)
    assert members_of(bytes(data)) == [("1.jpg", b"12")]
    data = tar([("é", b"")], tarfile.PAX_FORMAT)
    for corrupt in (b"11 path=", b"00 path=", b"xx path="):
        with pytest.raises(UserError, match="truncated or corrupt: at byte 0"):
            members_of(data.replace(b"11 path=", corrupt).replace(b"path=", b"size="))
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            info = tarfile.TarInfo("1.jpg")
            info.pax_headers = {"GNU.sparse.major": "1"}
            archive.addfile(info)
        with pytest.raises(UserError, match="sparse"):
            list(tar_members.members(file, "file"))
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            info = tarfile.TarInfo("2.jpg")
            info.type, info.linkname = tarfile.LNKTYPE, "1.jpg"
            archive.addfile(info)
        with pytest.raises(UserError, match=r"links as 2.jpg; .*--hard-dereference"):
            list(tar_members.members(file, "file"))


def shard(root, name: str, members: dict[str, bytes]) -> None:
    write(root / name, tar(members.items()))


def read(root, split: str | None = None):
    return raw_data.open_raw_data(root, split)


def listed(images) -> list[tuple[str, str, bytes]]:
    return [(image.class_name, image.filename, image.read()) for image in images]


SAMPLES = {
    ".cls": {"0.jpg": b"c", "0.cls": b"2\n", "1.PNG": b"d", "1.cls": b"10"},
    "names": {"0.jpg": b"c", "1.PNG": b"d", "1.cls": b"do\xcc\x88g", "0.cls": b"cat"},
    ".json": {
        f"{number}.{extension}": content
        for number, (extension, content, label) in enumerate(
            [("jpg", b"c", {"label": 2, "a": [0]}), ("PNG", b"d", {"label": "10"})]
        )
        for extension, content in (
            (extension, content),
            ("json", json.dumps(label).encode()),
        )
    },
    "named": {
        "0.jpg": b"c",
        "0.json": b'{"label": 7, "class_name": "b"}',
        "1.PNG": b"d",
        "1.json": b'{"label": 9, "class_name": "a"}',
    },
    "folders": {"./b/0.jpg": b"c", "b/.hidden.jpg": b"", "x/c.d/1.PNG": b"d"},
}


@pytest.mark.parametrize(
    ("place", "classes"),
    [
        (".cls", ("2", "10")),
        ("names", ("cat", "d\u00f6g")),
        (".json", ("2", "10")),
        ("named", ("b", "a")),
        ("folders", ("b", "c.d")),
    ],
)
def test_the_class_is_beside_the_image_or_its_folder(tmp_path, place, classes):
    shard(tmp_path, "0.tar", {**SAMPLES[place], "0.txt": b"x", "README": b""})
    source = read(tmp_path)
    assert source.class_names == classes
    assert source.ignored_kinds == {".txt": 1, "file without an extension": 1}
    assert listed(source.splits["train"]) == [
        (classes[0], "0.jpg", b"c"),
        (classes[1], "1.PNG", b"d"),
    ]


def test_names_of_numbers_are_in_a_file_beside_the_archives(tmp_path):
    shard(tmp_path, "train/0.tar", SAMPLES[".cls"])
    names = [f"class {number}" for number in range(11)]
    (tmp_path / "classnames.txt").write_text("\n".join(names))
    source = read(tmp_path)
    assert source.class_names == tuple(names)
    assert source.splits["train"].class_indices.tolist() == [2, 10]
    assert source.warnings == ()
    (tmp_path / "classnames.txt").write_text("a\nb\nc\n")
    with pytest.raises(
        UserError, match=r"one of 3, a, b, c; that of .*0.tar: 1.PNG is 10"
    ):
        read(tmp_path)


@pytest.mark.parametrize(
    ("names", "splits", "choice"),
    [
        (["a-train-00.tar", "a-val-00.tar"], [[0], [1]], None),
        (["train/0.tar", "validation/0.tar", "train/1.tar"], [[0, 2], [1]], None),
        (["data/train-0-of-1.tar", "data/test-0-of-1.tar"], [[0], [1]], None),
        (["0.tar", "1.tar"], [[0, 1]], None),
        (["0.tar", "retrained.tar"], [[0, 1]], None),
        (["train_0.tar", "VAL.tar", "test.tar"], [[0], [2]], "test"),
        (["train_0.tar", "mine-0.tar"], [[0], [1]], "mine"),
        (["train/0.tar", "Mine/0.tar"], [[0], [1]], "Mine"),
    ],
)
def test_words_of_the_names_are_splits(tmp_path, names, splits, choice):
    for number, name in enumerate(names):
        images = {f"{c}/{number}.jpg": b"%d" % number for c in "ab"}
        shard(tmp_path, name, images)
    source = read(tmp_path, choice)
    numbers = [
        sorted({int(image.read()) for image in images})
        for images in source.splits.values()
    ]
    assert numbers == splits
    assert list(source.splits) == ["train", "validation"][: len(splits)]
    others = len(names) - len([*itertools.chain(*splits)])
    assert ["left out: VAL.tar" in text for text in source.warnings] == [True] * others


def test_a_folder_of_test_archives_is_for_validation(tmp_path):
    for name in ("test", "train"):
        shard(tmp_path, f"{name}/0.tar", SAMPLES["folders"])
    assert list(read(tmp_path / "test").splits) == ["validation"]
    shard(tmp_path, "val.tar", SAMPLES["folders"])
    with pytest.raises(UserError, match="there are val and test"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0.jpg": b""}, "0.tar: 0.jpg must have its class in its .cls, .* none"),
        ({"a/0.jpg": b"", "a/0.png": b""}, "'a/0', .*it has 'a/0.jpg' and 'a/0.png'"),
        ([("a/0.jpg", b"")] * 2, "0.tar must have one image .* 'a/0.jpg' and 'a/0.jpg"),
        ({"0.jpg": b"", "0.cls": b" "}, "0.tar: 0.cls must have a class"),
        ({"0.jpg": b"", "0.cls": b"\xff"}, "0.cls must have .* UTF-8"),
        ({"0.jpg": b"", "0.cls": b"-1"} | {"1.jpg": b"", "1.cls": b"0"}, "is '?-1"),
        ({"0.jpg": b"", "0.json": b"{"}, "0.json must be JSON"),
        ({"0.jpg": b"", "0.json": b'{"url": "x"}'}, "label, class, .* it has url"),
        (
            {"0.jpg": b"", "0.json": b'{"label": 1, "class_id": 2}'},
            "it has label, class_id",
        ),
        (
            {
                "0.jpg": b"",
                "0.json": b'{"label": 1, "class": "a"}',
                "1.jpg": b"",
                "1.json": b'{"label": 1, "class": "b"}',
            },
            "one name; .*1.json names 1 as 'b', another sample as 'a'",
        ),
        (
            {"0.jpg": b"", "0.json": b'{"label": 1, "class": "a"}'}
            | {"1.jpg": b"", "1.json": b'{"label": 2, "class": "a"}'},
            "name of its own; they are 'a', 'a'",
        ),
        (
            {"a/0.jpg": b"", "a/0.cls": b"1", "a/1.jpg": b""},
            "a/1.jpg must have its class in its .cls, .* it has class folder",
        ),
        ({"a/0.jpg": b"", "a/1.jpg": b""}, "at least two classes, .* they are 'a'"),
        ({"0.txt": b""}, "must hold train images; its files hold none"),
    ],
)
def test_what_is_not_as_expected_is_named(tmp_path, members, message):
    items = members.items() if isinstance(members, dict) else members
    write(tmp_path / "0.tar", tar(items))
    with pytest.raises(UserError, match=message):
        read(tmp_path)


def test_classes_of_validation_alone_are_refused(tmp_path):
    shard(tmp_path, "train.tar", SAMPLES[".cls"])
    shard(tmp_path, "val.tar", {"0.jpg": b"", "0.cls": b"3"})
    with pytest.raises(UserError, match="images for training; 1 have none: '3'"):
        read(tmp_path)


def test_compressed_and_truncated_archives_are_refused(tmp_path):
    data = tar(SAMPLES["folders"].items())
    for name, content, message in (
        ("0.tar.gz", gzip.compress(data), "0.tar.gz is compressed"),
        ("0.tar", gzip.compress(data), "0.tar is compressed"),
        ("0.tar", data[:513], "its member ./b/0.jpg needs|truncated"),
        ("0.tar", data[:1024], "truncated or corrupt"),
    ):
        write(tmp_path / name / name, content)
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)
        (tmp_path / name / name).unlink()


def test_folders_of_images_and_published_archives_come_first(tmp_path):
    shard(tmp_path, "train.tar", SAMPLES["folders"])
    for name in ("ILSVRC2012_img_test.tar", "cifar-10-python.tar"):
        write(tmp_path / name, b"")
    assert read(tmp_path).class_names == ("b", "c.d")
    for name in ("train/a/1.jpg", "train/c/1.jpg"):
        write(tmp_path / name, b"")
    source = read(tmp_path)
    assert source.class_names == ("a", "c")
    assert "train.tar" in source.warnings[0]


def test_records_are_those_of_class_folders(tmp_path):
    images = {
        f"{split}/{name}/{number}.{kind.lower()}": encoded_image(number, kind)
        for split, numbers in (("train", range(6)), ("val", range(6, 9)))
        for number in numbers
        for name, kind in (("a", "PNG"), ("b", "TIFF"))
    }
    for path, data in images.items():
        write(tmp_path / "folders" / path, data)
    members: dict[str, dict[str, bytes]] = {"train": {}, "val": {}}
    for path, data in reversed(images.items()):
        split, name, filename = path.split("/")
        members[split][f"{name}/{filename}"] = data
    for split, files in members.items():
        shard(tmp_path / "shards", f"{split}-0.tar", files)
    for kind in ("folders", "shards"):
        done = convert_here(
            tmp_path / kind, tmp_path / f"{kind}-records", "--validation_split=val"
        )
        assert done.returncode == 0, done.stderr
    records = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*-of-*")}
        for root in (tmp_path / "folders-records", tmp_path / "shards-records")
    ]
    assert records[0]
    assert records[0] == records[1]
    assert len(read_examples(tmp_path / "shards-records", "train")) == 12
