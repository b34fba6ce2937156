"""A program of the tests: has TensorFlow Datasets prepare a tiny set of images.

prepare_tfds.py RAW DATA_DIR

RAW holds train/<class>/* and validation/<class>/*, as JPEG. The set becomes
DATA_DIR/tiny_pictures/1.0.0.
"""

import sys
from pathlib import Path

import tensorflow_datasets as tfds

RAW, DATA_DIR = sys.argv[1:]
CLASSES = sorted(folder.name for folder in (Path(RAW) / "train").iterdir())


class TinyPictures(tfds.core.GeneratorBasedBuilder):
    """The images of RAW."""

    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = Path(__file__).parent  # Else looked for as that of an installed one.

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(names=CLASSES),
                    "file_name": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        folders = {"train": "train", "test": "validation"}
        return {split: self._generate_examples(f) for split, f in folders.items()}

    def _generate_examples(self, folder):
        for path in sorted((Path(RAW) / folder).glob("*/*.jpg")):
            yield (
                str(path),
                {
                    "image": str(path),
                    "label": path.parent.name,
                    "file_name": path.name,
                },
            )


TinyPictures(data_dir=DATA_DIR).download_and_prepare()
