import dataclasses
import hashlib
import io
import os
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.records import (
    indexing,
    manifest,
    schema,
    tf_example,
    tfrecord,
    verification,
)

pytestmark = pytest.mark.usefixtures("index_cache", "one_process_is_this")

NAMES = ("ant", "bee", "cat")
NUM_SHARDS = 24


def encoded_image(index, image_format="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (8, 4 + index), (5 * index, 0, 0)).save(file, image_format)
    return file.getvalue()


def check(root, num_processes=1):
    """Returns what is wrong with a set: names of files, offsets, texts."""
    reported = []
    record_set = manifest.load(str(root), "train")
    damages = verification.verify(record_set, num_processes, reported.append)
    splits = record_set.manifest.splits.values()
    assert sum(reported) == sum(split.num_examples for split in splits)
    found = []
    for damage in damages:
        assert damage.path.startswith(f"{record_set.records_dir}/")
        name = damage.path.removeprefix(f"{record_set.records_dir}/")
        found.append((name, damage.offset, damage.what))
    return found


def shard_path(index, num_shards=3):
    return f"train/train-{index:05d}-of-{num_shards:05d}"


@pytest.fixture
def root(tmp_path, write_tiny_set):
    """A set of 3 shards with 3 train records each, and one with 4 for validation."""
    folder = tmp_path / "set"
    folder.mkdir()
    images = [encoded_image(index) for index in range(9)]
    write_tiny_set(folder, images, [0, 1, 2] * 3, NAMES, [3, 3, 3])
    write_tiny_set(folder, images[:4], [0, 1, 2, 0], NAMES, [4], "validation")
    return folder


def offsets_of(root, shard):
    record_set = manifest.load(str(root), "train")
    split = record_set.manifest.splits["train"]
    offsets = manifest.read_offsets(record_set, split)
    return offsets[manifest.shard_of_example(split) == shard].tolist()


def rewrite(root, shard, records):
    """Replaces a shard by other records; the index then agrees with them."""
    framed = [tfrecord.frame_record(record) for record in records]
    content = b"".join(framed)
    (root / shard_path(shard)).write_bytes(content)
    record_set = manifest.load(str(root), "train")
    split = record_set.manifest.splits["train"]
    offsets = manifest.read_offsets(record_set, split)
    lengths = [0, *(len(record) for record in framed[:-1])]
    offsets[manifest.shard_of_example(split) == shard] = np.cumsum(lengths)
    path, sha256 = manifest.write_offsets(root, "train", offsets)
    shards = list(split.shards)
    shards[shard] = dataclasses.replace(
        shards[shard],
        num_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    split = dataclasses.replace(
        split, shards=tuple(shards), offsets_path=path, offsets_sha256=sha256
    )
    splits = record_set.manifest.splits | {"train": split}
    (root / manifest.FILE_NAME).unlink()
    manifest.write(dataclasses.replace(record_set.manifest, splits=splits), root)


def example(index, label=1, **changes):
    features = {"image/encoded": encoded_image(index), "image/class/label": label}
    kept = {k: v for k, v in (features | changes).items() if v is not None}
    return tf_example.encode_example(kept)


@pytest.mark.parametrize("num_processes", [1, 3])
def test_a_good_set_has_no_damage(root, num_processes):
    assert check(root, num_processes) == []


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory, write_tiny_set):
    folder = tmp_path_factory.mktemp("many")
    images = [encoded_image(index) for index in range(2 * NUM_SHARDS)]
    labels = [index % 3 for index in range(2 * NUM_SHARDS)]
    write_tiny_set(folder, images, labels, NAMES, [2] * NUM_SHARDS)
    return folder


@settings(
    max_examples=6,  # Each flips a bit in each of the shards.
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    records=st.lists(st.booleans(), min_size=NUM_SHARDS, max_size=NUM_SHARDS),
    places=st.lists(
        st.floats(0, 1, exclude_max=True), min_size=NUM_SHARDS, max_size=NUM_SHARDS
    ),
    bits=st.lists(st.integers(0, 7), min_size=NUM_SHARDS, max_size=NUM_SHARDS),
)
def test_each_flipped_bit_is_found_in_its_file_at_its_record(
    many_shards, tmp_path, records, places, bits
):
    root = tmp_path / "damaged"
    shutil.copytree(many_shards, root)
    expected = []
    for shard in range(NUM_SHARDS):
        # In turn in the length, its checksum, the data and its checksum.
        begin, end = [(0, 8), (8, 12), (12, -4), (-4, 0)][shard % 4]
        path = root / shard_path(shard, NUM_SHARDS)
        content = bytearray(path.read_bytes())
        bounds = [*offsets_of(root, shard), len(content)]
        first, last = bounds[records[shard]], bounds[records[shard] + 1]
        begin += last if begin < 0 else first
        end += first if end > 0 else last
        position = begin + int(places[shard] * (end - begin))
        content[position] ^= 1 << bits[shard]
        path.write_bytes(content)
        region = "length" if shard % 4 < 2 else "data"
        what = f"the checksum of its {region} does not match"
        expected.append((shard_path(shard, NUM_SHARDS), first, what))
    assert check(root) == expected
    shutil.rmtree(root)


def test_damage_of_one_record_does_not_hide_that_of_the_next(root):
    path = root / shard_path(1)
    content = bytearray(path.read_bytes())
    offsets = offsets_of(root, 1)
    for offset in offsets:
        content[offset] ^= 1
    path.write_bytes(content)
    what = "the checksum of its length does not match"
    assert check(root) == [(shard_path(1), offset, what) for offset in offsets]


def test_a_cut_file_is_found(root):
    path = root / shard_path(2)
    content = path.read_bytes()
    second, third = offsets_of(root, 2)[1:]
    path.write_bytes(content[: second + 20])
    size = f"it has {second + 20:,} bytes; expected {len(content):,}"
    assert check(root) == [
        (shard_path(2), None, size),
        (
            shard_path(2),
            second,
            f"it is truncated: 20 of its {third - second:,} bytes are there",
        ),
        (
            shard_path(2),
            third,
            "it is truncated: 0 of the 12 bytes of its header are there",
        ),
    ]


def test_an_empty_and_a_missing_file_are_found(root):
    (root / shard_path(0)).write_bytes(b"")
    (root / shard_path(1)).unlink()
    found = check(root)
    assert [(path, offset) for path, offset, _ in found] == [
        (shard_path(0), None),
        (shard_path(0), 0),
        (shard_path(1), None),
    ]
    assert found[2][2] == "it can't be read (No such file or directory)"


def test_extra_bytes_at_the_end_are_found(root):
    path = root / shard_path(0)
    num_bytes = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"x")
    what = f"it has {num_bytes + 1:,} bytes; expected {num_bytes:,}"
    assert check(root) == [(shard_path(0), None, what)]


def test_bytes_between_two_records_are_found(root):
    path = root / shard_path(0)
    content = path.read_bytes()
    begin, end = offsets_of(root, 0)[1:]
    shorter = example(1)
    record = tfrecord.frame_record(shorter)
    filling = bytes(end - begin - len(record))
    path.write_bytes(content[:begin] + record + filling + content[end:])
    what = f"it is {len(record):,} bytes long, but the next record begins after"
    assert check(root) == [(shard_path(0), begin, f"{what} {end - begin:,} bytes")]


def test_shards_that_took_each_others_place_are_found(root):
    first, second = root / shard_path(0), root / shard_path(1)
    first.rename(root / "other")
    second.rename(first)
    (root / "other").rename(second)
    assert {path for path, _, _ in check(root)} == {shard_path(0), shard_path(1)}


def test_shards_of_the_same_layout_that_took_each_others_place_are_found(
    tmp_path, write_tiny_set
):
    images = [encoded_image(3), encoded_image(4)] * 2
    write_tiny_set(tmp_path, images, [0, 1, 1, 0], NAMES, [2, 2])
    contents = [(tmp_path / shard_path(index, 2)).read_bytes() for index in (0, 1)]
    assert len(contents[0]) == len(contents[1])
    for index in (0, 1):
        (tmp_path / shard_path(index, 2)).write_bytes(contents[1 - index])
    what = "its records are good, but its SHA-256 differs from the manifest's:"
    what += " it is not the file that was written"
    assert check(tmp_path) == [(shard_path(i, 2), None, what) for i in (0, 1)]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (example(1, label=4), "its label is 4; expected 1 to 3"),
        (example(1, label=0), "its label is 0; expected 1 to 3"),
        (example(1, label=None), "it has no feature image/class/label"),
        (example(1, label=b"1"), "its feature image/class/label is not an integer"),
        (
            example(1, **{"image/encoded": b"text"}),
            "its image is neither JPEG nor PNG; it starts with b'text'",
        ),
        (
            example(1, **{"image/encoded": encoded_image(1, "PNG")}),
            "its image is a PNG file; expected JPEG",
        ),
        (
            example(1, **{"image/encoded": encoded_image(1)[:-40]}),
            "its image can't be decoded: ",
        ),
        (b"\x0b", "it has a field of unknown wire type 3"),
    ],
)
def test_whole_records_that_hold_something_else_are_found(root, record, what):
    rewrite(root, 1, [example(0), record, example(2)])
    ((path, offset, found),) = check(root)
    assert (path, offset) == (shard_path(1), 16 + len(example(0)))
    assert found.startswith(what)


def test_bytes_after_the_end_of_an_image_do_no_harm(root):
    odd = example(1, label=2, **{"image/encoded": encoded_image(1) + b"camera"})
    rewrite(root, 1, [example(0, 1), odd, example(2, 3)])
    assert check(root) == []


def test_other_labels_than_the_manifest_counts_are_found(root):
    rewrite(root, 1, [example(0, 1), example(1, 1), example(2, 3)])
    what = "it states 3 train examples of class 'ant', the records contain 4;"
    assert check(root) == [("manifest.json", None, f"{what} 2 classes differ")]


def test_records_are_checked_without_their_offsets(root):
    (root / "train-offsets.npy").write_bytes(b"")
    ((name, offset, what),) = check(root)
    assert (name, offset) == ("train-offsets.npy", None)
    assert "differs from manifest.json" in what

    path = root / shard_path(1)
    content = bytearray(path.read_bytes())
    second, third = offsets_in(content)[1:]
    content[third + 30] ^= 1
    path.write_bytes(content)
    assert (shard_path(1), third, "the checksum of its data does not match") in (
        check(root)
    )
    content[second] ^= 1
    path.write_bytes(content)
    found = check(root)
    assert (shard_path(1), None, "it has 2 records; expected 3") in found
    assert (shard_path(1), second, "the checksum of its length does not match") in found


def test_a_manifest_that_moves_a_record_to_the_next_shard_is_found(root):
    record_set = manifest.load(str(root), "train")
    split = record_set.manifest.splits["train"]
    first, second, *rest = split.shards
    shards = (
        dataclasses.replace(first, num_records=first.num_records - 1),
        dataclasses.replace(second, num_records=second.num_records + 1),
        *rest,
    )
    splits = {"train": dataclasses.replace(split, shards=shards)}
    (root / manifest.FILE_NAME).unlink()
    manifest.write(dataclasses.replace(record_set.manifest, splits=splits), root)
    found = check(root)
    assert [(path, what.partition(";")[0]) for path, _, what in found[1:]] == [
        (shard_path(0), f"it has {first.num_records} records"),
        (shard_path(1), f"it has {second.num_records} records"),
    ]
    assert found[0][0] == "train-offsets.npy"
    assert "contradicts manifest.json" in found[0][2]


@pytest.mark.parametrize("num_bytes", [3, 10**15])
def test_a_size_in_the_manifest_that_no_shard_has_is_found(root, num_bytes):
    record_set = manifest.load(str(root), "train")
    split = record_set.manifest.splits["train"]
    shards = (dataclasses.replace(split.shards[0], num_bytes=num_bytes),)
    splits = {"train": dataclasses.replace(split, shards=(*shards, *split.shards[1:]))}
    (root / manifest.FILE_NAME).unlink()
    manifest.write(dataclasses.replace(record_set.manifest, splits=splits), root)
    size = (root / shard_path(0)).stat().st_size
    what = f"it has {size:,} bytes; expected {num_bytes:,}"
    assert (shard_path(0), None, what) in check(root)


def test_a_pipe_in_place_of_a_shard_is_found(root):
    (root / shard_path(0)).unlink()
    os.mkfifo(root / shard_path(0))
    what = "it can't be read (not a regular file)"
    assert check(root) == [(shard_path(0), None, what)]


def test_a_record_of_another_class_than_its_label_is_found(root):
    other = example(0, 1, **{"image/class/synset": b"another"})
    rewrite(root, 0, [other, example(1, 2), example(2, 3)])
    ((path, offset, what),) = check(root)
    assert (path, offset) == (shard_path(0), 0)
    assert what == "its class is 'another', but its label 1 is that of 'ant'"


def offsets_in(content):
    offsets = [0]
    while offsets[-1] < len(content):
        header = bytes(content[offsets[-1] :][:12])
        length = tfrecord.record_length(header, offsets[-1])
        offsets.append(offsets[-1] + 16 + length)
    return offsets[:-1]


def test_a_set_of_another_program_is_checked_without_sha256(tmp_path):
    for shard in (0, 1):
        records = [example(2 * shard, 1), example(2 * shard + 1, 2)]
        content = b"".join(map(tfrecord.frame_record, records))
        (tmp_path / schema.shard_name("train", shard, 2)).write_bytes(content)
    indexing.make_if_missing(str(tmp_path))
    assert check(tmp_path) == []
    path = tmp_path / "train-00001-of-00002"
    content = bytearray(path.read_bytes())
    content[-1] ^= 128
    path.write_bytes(content)
    second = 16 + len(example(2, 1))
    what = "the checksum of its data does not match"
    assert check(tmp_path) == [("train-00001-of-00002", second, what)]


def test_a_file_whose_records_are_all_bad_is_cut_short_in_the_list(
    tmp_path, write_tiny_set
):
    images = [encoded_image(index % 10) for index in range(150)]
    write_tiny_set(tmp_path, images, [0] * 150, NAMES, [150])
    path = tmp_path / shard_path(0, 1)
    path.write_bytes(bytes(path.stat().st_size))
    found = check(tmp_path)
    assert len(found) == 101
    assert found[0] == (shard_path(0, 1), None, "50 more of its records are corrupt")


def test_a_damage_reads_as_one_line():
    assert (
        str(verification.Problem("a/b", 12345, "bad"))
        == "a/b, record at byte 12,345: bad"
    )
    assert str(verification.Problem("a/b", None, "bad")) == "a/b: bad"
