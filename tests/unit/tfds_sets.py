"""Builders of TensorFlow Datasets, which each process would else import for seconds."""

import io

import numpy as np
from PIL import Image
from tensorflow_datasets import core
from tensorflow_datasets import features as tfds_features

NAMES = ("cat", "dog", "fox")


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
        num_examples = {"train": 7, "validation": 2, "test": 2}
        return {
            split: self._generate_examples(split, number)
            for split, number in num_examples.items()
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


class TwiceLabelled(NamelessImages):
    """As CIFAR-100, but animations without a format of their own."""

    def _info(self):
        return info(
            self,
            image=tfds_features.Image(),
            label=tfds_features.ClassLabel(num_classes=3),
            coarse=tfds_features.ClassLabel(names=("e\u0301", "f")),
        )

    def _generate_examples(self, labels):
        for index, label in enumerate(labels):
            image = io.BytesIO()
            Image.new("L", (8, 6), index).save(image, "GIF")
            image.seek(0)
            yield index, {"image": image, "label": label, "coarse": index % 2}


class Unreachable(NamelessImages):
    def _split_generators(self, dl_manager):
        raise ConnectionError("no way\nto example.com")


class Downloaded(NamelessImages):
    def _split_generators(self, dl_manager):
        return dl_manager.download("http://127.0.0.1:9/no_server_there")
