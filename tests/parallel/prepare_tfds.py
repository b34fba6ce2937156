"""A set that TensorFlow Datasets itself prepares."""

from pathlib import Path


def prepare(raw: Path, data_dir: Path) -> None:
    """Prepares raw/train/<class>/* and raw/validation/<class>/*, as JPEG.

    The set is data_dir/tiny_pictures/1.0.0.
    """
    import tensorflow_datasets as tfds  # Takes seconds.

    classes = sorted(folder.name for folder in (raw / "train").iterdir())

    class TinyPictures(tfds.core.GeneratorBasedBuilder):
        """The images of the folder."""

        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = Path(
            __file__
        ).parent  # Else looked for as that of an installed one.

        def _info(self):
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(encoding_format="jpeg"),
                        "label": tfds.features.ClassLabel(names=classes),
                        "file_name": tfds.features.Text(),
                    }
                ),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, dl_manager):
            folders = {"train": "train", "test": "validation"}
            return {split: self._generate_examples(f) for split, f in folders.items()}

        def _generate_examples(self, folder):
            for path in sorted((raw / folder).glob("*/*.jpg")):
                yield (
                    str(path),
                    {
                        "image": str(path),
                        "label": path.parent.name,
                        "file_name": path.name,
                    },
                )

    TinyPictures(data_dir=data_dir).download_and_prepare()
