"""Images in Parquet files."""

import importlib
import json
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources import parquet, raw_data
from resnet.base.errors import UserError
from tests.converter_program import convert_here, encoded_image, write

pytestmark = pytest.mark.usefixtures("one_process_is_this")

FILE = "train-00000-of-00001.parquet"


@given(
    st.lists(st.binary(max_size=5), max_size=12),
    st.sets(st.integers(0, 11)),
    st.booleans(),
)
def test_spans_hold_the_values(values, page_starts, has_dictionary):
    stored = [*dict.fromkeys(values)] if has_dictionary else values
    chunk = b"before"
    for index, value in enumerate(stored):
        chunk += b"\0header\0" * (index in page_starts)
        chunk += len(value).to_bytes(4, "little") + value
    end = len(chunk)
    offsets = list(parquet.spans(chunk + b"behind", 6, end, values))
    assert [chunk[o:][: len(v)] for o, v in zip(offsets, values, strict=True)] == values
    assert all(6 < offset <= end for offset in offsets)
    assert list(parquet.spans(chunk, 6, end, [b"not there"])) == [-1]


@pytest.fixture
def arrow():
    """The package, which only Parquet files need."""
    importlib.import_module("pyarrow.parquet")
    return sys.modules["pyarrow"]


def table(arrow, images, labels=(), names=(), **columns):
    """Returns a table of images `(filename, bytes)`, as `datasets` has it."""
    kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
    rows = [data and {"bytes": data, "path": name} for name, data in images]
    columns = {"image": arrow.array(rows, kind), "label": [*labels]} | columns
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": names} if names else {},
    }
    info = json.dumps({"info": {"features": features}})
    made = arrow.table({name: values for name, values in columns.items() if values})
    return made.replace_schema_metadata({"huggingface": info})


def save(arrow, path, made, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow.parquet.write_table(made, path, **{"compression": "none", **options})


def read(root, split: str | None = None):
    return raw_data.open_raw_data(root, split)


@pytest.mark.parametrize("has_struct", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"dictionary_pagesize_limit": 9_000},  # The rest in plain pages.
        {"data_page_version": "2.0", "data_page_size": 4096},
        {"row_group_size": 37, "compression": {"image.bytes": "none", "label": "gzip"}},
        {"use_content_defined_chunking": True, "write_page_index": True},
    ],
)
def test_spans_hold_the_bytes_that_were_written(arrow, tmp_path, has_struct, options):
    draw = random.Random(0)
    data = [draw.randbytes(draw.randrange(900)) for _ in range(100)]
    data = data[:60] + draw.choices(data, k=60)
    labels = [draw.randrange(3) for _ in data]
    images = [(f"folder/{number}.jpg", each) for number, each in enumerate(data)]
    made = table(arrow, images, labels, "abc")
    if not has_struct:
        made = made.set_column(0, "image", arrow.array(data))
        options = {**options, "compression": "none"}
    save(arrow, tmp_path / FILE, made, **options)
    source = read(tmp_path)
    train = source.splits["train"]
    assert [image.read() for image in train] == data
    assert source.class_names == ("a", "b", "c")
    assert train.class_indices.tolist() == labels
    name = "7.jpg" if has_struct else "train-00000-of-00001-00000007"
    assert train[7].filename == name
    assert source.warnings == ()


def test_splits_are_words_of_the_names(arrow, tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        made = table(arrow, [("", name.encode()), ("", b"2")], [1, 0], ["x", "y"])
        save(arrow, tmp_path / "data" / f"{name}.parquet", made)
    write(tmp_path / "README.md", b"")
    source = read(tmp_path)
    sizes = {split: len(images) for split, images in source.splits.items()}
    assert sizes == {"train": 4, "validation": 2}
    assert source.splits["validation"][0].read() == b"test-00000-of-00001"
    assert ["README.md" in text for text in source.warnings] == [True]


@pytest.mark.parametrize(
    ("labels", "classes"), [(["b", "a"], ("a", "b")), ([10, 9], ("9", "10"))]
)
def test_labels_without_names_name_themselves(arrow, tmp_path, labels, classes):
    made = table(arrow, [("1", b"1"), ("2", b"2")], labels, text=["x", "y"])
    save(arrow, tmp_path / FILE, made)
    source = read(tmp_path)
    assert source.class_names == classes
    assert source.splits["train"].class_indices.tolist() == [1, 0]


IMAGES = [("1.jpg", b"1"), ("2.jpg", b"2")]


@pytest.mark.parametrize(
    ("images", "columns", "options", "message"),
    [
        (IMAGES, {}, {"compression": "snappy"}, "image.bytes .* it has SNAPPY.*none"),
        (
            IMAGES,
            {},
            {
                "use_dictionary": False,
                "column_encoding": {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"},
            },
            "it has UNCOMPRESSED, .*DELTA_LENGTH",
        ),
        ([IMAGES[0], ("", None)], {}, {}, "row 1 .* must have values as image"),
        (
            IMAGES,
            {"label": [0, None]},
            {},
            "row 1 .* must have values as image and label",
        ),
        (IMAGES, {"label": [0, -1]}, {}, "one of 2, a, b; that of .*: 2.jpg is -1"),
        (IMAGES, {"label": [0.5, 1.5]}, {}, "the classes; of image, label .* fit none"),
        (IMAGES, {"image": None}, {}, "the images; of label there fit none"),
    ],
)
def test_what_is_not_as_expected_is_named(
    arrow, tmp_path, images, columns, options, message
):
    made = table(arrow, images, **{"labels": [0, 1], "names": ["a", "b"], **columns})
    save(arrow, tmp_path / FILE, made, **options)
    with pytest.raises(UserError, match=message):
        read(tmp_path)


def test_several_columns_are_named(arrow, tmp_path):
    made = table(arrow, IMAGES, ["a", "b"], category=["x", "y"])
    save(arrow, tmp_path / FILE, made)
    with pytest.raises(UserError, match=r"the classes; .* fit label, category"):
        read(tmp_path)
    made = table(arrow, IMAGES, ["a", "b"]).replace_schema_metadata({})
    save(arrow, tmp_path / FILE, made.append_column("mask", made["image"]))
    with pytest.raises(UserError, match=r"the images; .* fit image, mask"):
        read(tmp_path)
    save(arrow, tmp_path / FILE, table(arrow, IMAGES, [0, 1], "ab"))
    save(arrow, tmp_path / f"a{FILE}", table(arrow, IMAGES, [0, 1], "abc"))
    with pytest.raises(UserError, match=r"same columns .* others than"):
        read(tmp_path)


def test_a_corrupt_file_and_a_missing_package_are_named(arrow, tmp_path, monkeypatch):
    write(tmp_path / FILE, b"PAR1, but no more")
    with pytest.raises(UserError, match=f"{FILE} is not a readable Parquet file"):
        read(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow.* pip install"):
        read(tmp_path)


def test_records_are_those_of_class_folders(arrow, tmp_path):
    images = {
        (split, label, f"{number}.png"): encoded_image(number, "PNG")
        for split, numbers in (("train", range(6)), ("val", range(6, 9)))
        for number in numbers
        for label in (0, 1)
    }
    for (split, label, name), data in images.items():
        write(tmp_path / "folders" / split / "ab"[label] / name, data)
    for split in ("train", "val"):
        rows = [(*key[1:], data) for key, data in images.items() if key[0] == split]
        labels, names, data = zip(*reversed(rows), strict=True)
        made = table(arrow, zip(names, data, strict=True), labels, "ab")
        save(arrow, tmp_path / "files" / f"{split}-00000-of-00001.parquet", made)
    records = []
    for kind in ("folders", "files"):
        root = tmp_path / f"{kind}-records"
        done = convert_here(tmp_path / kind, root, "--validation_split=val")
        assert done.returncode == 0, done.stderr
        paths = root.rglob("*-of-*")
        records.append({path.relative_to(root): path.read_bytes() for path in paths})
    assert records[0]
    assert records[0] == records[1]
