"""Images that are read in place: their batches, damage and refusals."""

import dataclasses
import functools
import os
import pathlib
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.records import manifest, verification
from resnet import native
from resnet.base.errors import UserError
from resnet.data import record_files, record_sets
from resnet.data.corrupt_records import describe_corruption
from resnet.distributed.communicator import AgreedError, Communicator
from resnet.hardware.placement import ProcessInfo
from tests.converter_program import convert_here, encoded_image, write
from tests.unit.read_batches import assert_equal, evaluate, open_train, train
from tests.unit.test_archives import tar

NUM_CLASSES, NUM_OF_CLASS = 3, 7


def images(kind: str = "JPEG") -> list[tuple[str, bytes]]:
    """Returns the names and the contents of the image files, by class."""
    return [
        (
            f"n{label}/{index} \u00e4.{kind.lower()}",
            encoded_image(10 * label + index, kind),
        )
        for label in range(NUM_CLASSES)
        for index in range(NUM_OF_CLASS)
    ]


def write_folders(root: pathlib.Path, kind: str = "JPEG") -> None:
    for name, data in images(kind):
        write(root / "train" / name, data)


def write_archives(root: pathlib.Path) -> None:
    for number in range(2):
        write(root / f"a-train-{number}.tar", tar(images()[number::2]))


def write_parquet(root: pathlib.Path) -> None:
    rows = [{"bytes": data, "path": name} for name, data in images()]
    table = pyarrow.table({"image": rows, "label": [row["path"][:2] for row in rows]})
    root.mkdir()
    path = root / "train-00000-of-00001.parquet"
    # The first values are in a dictionary, the others in plain pages.
    options = {"compression": "none", "dictionary_pagesize_limit": 4_000}
    pyarrow.parquet.write_table(table, path, **options)


CONTAINERS = {
    "JPEG files": write_folders,
    "PNG files": functools.partial(write_folders, kind="PNG"),
    "WebDataset": write_archives,
    "Parquet": write_parquet,
}


def convert_to(root: pathlib.Path, name: str, *flags: str) -> pathlib.Path:
    done = convert_here(root / "raw", root / name, *flags)
    assert done.returncode == 0, done.stderr
    return root / name


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, tuple[pathlib.Path, pathlib.Path]]:
    """The index of each container, and the records that are converted from it."""
    made = {}
    for container, write_images in CONTAINERS.items():
        root = tmp_path_factory.mktemp("set")
        write_images(root / "raw")
        folders = convert_to(root, "index", "--in_place"), convert_to(root, "records")
        made[container] = folders
    return made


@settings(max_examples=8, deadline=None)
@given(
    container=st.sampled_from(list(CONTAINERS)),
    ranks=st.integers(1, 3).flatmap(
        lambda n: st.tuples(st.integers(0, n - 1), st.just(n))
    ),
    start=st.integers(0, 3),
    seed=st.integers(0, 2**40),
)
@example("WebDataset", (1, 2), 3, 5)
def test_batches_are_those_of_converted_records(
    sets, make_config, container, ranks, start, seed
):
    config = make_config(21, "abc", global_batch_size=6, train_steps=5, seed=seed)
    ours, expected = map(open_train, sets[container])
    assert [ours.is_in_place, expected.is_in_place] == [True, False]
    rank, num_ranks = ranks
    assert_equal(
        train(ours, config, rank, num_ranks, start),
        train(expected, config, rank, num_ranks, start),
    )


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_set_is_that_of_converted_records(sets, make_config, container):
    config = make_config(21, "abc", global_batch_size=6, train_steps=7)
    ours, expected = map(open_train, sets[container])
    assert_equal(evaluate(ours, config), evaluate(expected, config))
    contents = [
        manifest.load(str(folder), "train").manifest for folder in sets[container]
    ]
    for name in ("median_side", "class_names", "image_format"):
        assert getattr(contents[0], name) == getattr(contents[1], name)
    counts = [of_set.splits["train"].label_counts for of_set in contents]
    assert counts[0] == counts[1]
    assert ours.read(3)[0] == expected.read(3)[0]


@pytest.fixture
def folders(tmp_path) -> pathlib.Path:
    """A folder of image files, beside which the sets are."""
    write_folders(tmp_path / "raw")
    return tmp_path


@pytest.fixture
def indexed(folders) -> pathlib.Path:
    return convert_to(folders, "index", "--in_place")


def image_of(records: record_files.RecordFiles, example: int) -> pathlib.Path:
    folder = records.paths[records.file_of_example[example]]
    return pathlib.Path(folder, os.fsdecode(records.index["name"][example]))


DAMAGES = {
    "checksum of the image": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "file ends inside": lambda data: data[:-1],
}


@pytest.mark.parametrize("fault", DAMAGES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_damage_is_found_at_every_read(
    indexed, make_config, monkeypatch, fault, is_compiled
):
    if not is_compiled:
        monkeypatch.setattr(native, "ops", lambda: None)
    records = open_train(indexed)
    config = make_config(21, "abc", global_batch_size=3, train_steps=7, seed=5)
    path = image_of(records, 8)
    path.write_bytes(DAMAGES[fault](path.read_bytes()))
    with pytest.raises(
        UserError, match=f"{re.escape(str(path))} is corrupt: the {fault}"
    ):
        train(records, config)
    assert describe_corruption(records, 7) is None
    skipping = dataclasses.replace(config, on_bad_record="skip")
    batches = train(records, skipping)
    read = np.concatenate([batch.examples[batch.mask] for batch in batches])
    assert sorted(read.tolist()) == [n for n in range(21) if n != 8]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_that_is_gone_or_has_another_size_is_found_at_the_start(
    indexed, is_there
):
    communicator = Communicator(ProcessInfo())
    record_set = manifest.load(str(indexed), "train")
    split = record_set.manifest.splits["train"]
    record_sets.check_split(record_set, split, "example", communicator)
    path = image_of(open_train(indexed), 8)
    path.unlink()
    if is_there:
        path.write_bytes(b"short")
    problem = "has 5 bytes" if is_there else "can't be read"
    with pytest.raises(AgreedError, match=f"{re.escape(str(path))} {problem}.*Put "):
        record_sets.check_split(record_set, split, "example", communicator)


def test_splits_may_share_folders(folders, make_config):
    (folders / "raw" / "train").rename(folders / "classes")
    for flags in (["--in_place"], []):
        name = "shared" if flags else "copied"
        words = folders / "classes", folders / name, "--validation_fraction=0.3", *flags
        assert convert_here(*words).returncode == 0
    config = make_config(14, "abc", global_batch_size=2, train_steps=3)
    for split in manifest.SPLITS:
        ours, expected = (
            record_files.open_split(manifest.load(str(folders / name), split), split)
            for name in ("shared", "copied")
        )
        assert_equal(evaluate(ours, config), evaluate(expected, config))


def test_verification_names_the_damaged_file(indexed):
    done = convert_here("", indexed, "--verify")
    assert done.returncode == 0, done.stdout + done.stderr
    records = open_train(indexed)
    path = image_of(records, 3)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    record_set = manifest.load(str(indexed), "train")
    (problem,) = verification.verify(record_set, 1, lambda _: None)
    assert path.name in problem.what


def test_a_finished_index_is_kept_and_another_source_refused(folders, indexed):
    before = (indexed / "train-index.npy").read_bytes()
    again = convert_here(folders / "raw", indexed, "--in_place")
    assert again.returncode == 0
    assert "already converted" in again.stdout
    refused = convert_here(folders / "raw", indexed)
    assert refused.returncode == 2
    assert "in_place is False, was True" in refused.stderr
    assert (indexed / "train-index.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("RGB", "PNG"), ("RGB", "WEBP")]
)
def test_images_that_records_hold_re_encoded_are_refused(tmp_path, mode, kind):
    write(tmp_path / "raw/train/a/1.jpg", encoded_image(1))
    write(tmp_path / "raw/train/b/2.jpg", encoded_image(2, kind, mode))
    done = convert_here(tmp_path / "raw", tmp_path / "index", "--in_place")
    refused = done
    assert refused.returncode == 2
    assert "2.jpg would be re-encoded" in refused.stderr


def test_bad_images_can_be_left_out(tmp_path):
    for label, name in enumerate("ab"):
        for index in range(3):
            write(
                tmp_path / "raw/train" / name / f"{index}.jpg",
                encoded_image(10 * label + index),
            )
    bad = tmp_path / "raw/train/a/1.jpg"
    bad.write_bytes(bad.read_bytes()[:-20])
    words = tmp_path / "raw", tmp_path / "index", "--in_place"
    refused = convert_here(*words)
    assert refused.returncode == 2
    assert "--on_bad_image=skip" in refused.stderr
    assert not (tmp_path / "index" / "manifest.json").exists()
    assert convert_here(*words, "--on_bad_image=skip").returncode == 0
    split = manifest.load(str(tmp_path / "index"), "train").manifest.splits["train"]
    assert split.label_counts == (2, 3)
    assert [image.name for image in split.skipped_images] == [str(bad)]


def test_a_reordered_or_swapped_index_is_another_data_set(folders, indexed):
    first = manifest.load(str(indexed), "train").manifest.splits["train"]
    paths = sorted((folders / "raw/train/n0").iterdir())[:2]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    done = convert_here(folders / "raw", folders / "other", "--in_place")
    assert done.returncode == 0
    other = manifest.load(str(folders / "other"), "train").manifest.splits["train"]
    assert other.records_sha256 != first.records_sha256
