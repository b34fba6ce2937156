import io
import pathlib

import numpy as np
import pytest
import urllib3
from PIL import Image
from tensorflow_datasets import core
from tensorflow_datasets import features as tfds_features

from data_prep.records import image_encoding, manifest
from data_prep.sources import tfds
from resnet.base.errors import UserError
from tests.converter_program import run_here
from tests.record_reader import read_examples

NAMES = ["cat", "dog", "fox"]


def jpeg(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 6), grey).save(file, "JPEG")
    return file.getvalue()


def info(builder, **features) -> core.DatasetInfo:
    return core.DatasetInfo(
        builder=builder, features=tfds_features.FeaturesDict(features)
    )


class NamedImages(core.GeneratorBasedBuilder):
    """JPEGs with file names; train and validation, and a test split besides."""

    VERSION = core.Version("1.2.3")

    def _info(self):
        return info(
            self,
            image=tfds_features.Image(encoding_format="jpeg"),
            label=tfds_features.ClassLabel(names=NAMES),
            file_name=tfds_features.Text(),
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {
            "train": self._generate_examples("train", 7),
            "validation": self._generate_examples("validation", 2),
            "test": self._generate_examples("test", 1),
        }

    def _generate_examples(self, split, num_examples):
        for index in range(num_examples):
            name = f"{split}/{index}.JPEG"
            image = io.BytesIO(jpeg(10 * index))
            yield name, {"image": image, "label": index % 3, "file_name": name}


class NamelessImages(core.GeneratorBasedBuilder):
    """PNGs as MNIST and CIFAR-10 have them: train and test, without file names."""

    VERSION = core.Version("1.0.0")
    TEST_LABELS = (2, 0)

    def _info(self):
        return info(
            self,
            id=tfds_features.Text(),
            image=tfds_features.Image(shape=(6, 8, 1)),
            label=tfds_features.ClassLabel(num_classes=3),
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {
            "train": self._generate_examples((0, 1, 1, 2)),
            "test": self._generate_examples(self.TEST_LABELS),
        }

    def _generate_examples(self, labels):
        for index, label in enumerate(labels):
            image = np.full((6, 8, 1), 10 * index + 1, np.uint8)
            yield index, {"id": f"number {index}", "image": image, "label": label}


class UnlabelledImages(NamelessImages):
    TEST_LABELS = (-1, -1)


class Sentences(NamelessImages):
    def _info(self):
        return info(self, text=tfds_features.Text())


class Unreachable(NamelessImages):
    def _split_generators(self, dl_manager):
        raise ConnectionError("no way\nto example.com")


class Downloaded(NamelessImages):
    def _split_generators(self, dl_manager):
        return dl_manager.download("http://127.0.0.1:9/no_server_there")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("tfds")


def test_images_are_read_from_the_record_files(data_dir):
    raw = tfds.prepare("named_images", data_dir)
    assert raw.class_names == ("cat", "dog", "fox")
    assert raw.class_descriptions == ()
    assert raw.num_ignored_files == 0
    assert raw.warnings == ()
    folder = data_dir / "named_images" / "1.2.3"
    assert raw.description == {
        "tfds_name": "named_images/1.2.3",
        "tfds_dir": str(folder),
    }
    assert list(raw.splits) == ["train", "validation"]
    images = {p.filename: (p.class_name, p.read()) for p in raw.splits["train"]}
    assert images == {
        f"{index}.JPEG": (NAMES[index % 3], jpeg(10 * index)) for index in range(7)
    }
    counts = np.bincount(raw.splits["train"].class_indices)
    assert counts.tolist() == [3, 2, 2]
    assert {p.filename for p in raw.splits["validation"]} == {"0.JPEG", "1.JPEG"}
    path = folder / "named_images-validation.tfrecord-00000-of-00001"
    image = raw.splits["validation"][0]
    assert image.path == str(path)
    assert image.name == f"{path}: {image.filename}"
    assert raw.splits["validation"].estimate_kept_bytes("jpeg") == 0  # Perhaps PNGs.


def test_images_without_names_are_called_by_their_places(data_dir):
    raw = tfds.prepare("nameless_images", data_dir)
    assert raw.class_names == ("0", "1", "2")
    names = [image.filename for image in raw.splits["train"]]
    assert names == [f"train-{index:08d}" for index in range(4)]
    test = raw.splits["validation"]
    assert [p.filename for p in test] == ["validation-00000000", "validation-00000001"]
    assert sorted(test.class_indices.tolist()) == [0, 2]
    for image in test:
        encoded = image_encoding.to_jpeg(image.read(), image.name)
        assert encoded.converted_from == "PNG"
        assert (encoded.height, encoded.width) == (6, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_images", "'no_such_images': Dataset no_such_images not found"),
        ("a name//", "Parsing builder name string a name// failed"),
        ("unreachable", "'unreachable': no way to example.com"),
        ("sentences", r"one Image and one ClassLabel .*; its features: text \(Text\)"),
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


def test_a_set_that_was_changed_is_refused(tmp_path):
    train = tfds.prepare("nameless_images", tmp_path).splits["train"]
    path = pathlib.Path(train[0].path)
    path.write_bytes(path.read_bytes()[: train[3].offset])
    with pytest.raises(UserError, match=r"must contain 4 records .*; it contains 3"):
        tfds.prepare("nameless_images", tmp_path)
    info_file = path.with_name("dataset_info.json")
    info_file.write_text(info_file.read_text().replace('"tfrecord"', '"riegeli"'))
    with pytest.raises(UserError, match="must be in the file format tfrecord"):
        tfds.prepare("nameless_images", tmp_path)


def test_a_data_set_becomes_records(data_dir, tmp_path):
    records = tmp_path / "records"
    flags = ("--tfds_name=nameless_images", f"--tfds_data_dir={data_dir}")
    done = run_here(*flags, f"--local_scratch_dir={records}")
    assert done.returncode == 0, done.stderr
    assert "re-encoded" not in done.stdout
    contents = manifest.load(str(records), "train").manifest
    assert contents.class_names == ("0", "1", "2")
    assert contents.image_format == "png"
    assert contents.source["tfds_name"] == "nameless_images/1.0.0"
    for split, labels in {"train": (0, 1, 1, 2), "validation": (2, 0)}.items():
        found = {}
        for example in read_examples(records, split):
            pixels = np.asarray(Image.open(io.BytesIO(example["encoded"])))
            assert np.ptp(pixels) == 0  # Exactly one gray, as in the source.
            found[int(pixels[0, 0])] = (example["class"], example["label"])
        assert found == {
            10 * index + 1: (str(label), 1 + label)
            for index, label in enumerate(labels)
        }
