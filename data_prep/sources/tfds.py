"""Lists the labelled images in the record files of a tensorflow_datasets data set."""

import importlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from data_prep.records import layouts, tf_example
from data_prep.records.layouts import Layout
from data_prep.records.tf_example import Features
from data_prep.sources.image_list import Entry, ImageList, Source
from resnet.base import environment, output
from resnet.base.errors import UserError

_FILENAME_KEYS = ("file_name", "filename", "image/filename")  # Names used by data sets.
_MAX_RETRIES = 5  # Per download, within 6 seconds.
_MAX_REASON = 500  # Characters; some errors list all existing data sets.


def prepare(
    tfds_name: str,
    tfds_data_dir: str | os.PathLike[str] | None,
    label: str | None = None,
) -> Source:
    """Returns the labelled images of a data set, prepared first if necessary.

    The class is the feature `label`, None if there is only one. The validation split is
    `validation` or else `test`. The file name of an image is its feature `file_name` or
    else split and position, as "validation-00000042". Raises UserError if the data set
    can't be prepared or isn't one of labelled images.
    """
    builder = _prepare(tfds_name, tfds_data_dir, label)
    root = pathlib.Path(os.path.abspath(builder.data_path))
    layout = layouts.find(root, label)
    if layout is None or layout.class_names is None:
        raise UserError(
            f"preparing {tfds_name} wrote no record files of labelled images to"
            f" {root}; delete that folder and rerun the command"
        )
    class_names = layout.class_names
    return Source(
        class_names=class_names,
        splits={
            split: ImageList.of(class_names, _images(layout, split), layout.image_key)
            for split in layout.paths
        },
        description={"tfds_name": builder.info.full_name, "tfds_dir": str(root)},
    )


def _prepare(
    tfds_name: str, tfds_data_dir: str | os.PathLike[str] | None, label: str | None
) -> Any:
    """Returns the builder of a data set after downloading and preparing it."""
    environment.settle(os.environ, environment.changes(os.environ))
    try:  # Slow imports, needed only here.
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.download import downloader
    except ModuleNotFoundError as error:
        raise UserError(
            f"--tfds_name needs the package {error.name}, which isn't installed."
            " Run: pip install tensorflow-datasets importlib_resources"
        ) from error

    # The library retries 10 times, with pauses that double and add up to minutes, for
    # which a call without a network would hang.
    downloader.MAX_RETRIES = _MAX_RETRIES
    data_dir = None if tfds_data_dir is None else os.path.abspath(tfds_data_dir)
    try:
        builder = tfds.builder(tfds_name, data_dir=data_dir)
        # Before hours of preparation.
        features = builder.info.features
        is_dict = isinstance(features, tfds.features.FeaturesDict)
        by_name = dict(features if is_dict else {})
        kinds = {name: type(feature).__name__ for name, feature in by_name.items()}
        layouts.choose_image_and_label(tfds_name, kinds, label)
        if not builder.data_path.exists():  # Preparing it needs TensorFlow.
            with output.without_startup_notes():
                importlib.import_module("tensorflow")
        builder.download_and_prepare(
            file_format="tfrecord",
            # The prepared copies in the cloud differ, and without a network the search
            # for them takes minutes.
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
    except UserError:
        raise
    except Exception as error:  # Data sets' own code raises any type.
        raise UserError(
            f"tensorflow_datasets can't prepare the data set {tfds_name!r}:"
            f" {_reason(error)}"
        ) from error
    return builder


def _images(layout: Layout, split: str) -> Iterator[Entry]:
    """Yields the images of a split in the order of its records."""

    def read(features: Features) -> tuple[int, str]:
        return tf_example.integer_of(features, layout.label_key), _filename(features)

    num_listed = 0
    allowed = range(len(layout.class_names or ()))
    counts = layout.num_records[split]
    for path, expected in zip(layout.paths[split], counts, strict=True):
        file = str(layout.root / path)
        images = [
            Entry(file, name, label, offset, num_bytes)
            for offset, num_bytes, (label, name) in tf_example.scan_file(file, read)
        ]
        if len(images) != expected:
            raise UserError(
                f"{file} must contain {expected:,} records according to"
                f" {layouts.INFO_FILE}; it contains {len(images):,}. Delete the folder"
                " and rerun the command."
            )
        labels = {image.class_index for image in images}
        if not labels.issubset(allowed):
            raise UserError(
                f"the labels in {file} must be from 0 to {allowed[-1]}; they are from"
                f" {min(labels)} to {max(labels)}. Choose a data set whose {split}"
                " images are labelled."
            )
        for image in images:
            filename = image.filename or f"{split}-{num_listed:08d}"
            yield image._replace(filename=filename)
            num_listed += 1


def _filename(features: Features) -> str:
    """Returns the image's file name without the folder, or "" if it is unknown."""
    for key in _FILENAME_KEYS:
        if key in features and len(features[key].bytes_list.value) == 1:
            return os.path.basename(tf_example.text_of(features, key))
    return ""


def _reason(error: Exception) -> str:
    text = str(error).split("\nAvailable ")[0].strip()
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]} ..."
