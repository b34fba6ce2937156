"""Lists the labelled images in the record files of a tensorflow_datasets data set."""

import mmap
import os
import pathlib
from typing import Any

from data_prep.records import layouts, scan, tf_example, tfrecord
from data_prep.records.layouts import Layout
from data_prep.sources import imagenet_labels
from data_prep.sources.image_list import ImageList, ImageListBuilder
from data_prep.sources.raw_data import RawData
from resnet.base.errors import UserError

_FILENAME_KEYS = ("file_name", "filename", "image/filename")  # Names used by data sets.
_FRAME_BYTES = tfrecord.HEADER_BYTES + tfrecord.FOOTER_BYTES
_MAX_RETRIES = 5  # Per download, within 6 seconds.
_MAX_REASON = 500  # Characters; some errors list all existing data sets.


def prepare(tfds_name: str, tfds_data_dir: str | os.PathLike[str] | None) -> RawData:
    """Returns the labelled images of a data set, prepared first if necessary.

    The training split is `train`; the validation split is `validation` or else `test`.
    The file name of an image is its feature `file_name` or, without that feature, split
    and position, such as "validation-00000042".

    Args:
        tfds_name: Name in tensorflow_datasets, such as "mnist" or "imagenet2012:5.1.0".
        tfds_data_dir: Data folder of tensorflow_datasets; None for its own default.

    Raises:
        UserError: If the data set doesn't exist, can't be downloaded or prepared, or
            isn't one of images with one label each.
    """
    builder = _prepare(tfds_name, tfds_data_dir)
    root = pathlib.Path(os.path.abspath(builder.data_path))
    layout = layouts.find(root)
    if layout is None or layout.class_names is None:
        raise UserError(
            f"preparing {tfds_name} wrote no record files of labelled images to"
            f" {root}; delete that folder and rerun the command"
        )
    class_names = layout.class_names
    return RawData(
        class_names=class_names,
        class_descriptions=imagenet_labels.describe(class_names),
        splits={
            split: _list_split(layout, split, class_names) for split in layout.paths
        },
        num_ignored_files=0,
        description={"tfds_name": builder.info.full_name, "tfds_dir": str(root)},
    )


def _prepare(tfds_name: str, tfds_data_dir: str | os.PathLike[str] | None) -> Any:
    """Returns the builder of a data set after downloading and preparing it."""
    import tensorflow_datasets as tfds  # Slow import, needed only here.
    from tensorflow_datasets.core.download import downloader

    # The library retries 10 times, with pauses that double and add up to minutes, for
    # which a call without a network would hang.
    downloader.MAX_RETRIES = _MAX_RETRIES
    data_dir = None if tfds_data_dir is None else os.path.abspath(tfds_data_dir)
    try:
        builder = tfds.builder(tfds_name, data_dir=data_dir)
        _check_features(tfds_name, builder.info.features, tfds)
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


def _check_features(tfds_name: str, features: Any, tfds: Any) -> None:
    """Raises UserError for an unsuitable data set, before hours of preparation."""
    by_name = dict(features) if isinstance(features, tfds.features.FeaturesDict) else {}
    kinds = [type(feature) for feature in by_name.values()]
    if (
        kinds.count(tfds.features.Image) != 1
        or kinds.count(tfds.features.ClassLabel) != 1
    ):
        found = ", ".join(
            f"{name} ({type(feature).__name__})" for name, feature in by_name.items()
        )
        raise UserError(
            f"{tfds_name} must have one Image and one ClassLabel feature; its features:"
            f" {found or 'none'}. Choose a data set of labelled images."
        )


def _list_split(layout: Layout, split: str, class_names: tuple[str, ...]) -> ImageList:
    builder = ImageListBuilder(class_names, layout.image_key)
    num_listed = 0
    for path, expected in zip(
        layout.paths[split], layout.num_records[split], strict=True
    ):
        file = str(layout.root / path)
        scanned = scan.scan_file(file, layout.image_key, layout.label_key)
        offsets = scanned.offsets.tolist()
        labels = scanned.labels.tolist()
        if len(offsets) != expected:
            raise UserError(
                f"{file} must contain {expected:,} records according to"
                f" dataset_info.json; it contains {len(offsets):,}. Delete the folder"
                " and rerun the command."
            )
        if offsets and not 0 <= min(labels) <= max(labels) < len(class_names):
            raise UserError(
                f"the labels in {file} must be from 0 to {len(class_names) - 1}; they"
                f" are from {min(labels)} to {max(labels)}. Choose a data set whose"
                f" {split} images are labelled."
            )
        ends = [*offsets[1:], scanned.num_bytes][: len(offsets)]
        sizes = [b - a - _FRAME_BYTES for a, b in zip(offsets, ends, strict=True)]
        names = _filenames(file, offsets, sizes)
        for name, label, offset, size in zip(
            names, labels, offsets, sizes, strict=True
        ):
            builder.add_span(
                file, name or f"{split}-{num_listed:08d}", label, offset, size
            )
            num_listed += 1
    return builder.build()


def _filenames(path: str, offsets: list[int], sizes: list[int]) -> list[str]:
    """Returns the image's file name in each record, without the folder, or "".

    Args:
        path: Path of a record file that has been scanned.
        offsets: Byte offset of each record.
        sizes: Size of each record's data in bytes.
    """
    names: list[str] = []
    if not offsets:
        return names
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        for offset, size in zip(offsets, sizes, strict=True):
            begin = offset + tfrecord.HEADER_BYTES
            names.append(_filename(content[begin : begin + size]))
    return names


def _filename(example: memoryview) -> str:
    features = tf_example.parse_example(example, _FILENAME_KEYS)
    for key in _FILENAME_KEYS:
        values = features.get(key, [])
        if len(values) == 1 and isinstance(values[0], memoryview):
            return os.path.basename(str(values[0], "utf-8", "surrogateescape"))
    return ""


def _reason(error: Exception) -> str:
    """Returns an error's text in one line, truncated to a readable length."""
    text = str(error).split("\nAvailable ")[0].strip()
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]} ..."
