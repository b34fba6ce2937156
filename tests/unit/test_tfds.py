"""Data sets of TensorFlow Datasets: as a source, and indexed where they lie."""

import importlib
import io
import json
import pathlib
import shutil
from types import ModuleType

import numpy as np
import pytest
import urllib3
from PIL import Image

from data_prep.records import indexing, manifest
from data_prep.sources import tfds
from resnet.base.errors import UserError
from tests.converter_program import run_here
from tests.in_process import succeeded
from tests.record_reader import read_examples

pytestmark = pytest.mark.usefixtures("index_cache")

NAMES = ("cat", "dog", "fox")


@pytest.fixture(scope="module", autouse=True)
def sets() -> ModuleType:
    """The builders, which are known from their import on."""
    return importlib.import_module("tests.unit.tfds_sets")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, sets) -> pathlib.Path:
    """A data folder in which the images of each split of one set lie in two files."""
    folder = tmp_path_factory.mktemp("tfds")
    import tensorflow_datasets

    config = tensorflow_datasets.download.DownloadConfig(num_shards=2)
    builder = tensorflow_datasets.builder("named_images", data_dir=folder)
    builder.download_and_prepare(download_config=config, file_format="tfrecord")
    tfds.prepare("nameless_images", folder)
    return folder


def test_images_are_read_from_the_record_files(data_dir, sets):
    raw = tfds.prepare("named_images", data_dir)
    assert raw.class_names == NAMES
    assert (raw.class_descriptions, raw.warnings, raw.num_ignored_files) == ((), (), 0)
    folder = data_dir / "named_images" / "1.2.3"
    expected = {"tfds_name": "named_images/1.2.3", "tfds_dir": str(folder)}
    assert raw.description == expected
    assert list(raw.splits) == ["train", "validation"]
    images = {p.filename: (p.class_name, p.read()) for p in raw.splits["train"]}
    assert images == {
        f"{index}.JPEG": (NAMES[index % 3], sets.jpeg(10 * index)) for index in range(7)
    }
    assert {p.filename for p in raw.splits["validation"]} == {"0.JPEG", "1.JPEG"}
    image = raw.splits["validation"][0]
    assert pathlib.Path(image.path).parent == folder
    assert image.name == f"{image.path}: {image.filename}"
    assert raw.splits["validation"].estimate_kept_bytes("jpeg") == 0  # Perhaps PNGs.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_images", "'no_such_images': Dataset no_such_images not found"),
        ("a name//", "Parsing builder name string a name// failed"),
        ("unreachable", "'unreachable': no way to example.com"),
        ("sentences", r"Image and one of class Cl.*; its features: text \(Text\)"),
        ("twice_labelled", "be one of coarse, label of tw.* got none.*tfds_label=coa"),
        ("unlabelled_images", "must be from 0 to 2; they are from -1 to -1"),
    ],
)
def test_what_cannot_be_prepared_is_named(data_dir, name, message):
    with pytest.raises(UserError, match=message) as error:
        tfds.prepare(name, data_dir)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


def test_a_download_that_fails_is_not_tried_for_minutes(data_dir, monkeypatch):
    pauses = []

    def note(retry, response=None):
        pauses.append(retry.get_backoff_time())

    monkeypatch.setattr(urllib3.util.retry.Retry, "sleep", note)
    with pytest.raises(UserError, match=r"'downloaded': .*127\.0\.0\.1"):
        tfds.prepare("downloaded", data_dir)
    assert len(pauses) > 1
    assert sum(pauses) < 10


def test_a_data_set_becomes_records(data_dir, tmp_path):
    records = tmp_path / "records"
    flags = ("--tfds_name=nameless_images", f"--tfds_data_dir={data_dir}")
    done = succeeded(run_here(*flags, f"--local_scratch_dir={records}"))
    assert "re-encoded" not in done.stdout
    contents = manifest.load(str(records), "train").manifest
    assert contents.class_names == ("0", "1", "2")
    assert contents.image_format == "png"
    assert contents.source["tfds_name"] == "nameless_images/1.0.0"
    for split, labels in {"train": (0, 1, 1, 2), "validation": (2, 0)}.items():
        classes = {}
        examples = read_examples(records, split)
        # Without names in the source, they are called by their places.
        files = [f"{split}-{index:08d}" for index in range(len(labels))]
        assert sorted(example["file"] for example in examples) == files
        for example in examples:
            pixels = np.asarray(Image.open(io.BytesIO(example["encoded"])))
            assert np.ptp(pixels) == 0  # Exactly one gray, as in the source.
            classes[int(pixels[0, 0])] = (example["class"], example["label"])
        assert classes == {
            10 * index + 1: (str(label), 1 + label)
            for index, label in enumerate(labels)
        }


@pytest.fixture
def copied(data_dir, tmp_path) -> pathlib.Path:
    """A copy of the folder of a data set."""
    folder = tmp_path / "copy" / "1.2.3"
    return shutil.copytree(data_dir / "named_images" / "1.2.3", folder)


def test_a_folder_of_a_data_set_is_indexed(copied, forbid_scans, read_split):
    said = []
    indexing.make_if_missing(str(copied.parent), said.append)
    assert said[-1] == f"wrote the index to {copied}"
    forbid_scans()
    for data_dir in (copied, copied.parent):
        indexing.make_if_missing(str(data_dir), said.append)
        assert manifest.load(str(data_dir), "train").records_dir == copied
    assert len(said) == 2

    record_set = manifest.load(str(copied), "train")
    contents = record_set.manifest
    assert (contents.class_names, contents.first_label) == (NAMES, 0)
    assert (contents.image_key, contents.label_key) == ("image", "label")
    assert contents.image_format == "jpeg"
    assert contents.source == {"indexed": "tensorflow_datasets named_images 1.2.3"}
    assert contents.splits["train"].label_counts == (3, 2, 2)
    assert contents.splits["validation"].label_counts == (1, 1, 0)  # Not those of test.
    assert len(contents.splits["train"].shards) == 2
    for split in ("train", "validation"):
        manifest.check_files(record_set, split)
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(copied))
    decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
    dataset = builder.as_dataset(split="train", decoders=decoders, shuffle_files=False)
    expected = [(int(e["label"]), e["image"].numpy()) for e in dataset]
    assert read_split(record_set, "train") == expected

    shutil.copytree(copied, copied.parent / "2.0.0")
    (copied / "manifest.json").unlink()
    with pytest.raises(UserError, match="several versions"):
        indexing.make_if_missing(str(copied.parent))


def test_features_may_lack_the_names_of_classes(data_dir, tmp_path):
    root = tmp_path / "1.0.0"
    shutil.copytree(data_dir / "nameless_images" / "1.0.0", root)
    indexing.make_if_missing(str(root))
    contents = manifest.load(str(root), "validation").manifest
    assert (contents.class_names, contents.image_format) == (("0", "1", "2"), "png")
    assert contents.splits["validation"].label_counts == (1, 0, 1)


def test_metadata_may_leave_things_out_and_be_as_windows_writes_it(copied):
    contents = json.loads((copied / "dataset_info.json").read_text())
    assert contents.pop("fileFormat") == "tfrecord"
    contents["splits"] = [part for part in contents["splits"] if part["name"] == "test"]
    (copied / "dataset_info.json").write_text(json.dumps(contents))
    path = copied / "label.labels.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b" \r\n"))
    indexing.make_if_missing(str(copied))
    contents = manifest.load(str(copied), "validation").manifest
    assert contents.class_names == NAMES
    assert set(contents.splits) == {"validation"}


INFO, FEATURES, LABELS = "dataset_info.json", "features.json", "label.labels.txt"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (INFO, '["1"', '["5"', "must contain 5 records .* contains 1"),
        (INFO, '"shardLengths"', '"other"', "its splits: none"),
        (INFO, '"tfrecord"', '"riegeli"', "format tfrecord; it is in riegeli"),
        (INFO, "{", "", r"dataset_info\.json must hold"),
        (INFO, '"name"', '"nom"', "reading them failed"),
        (INFO, "{SHARD_X_OF_Y}", "{9}", "reading them failed"),
        (INFO, "{DATASET}", "../x", "reading them failed"),
        (FEATURES, "featuresDict", "content", "reading them failed"),
        (FEATURES, "ClassLabel", "Tensor", "Image and one of class ClassLabel"),
        (FEATURES, '"3"', f'"{10**12}"', "must have from 1 to 1,000,000 classes"),
        (LABELS, "dog\n", "", "must contain 3 class names.* contains 2"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(copied, name, old, new, message):
    contents = json.loads((copied / INFO).read_text())
    for part in contents["splits"]:
        part.setdefault("filepathTemplate", "{DATASET}-{SPLIT}-{SHARD_X_OF_Y}")
    (copied / INFO).write_text(json.dumps(contents))
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(copied))


def test_a_label_is_chosen_and_formats_that_are_not_read_are_converted(tmp_path):
    flags = ("--tfds_name=twice_labelled", f"--tfds_data_dir={tmp_path}")
    records = tmp_path / "records"
    more = ("--tfds_label=coarse", f"--local_scratch_dir={records}")
    succeeded(run_here(*flags, *more))
    contents = manifest.load(str(records), "train").manifest
    assert contents.class_names == ("\u00e9", "f")
    assert contents.splits["train"].label_counts == (2, 2)
    root = tmp_path / "twice_labelled" / "1.0.0"
    command = f"imagenet_to_tfrecords.py {' '.join(flags)}"
    with pytest.raises(UserError, match=f"{command} --tfds_label=coarse"):
        indexing.make_if_missing(str(root))
    features = (root / FEATURES).read_text()
    (root / FEATURES).write_text(features.replace(".ClassLabel", ".Tensor", 1))
    with pytest.raises(UserError, match=f"the first GIF is in .*: .*{command}"):
        indexing.make_if_missing(str(root))


def test_a_set_that_was_changed_is_refused(tmp_path):
    train = tfds.prepare("nameless_images", tmp_path).splits["train"]
    path = pathlib.Path(train[0].path)
    path.write_bytes(path.read_bytes()[: train[3].offset])
    with pytest.raises(UserError, match=r"must contain 4 records .*; it contains 3"):
        tfds.prepare("nameless_images", tmp_path)
