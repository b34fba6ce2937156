import io
import json
import shutil

import pytest
import tensorflow_datasets as tfds
from PIL import Image

from data_prep.records import indexing, manifest
from resnet.base.errors import UserError

pytestmark = pytest.mark.usefixtures("index_cache")

CLASSES = ("ant", "bee", "cat")
EXAMPLES = {"train": 12, "test": 5}  # By TFDS split.


def encoded_image(index, image_format="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (8, 4 + index), (index, 0, 0)).save(file, image_format)
    return file.getvalue()


def make_builder(
    tfds_dir, image_format, names=CLASSES, splits=EXAMPLES, stated_format="", **settings
):
    stated = image_format if stated_format == "" else stated_format

    class TinyImages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.2")
        pkg_dir_path = tfds_dir

        def _info(self):
            label = {"names": list(names)} if names else {"num_classes": 3}
            features = {
                "photo": tfds.features.Image(encoding_format=stated),
                "species": tfds.features.ClassLabel(**label),
                "name": tfds.features.Text(),
            }
            features = tfds.features.FeaturesDict(features)
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in splits}

        def _generate_examples(self, split):
            for index in range(splits[split]):
                path = tfds_dir / f"{split}-{index}.{image_format}"
                path.write_bytes(encoded_image(index, image_format.upper()))
                yield index, {"photo": path, "species": index % 3, "name": str(index)}

    return TinyImages(data_dir=tfds_dir / "prepared", **settings)


def prepare(builder, **settings):
    config = tfds.download.DownloadConfig(**settings)
    builder.download_and_prepare(download_config=config)
    return builder.data_path


@pytest.fixture(scope="module", params=["jpeg", "png"])
def prepared(request, tmp_path_factory):
    """A directory that tensorflow_datasets prepared, and the images' format."""
    folder = tmp_path_factory.mktemp(request.param)
    builder = make_builder(folder, request.param)
    return prepare(builder, num_shards=3), request.param


def test_a_directory_of_tensorflow_datasets_is_opened(
    prepared, tmp_path, forbid_scans, read_split
):
    source, image_format = prepared
    root = tmp_path / "tiny_images" / "1.0.2"
    shutil.copytree(source, root)
    said = []
    indexing.make_if_missing(str(root), said.append)
    assert said[-1] == f"wrote the index to {root}"
    forbid_scans()
    for data_dir in (root, root.parent):
        indexing.make_if_missing(str(data_dir), said.append)
    assert len(said) == 2

    record_set = manifest.load(str(root.parent), "train")
    assert record_set.records_dir == root
    contents = record_set.manifest
    assert contents.class_names == CLASSES
    assert contents.first_label == 0
    assert (contents.image_key, contents.label_key) == ("photo", "species")
    assert contents.image_format == image_format
    assert contents.source == {"indexed": "tensorflow_datasets tiny_images 1.0.2"}
    assert contents.splits["train"].label_counts == (4, 4, 4)
    assert contents.splits["validation"].label_counts == (2, 2, 1)
    assert len(contents.splits["train"].shards) == 3
    for split in ("train", "validation"):
        manifest.check_files(record_set, split)
    builder = tfds.builder_from_directory(str(root))
    dataset = builder.as_dataset(
        split="train",
        decoders={"photo": tfds.decode.SkipDecoding()},
        shuffle_files=False,
    )
    expected = [
        (int(example["species"]), example["photo"].numpy()) for example in dataset
    ]
    assert read_split(record_set, "train") == expected


def test_the_version_folder_is_indexed_from_above(prepared, tmp_path):
    root = tmp_path / "tiny_images" / "1.0.2"
    shutil.copytree(prepared[0], root)
    indexing.make_if_missing(str(root.parent))
    assert (root / "manifest.json").exists()
    assert manifest.load(str(root.parent), "train").records_dir == root

    shutil.copytree(root, root.parent / "2.0.0")
    (root / "manifest.json").unlink()
    with pytest.raises(UserError, match="several versions"):
        indexing.make_if_missing(str(root.parent))


def test_features_may_lack_the_format_of_the_images_and_the_names_of_classes(tmp_path):
    splits = {"train": 3, "validation": 2, "test": 4}
    # Image() means PNG, but a builder's files are kept as they are.
    builder = make_builder(tmp_path, "jpeg", None, splits, stated_format=None)
    root = prepare(builder)
    features = json.loads((root / "features.json").read_text())["featuresDict"]
    assert "encodingFormat" not in features["features"]["photo"]["image"]
    indexing.make_if_missing(str(root))
    contents = manifest.load(str(root), "train").manifest
    assert contents.image_format == "jpeg"
    assert contents.class_names == ("0", "1", "2")
    assert contents.splits["validation"].num_examples == 2  # Not those of test.


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the prepared directory."""
    shutil.copytree(prepared[0], tmp_path / "1.0.2")
    return tmp_path / "1.0.2"


def test_metadata_may_leave_things_out_and_be_as_windows_writes_it(copied):
    info = json.loads((copied / "dataset_info.json").read_text())
    assert info.pop("fileFormat") == "tfrecord"
    info["splits"] = [part for part in info["splits"] if part["name"] == "test"]
    (copied / "dataset_info.json").write_text(json.dumps(info))
    path = copied / "species.labels.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b" \r\n"))
    indexing.make_if_missing(str(copied))
    contents = manifest.load(str(copied), "validation").manifest
    assert contents.class_names == CLASSES
    assert set(contents.splits) == {"validation"}


INFO, FEATURES, LABELS = "dataset_info.json", "features.json", "species.labels.txt"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (INFO, '"4"', '"5"', "must contain 5 records .* contains 4"),
        (INFO, '"shardLengths"', '"other"', "its splits: none"),
        (INFO, '"tfrecord"', '"riegeli"', "format tfrecord; it is in riegeli"),
        (INFO, "{", "", r"dataset_info\.json must hold"),
        (INFO, '"name"', '"nom"', "reading them failed"),
        (INFO, "{SHARD_X_OF_Y}", "{9}", "reading them failed"),
        (INFO, "{DATASET}", "../x", "reading them failed"),
        (FEATURES, "featuresDict", "content", "reading them failed"),
        (FEATURES, "ClassLabel", "Tensor", "one feature of class ClassLabel"),
        (FEATURES, '"3"', f'"{10**12}"', "must have from 1 to 1,000,000 classes"),
        (LABELS, "bee\n", "", "must contain 3 class names.* contains 2"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(copied, name, old, new, message):
    info = json.loads((copied / INFO).read_text())
    for part in info["splits"]:
        part.setdefault("filepathTemplate", "{DATASET}-{SPLIT}-{SHARD_X_OF_Y}")
    (copied / INFO).write_text(json.dumps(info))
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(copied))


def test_a_label_out_of_range_is_refused(copied):
    for name in (FEATURES, LABELS):
        text = (copied / name).read_text()
        (copied / name).write_text(text.replace('"3"', '"2"').replace("cat\n", ""))
    with pytest.raises(UserError, match="must be from 0 to 1; the record at"):
        indexing.make_if_missing(str(copied))
