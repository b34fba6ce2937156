import hashlib
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.records import tf_example, tfrecord
from data_prep.sources.image_list import Entry, ImageList, SourceImage
from resnet.base.errors import UserError


def listed(names, classes=("a", "b"), folder="/raw") -> ImageList:
    """Returns images of `(class name, file name)`."""
    return ImageList.of(
        classes,
        (
            Entry(f"{folder}/{class_name}", filename, classes.index(class_name))
            for class_name, filename in names
        ),
    )


def in_order(images, seed=0, split="train"):
    order = images.order(seed, split)
    return [(images[i].class_name, images[i].filename) for i in order.tolist()]


def test_a_span_of_an_archive_is_an_image(tmp_path):
    path = str(tmp_path / "all.tar")
    (tmp_path / "all.tar").write_bytes(b"..content..")
    first, empty, cut = ImageList.of(
        ("a",),
        [
            Entry(path, "1.jpg", 0, 2, 7),
            Entry(path, "empty.jpg", 0, 4, 0),
            Entry(path, "cut.jpg", 0, 4, 9),
        ],
    )
    assert first == SourceImage(path, "1.jpg", "a", 2, 7)
    assert first.name == f"{path}: 1.jpg"
    assert first.read() == b"content"
    assert empty.read() == b""
    with pytest.raises(UserError, match=r"cut.jpg has 9 bytes .* only 7 of them"):
        cut.read()


@pytest.mark.parametrize(
    ("key", "damaged", "message"),
    [
        ("image", 30, "is corrupt: the checksum of its data does not match"),
        ("image", None, "is corrupt: it is truncated"),
        ("photo", 0, "it has no feature photo"),
    ],
)
def test_a_record_that_holds_no_image_is_named(tmp_path, key, damaged, message):
    path = tmp_path / "x.tfrecord"
    record = tfrecord.frame_record(tf_example.encode_example({"image": b"x"}))
    offset, data = len(record), bytearray(2 * record)
    if damaged is None:
        del data[-1]
    elif damaged:
        data[offset + damaged] ^= 1
    path.write_bytes(data)
    image = SourceImage(str(path), "1.jpg", "a", offset, image_key=key)
    with pytest.raises(UserError, match=message) as error:
        image.read()
    assert f"byte {offset} of {path}" in str(error.value)


def test_a_list_counts_from_both_ends_and_has_classes():
    images = listed([("a", "1"), ("b", "2"), ("a", "3")])
    assert len(images) == 3
    assert [image.path for image in images] == ["/raw/a/1", "/raw/b/2", "/raw/a/3"]
    assert images[-1] == images[2] == SourceImage("/raw/a/3", "3", "a")
    with pytest.raises(IndexError):
        images[3]
    assert images.class_indices.dtype == np.int32
    assert images.class_indices.tolist() == [0, 1, 0]


@given(
    st.sets(
        st.tuples(st.sampled_from("ab"), st.text("xyzé\udcff", min_size=1)), max_size=30
    ),
    st.integers(),
    st.randoms(use_true_random=False),
)
def test_the_order_is_a_permutation_whatever_the_listing_and_the_place(
    files, seed, random_order
):
    names = sorted(files)
    relisted = list(names)
    random_order.shuffle(relisted)
    images = listed(names)
    assert [(p.class_name, p.filename) for p in images] == names
    assert sorted(images.order(seed, "train").tolist()) == list(range(len(names)))
    elsewhere = listed(relisted, folder="/elsewhere")

    def digest(name):
        text = f"{seed}/train/{name[0]}/{name[1]}".encode(errors="surrogateescape")
        return hashlib.sha256(text).hexdigest()

    expected = sorted(names, key=digest)
    assert in_order(images, seed) == in_order(elsewhere, seed) == expected
    with mock.patch("data_prep.sources.image_list._CHUNK", 7):
        assert in_order(images, seed) == expected


def test_the_size_is_known_in_archives_and_estimated_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.sources.image_list._MAX_STATS", 10)
    for i in range(20):
        content = b"\xff\xd8\xff" + bytes(7 + i // 2 % 5)  # 12 on the average.
        (tmp_path / f"{i}").write_bytes(content)
    entries = [Entry(str(tmp_path), f"{i}", 0) for i in range(20)]
    images = ImageList.of(("a",), [*entries, Entry("x.tar", "x", 0, 0, 1_000)])
    # The sample is every second file.
    assert images.estimate_kept_bytes("jpeg") == 1_000 + 20 * 12
    assert images.estimate_kept_bytes("png") == 0
    (tmp_path / "0").write_bytes(bytes(10))  # No JPEG.
    assert images.estimate_kept_bytes("jpeg") == 1_000 + 20 * 12 - 2 * 10


def test_the_fingerprint_tells_lists_apart():
    def fingerprint(*entries, classes=("a", "b"), path="/raw/all.tar"):
        rows = (Entry(path, *entry) for entry in entries)
        return ImageList.of(classes, rows).fingerprint()

    first, second = ("1.jpg", 0, 512, 10), ("2.jpg", 1, 1536, 20)
    same = fingerprint(first, second)
    assert len(same) == 64
    assert fingerprint(first, second, path="/elsewhere/all.tar") == same
    others = [
        fingerprint(first),
        fingerprint(second, first),
        fingerprint(first, second, classes=("a", "c")),
        fingerprint(first, ("2.jpg", 0, 1536, 20)),
        fingerprint(first, ("3.jpg", 1, 1536, 20)),
        fingerprint(first, ("2.jpg", 1, 2048, 20)),
        fingerprint(first, ("2.jpg", 1, 1536, 21)),
        fingerprint(("1.jpg2", 0, 512, 10), (".jpg", 1, 1536, 20)),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_a_list_is_small_in_memory(monkeypatch):
    # Ordering takes memory by the chunk: here, too, a part of the list.
    monkeypatch.setattr("data_prep.sources.image_list._CHUNK", 7_000)
    classes = tuple(f"n{i:08d}" for i in range(100))
    places = (divmod(i, 100) for i in range(10_000))
    tracemalloc.start()
    try:
        images = ImageList.of(
            classes,  # File names of 17 or so bytes.
            (
                Entry(f"/raw/{classes[c]}", f"{classes[c]}_{i}.JPEG", c)
                for c, i in places
            ),
        )
        kept, peak_of_build = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        images.order(0, "train")
        peak_of_order = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept < 60 * len(images)
    assert peak_of_build < 150 * len(images)
    assert peak_of_order - kept < 150 * len(images)
