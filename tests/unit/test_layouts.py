import io
import json
import re
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
            label = (
                tfds.features.ClassLabel(names=list(names))
                if names
                else tfds.features.ClassLabel(num_classes=3)
            )
            feature = tfds.features.Image(encoding_format=stated)
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(
                    {
                        "photo": feature,
                        "species": label,
                        "name": tfds.features.Text(),
                    }
                )
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in splits}

        def _generate_examples(self, split):
            for index in range(splits[split]):
                path = tfds_dir / f"{split}-{index}.{image_format}"
                path.write_bytes(encoded_image(index, image_format.upper()))
                yield (
                    index,
                    {"photo": path, "species": index % 3, "name": str(index)},
                )

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


def test_the_format_is_that_of_the_images_and_not_what_the_features_say(tmp_path):
    # Image() means PNG, but a builder's files are kept as they are.
    builder = make_builder(tmp_path, "jpeg", stated_format=None)
    root = prepare(builder)
    features = json.loads((root / "features.json").read_text())["featuresDict"]
    assert "encodingFormat" not in features["features"]["photo"]["image"]
    indexing.make_if_missing(str(root))
    assert manifest.load(str(root), "train").manifest.image_format == "jpeg"


def test_classes_without_names_are_numbered(tmp_path):
    builder = make_builder(
        tmp_path, "jpeg", names=None, splits={"train": 3, "validation": 2, "test": 4}
    )
    root = prepare(builder)
    indexing.make_if_missing(str(root))
    contents = manifest.load(str(root), "train").manifest
    assert contents.class_names == ("0", "1", "2")
    assert contents.splits["validation"].num_examples == 2  # Not those of test.


def test_a_directory_that_names_no_file_format_holds_tfrecords(prepared, tmp_path):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    info = json.loads((root / "dataset_info.json").read_text())
    assert info.pop("fileFormat") == "tfrecord"
    (root / "dataset_info.json").write_text(json.dumps(info))
    indexing.make_if_missing(str(root))
    assert manifest.load(str(root), "train").manifest.class_names == CLASSES


def test_another_file_format_is_refused(tmp_path):
    root = prepare(make_builder(tmp_path, "jpeg", file_format="array_record"))
    with pytest.raises(
        UserError, match=r"must be in the file format tfrecord; it is in array_record"
    ):
        indexing.make_if_missing(str(root))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("dataset_info.json", '"4"', '"5"', "must contain 5 records .* contains 4"),
        ("dataset_info.json", '"train"', '"extra"', None),
        ("dataset_info.json", '"shardLengths"', '"other"', "its splits: none"),
        ("dataset_info.json", "{", "", "can't be read"),
        ("dataset_info.json", '"name"', '"nom"', "reading them failed"),
        ("features.json", "featuresDict", "content", "reading them failed"),
        (
            "features.json",
            "ClassLabel",
            "Tensor",
            "one feature of class ClassLabel",
        ),
        ("features.json", "image_feature.Image", "x.Video", "class Image;"),
        ("species.labels.txt", "bee\n", "", "must contain 3 class names.* contains 2"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    prepared, tmp_path, name, old, new, message
):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))
    if message is None:  # A set without a train split has its validation split.
        indexing.make_if_missing(str(root))
        contents = manifest.load(str(root), "validation").manifest
        assert set(contents.splits) == {"validation"}
        return
    with pytest.raises(UserError, match=message):
        indexing.make_if_missing(str(root))


@pytest.mark.parametrize("template", ["{}", "{9}", "{DATASET}", "/x{SHARD_INDEX}", ""])
def test_a_template_that_names_no_shards_is_refused(prepared, tmp_path, template):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    info = json.loads((root / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["filepathTemplate"] = template or "../{SHARD_INDEX}"
    (root / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="reading them failed"):
        indexing.make_if_missing(str(root))


@pytest.mark.parametrize("num_classes", [0, -1, 10**12])
def test_a_number_of_classes_that_no_set_has_is_refused(
    prepared, tmp_path, num_classes
):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    (root / "species.labels.txt").unlink()
    text = (root / "features.json").read_text()
    (root / "features.json").write_text(text.replace('"3"', f'"{num_classes}"'))
    with pytest.raises(UserError, match="must have from 1 to 1,000,000 classes"):
        indexing.make_if_missing(str(root))


def test_deeply_nested_metadata_is_refused(prepared, tmp_path):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    (root / "features.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match=r"features\.json can't be read"):
        indexing.make_if_missing(str(root))


def test_a_byte_order_mark_is_no_part_of_a_class_name(prepared, tmp_path):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    path = root / "species.labels.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b" \r\n"))
    indexing.make_if_missing(str(root))
    assert manifest.load(str(root), "train").manifest.class_names == CLASSES


def test_a_missing_file_of_tensorflow_datasets_is_named(prepared, tmp_path):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    path = root / "tiny_images-train.tfrecord-00001-of-00003"
    path.unlink()
    with pytest.raises(UserError, match=re.escape(f"{path} can't be read (No such")):
        indexing.make_if_missing(str(root))


def test_a_label_out_of_range_is_refused(prepared, tmp_path):
    root = tmp_path / "1.0.2"
    shutil.copytree(prepared[0], root)
    for name in ("features.json", "species.labels.txt"):
        text = (root / name).read_text()
        (root / name).write_text(text.replace('"3"', '"2"').replace("cat\n", ""))
    with pytest.raises(UserError, match="must be from 0 to 1; the record at"):
        indexing.make_if_missing(str(root))
