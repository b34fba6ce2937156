import dataclasses
import hashlib
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.records import (
    indexing,
    manifest,
    record_index,
    tf_example,
    tfrecord,
    verification,
)
from tests.converter_program import content, encoded_image, run_here
from tests.in_process import Done, assert_refused, succeeded

pytestmark = pytest.mark.usefixtures("index_cache", "one_process_is_this")

NAMES = ("ant", "bee", "cat")
OTHER_LENGTH = "the checksum of its length does not match"
OTHER_DATA = "the checksum of its data does not match"


def check(root):
    """Returns what is wrong with a set: names of files, offsets, texts."""
    reported = []
    record_set = manifest.load(str(root), "train")
    problems = verification.verify(record_set, 1, reported.append)
    splits = record_set.manifest.splits.values()
    assert sum(reported) == sum(split.num_examples for split in splits)
    return [(os.path.relpath(p.path, root), p.offset, p.what) for p in problems]


def shard_path(index, num_shards=3):
    return f"train/train-{index:05d}-of-{num_shards:05d}"


def flip(path, *places):
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)


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
    offsets = record_index.read_index(record_set, split)["offset"]
    return offsets[record_index.shard_of_example(split) == shard].tolist()


def change_manifest(root, changes, **of_split):
    """Changes fields of shards, by their indices, and of the split in the manifest."""
    contents = manifest.load(str(root), "train").manifest
    split = contents.splits["train"]
    shards = tuple(
        dataclasses.replace(shard, **changes.get(index, {}))
        for index, shard in enumerate(split.shards)
    )
    split = dataclasses.replace(split, shards=shards, **of_split)
    (root / manifest.FILE_NAME).unlink()
    splits = contents.splits | {"train": split}
    manifest.write(dataclasses.replace(contents, splits=splits), root)


def rewrite(root, shard, records):
    """Replaces a shard by other records; the index then has these, of class 0."""
    framed = [tfrecord.frame_record(record) for record in records]
    data = b"".join(framed)
    (root / shard_path(shard)).write_bytes(data)
    record_set = manifest.load(str(root), "train")
    split = record_set.manifest.splits["train"]
    index = record_index.read_index(record_set, split)
    lengths = [0, *(len(record) for record in framed[:-1])]
    index["offset"][record_index.shard_of_example(split) == shard] = np.cumsum(lengths)
    index["class_index"][record_index.shard_of_example(split) == shard] = 0
    counts = tuple(np.bincount(index["class_index"], minlength=len(NAMES)).tolist())
    path, sha256 = record_index.write_index(root, "train", index)
    of_index = {"index_path": path, "index_sha256": sha256, "label_counts": counts}
    change = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change_manifest(root, {shard: change}, **of_index)


def example(index, label=1, **changes):
    features = {"image/encoded": encoded_image(index), "image/class/label": label}
    kept = {k: v for k, v in (features | changes).items() if v is not None}
    return tf_example.encode_example(kept)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shard=st.integers(0, 2),
    record=st.integers(0, 2),
    region=st.sampled_from([(0, 8), (8, 12), (12, -4), (-4, 0)]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_each_flipped_bit_is_found_in_its_file_at_its_record(
    root, shard, record, region, place, bit
):
    """In the length, its checksum, the data or its checksum."""
    path = root / shard_path(shard)
    whole = path.read_bytes()
    first, last = [*offsets_of(root, shard), len(whole)][record : record + 2]
    begin = region[0] + (last if region[0] < 0 else first)
    end = region[1] + (first if region[1] > 0 else last)
    data = bytearray(whole)
    data[begin + int(place * (end - begin))] ^= 1 << bit
    path.write_bytes(data)
    what = OTHER_LENGTH if region[1] > 0 else OTHER_DATA
    assert check(root) == [(shard_path(shard), first, what)]
    path.write_bytes(whole)


def test_files_of_another_size_are_found(root):
    """One that is cut, one with more, an empty one, a missing one, and a pipe."""
    path = root / shard_path(2)
    data = path.read_bytes()
    second, third = offsets_of(root, 2)[1:]
    path.write_bytes(data[: second + 20])
    assert [(offset, what) for _, offset, what in check(root)] == [
        (None, f"it has {second + 20:,} bytes; expected {len(data):,}"),
        (second, f"it is truncated: 20 of its {third - second:,} bytes are there"),
        (third, "it is truncated: 0 of the 12 bytes of its header are there"),
    ]
    path.write_bytes(data + b"x")
    what = f"it has {len(data) + 1:,} bytes; expected {len(data):,}"
    assert check(root) == [(shard_path(2), None, what)]
    path.write_bytes(b"")
    assert [offset for _, offset, _ in check(root)] == [None, 0]
    path.unlink()
    what = "it can't be read (No such file or directory)"
    assert check(root) == [(shard_path(2), None, what)]
    os.mkfifo(path)
    what = "it can't be read (not a regular file)"
    assert check(root) == [(shard_path(2), None, what)]


def test_bytes_between_two_records_are_found(root):
    path = root / shard_path(0)
    data = path.read_bytes()
    begin, end = offsets_of(root, 0)[1:]
    record = tfrecord.frame_record(example(1))
    filling = bytes(end - begin - len(record))
    path.write_bytes(data[:begin] + record + filling + data[end:])
    what = f"it is {len(record):,} bytes long, but the next record begins after"
    assert check(root) == [(shard_path(0), begin, f"{what} {end - begin:,} bytes")]


def test_shards_of_the_same_layout_that_took_each_others_place_are_found(
    tmp_path, write_tiny_set
):
    images = [encoded_image(3), encoded_image(4)] * 2
    write_tiny_set(tmp_path, images, [0, 1, 0, 1], NAMES, [2, 2])
    paths = [tmp_path / shard_path(index, 2) for index in (0, 1)]
    first, second = (path.read_bytes() for path in paths)
    assert len(first) == len(second)
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)
    what = "its records are good, but its SHA-256 differs from the manifest's:"
    what += " it is not the file that was written"
    assert check(tmp_path) == [(shard_path(i, 2), None, what) for i in (0, 1)]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (example(1, label=4), "its label is 4; expected 1 to 3"),
        (example(1, label=None), "it has no feature image/class/label"),
        (
            example(1, **{"image/encoded": encoded_image(1, "PNG")}),
            "its image is a PNG file; expected JPEG",
        ),
        (
            example(1, **{"image/encoded": encoded_image(1)[:-40]}),
            "its image can't be decoded as an image (JPEG, ",
        ),
        (
            example(1, **{"image/class/synset": b"another"}),
            "its class is 'another', but its label 1 is that of 'ant'",
        ),
        (b"\x0b", "it is not a serialized tf.train.Example"),
    ],
)
def test_whole_records_that_hold_something_else_are_found(root, record, what):
    # Bytes after the end of an image do no harm.
    good = example(0, **{"image/encoded": encoded_image(1) + b"camera"})
    rewrite(root, 1, [good, record, example(2)])
    ((path, offset, problem),) = check(root)
    assert (path, offset) == (shard_path(1), 16 + len(good))
    assert problem.startswith(what)


def test_other_labels_than_those_of_the_index_are_found(root):
    rewrite(root, 1, [example(0, 1), example(1, 1), example(2, 3)])
    what = "it has the classes (2,), and (0,) in the index"
    assert check(root) == [(shard_path(1), offsets_of(root, 1)[2], what)]


def test_labels_of_the_index_are_those_that_the_manifest_counts(root):
    change_manifest(root, {}, label_counts=(9, 0, 0))
    ((path, _, what),) = check(root)
    assert path == "train-index.npy"
    assert "it has other label_counts" in what


def test_records_are_checked_without_their_offsets(root):
    second, third = offsets_of(root, 1)[1:]
    (root / "train-index.npy").write_bytes(b"")
    ((name, offset, what),) = check(root)
    assert (name, offset) == ("train-index.npy", None)
    assert "another SHA-256 than in manifest.json" in what
    flip(root / shard_path(1), third + 30)
    assert (shard_path(1), third, OTHER_DATA) in check(root)
    flip(root / shard_path(1), second)
    problems = check(root)
    assert (shard_path(1), None, "it has 2 records; expected 3") in problems
    assert (shard_path(1), second, OTHER_LENGTH) in problems


def test_a_manifest_that_contradicts_the_records_is_found(root):
    change_manifest(root, {0: {"num_records": 2}, 1: {"num_records": 4}})
    of_offsets, *others = check(root)
    assert [(path, what.partition(";")[0]) for path, _, what in others] == [
        (shard_path(0), "it has 3 records"),
        (shard_path(1), "it has 3 records"),
    ]
    assert of_offsets[0] == "train-index.npy"
    assert "contradicts manifest.json" in of_offsets[2]
    change_manifest(root, {0: {"num_bytes": 10**15}})
    what = f"it has {(root / shard_path(0)).stat().st_size:,} bytes; expected"
    assert (shard_path(0), None, f"{what} {10**15:,}") in check(root)


def test_a_set_of_another_program_is_checked(tmp_path):
    for shard in (0, 1):
        records = [example(2 * shard, 1), example(2 * shard + 1, 2)]
        data = b"".join(map(tfrecord.frame_record, records))
        (tmp_path / manifest.shard_name("train", shard, 2)).write_bytes(data)
    indexing.make_if_missing(str(tmp_path))
    assert check(tmp_path) == []
    flip(tmp_path / "train-00001-of-00002", -1)
    second = 16 + len(example(2, 1))
    assert check(tmp_path) == [("train-00001-of-00002", second, OTHER_DATA)]


def run_verify(records, *more: str) -> Done:
    return run_here("--verify", f"--local_scratch_dir={records}", *more)


def test_verify_reads_the_whole_set_again_and_changes_nothing(root, tmp_path):
    assert_refused(run_verify(tmp_path), "requires a finished record set")
    assert_refused(run_verify(tmp_path / "absent"), "does not exist")
    assert_refused(run_verify(root, "--tfds_name=x"), "Remove that flag.")
    before = content(root)
    done = succeeded(run_verify(root, "--num_processes=2"))
    num_bytes = sum(len(data) for name, data in before.items() if "-of-" in name)
    start = f"verification passed: 13 records, {num_bytes:,} bytes in {root}, "
    assert done.stdout.startswith(start)
    assert done.stderr.splitlines()[-1].startswith("100 %: 13 of 13 records")
    assert content(root) == before

    (root / "manifest.json").unlink()
    (root / ".conversion").mkdir()
    assert_refused(run_verify(root), "is incomplete; rerun")


def test_verify_lists_each_damaged_record_and_counts_those_it_does_not_list(
    root, monkeypatch
):
    monkeypatch.setattr(verification, "_MAX_PROBLEMS_PER_FILE", 2)
    first, second = offsets_of(root, 0)[:2]
    path, all_bad = root / shard_path(0), root / shard_path(1)
    flip(path, first + 30, second)
    all_bad.write_bytes(bytes(all_bad.stat().st_size))
    (root / "validation" / "validation-00000-of-00001").unlink()
    done = run_verify(root)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{path} at byte {first}: ")
    assert lines[1].startswith(f"{path} at byte {second}: ")
    assert lines[2] == f"{all_bad}: 1 more of its records are corrupt"
    assert len(lines) == 2 + 3 + 1 + 1
    assert "validation-00000-of-00001: " in lines[5]
    assert lines[6] == (
        f"verification failed: 6 corrupt files or records; {root} must hold 13 good"
        " records"
    )
