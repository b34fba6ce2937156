"""Builds the manifest of a record set that another program wrote."""

import dataclasses
import errno
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.records import image_sizes, layouts, manifest, tf_example, verified
from data_prep.records.class_mixing import ShardContent, write_split
from data_prep.records.layouts import Layout
from data_prep.records.tf_example import Features
from resnet.base import commands, regular_file
from resnet.base.errors import UserError, naming_failures

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
# A set with more classes than both limits has a wrong label. A set with a few classes
# of a larger set, whose labels it keeps, has fewer.
_MAX_CLASSES = 100_000
_MAX_CLASSES_PER_EXAMPLE = 10


@dataclasses.dataclass(frozen=True)
class ScannedFile:
    """The records of one file."""

    name: str  # POSIX path relative to the folder of the set.
    path: pathlib.Path
    num_bytes: int
    offsets: npt.NDArray[np.int64]  # Byte offset of each record, `[num_records]`.
    labels: npt.NDArray[np.int64]  # As stored, `[num_records]`.
    sha256: str
    # The byte offset of the first record of each image format ("jpeg", "png"), and of
    # each pair of a label and a class name, if the records contain names.
    image_formats: dict[str, int]
    named_labels: dict[tuple[int, str], int]
    is_oriented: bool  # Whether records say that --apply_exif_orientation was on.

    @property
    def num_records(self) -> int:
        """Number of records in the file."""
        return len(self.offsets)

    def place(self, offset: int) -> str:
        """Returns the name of a record for messages."""
        return f"the record at byte {offset:,} of {self.path}"


def make_if_missing(
    data_dir: str,
    report: Callable[[str], None] = lambda _: None,
    file_begins: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Builds the manifest of a record set that lacks one, if its layout is known.

    The records are scanned, and the manifest is written beside them or, if that folder
    isn't writable or is full, to `manifest.cache_folder`. Without any record file the
    function does nothing; `manifest.load` then reports the error.

    `report` takes messages, `file_begins` the number of each file before its scan, from
    1, and that of all files. Raises UserError if the folder doesn't exist, the set is
    incomplete, or its records can't be used.
    """
    with naming_failures(f"reading the records in {data_dir}"):
        if manifest.find(data_dir) is not None:
            return
        folder = pathlib.Path(os.path.abspath(data_dir))
        layout = _find_layout(folder)
        if layout is None:
            layouts.refuse_other_names(folder)
            return
        if (layout.root / manifest.CONVERSION_FOLDER).exists():
            raise UserError(
                f"the conversion to {layout.root} is incomplete; rerun"
                f" {commands.command('imagenet-to-tfrecords')} with the same flags to"
                " resume it"
            )
        num_files = sum(map(len, layout.paths.values()))
        report(f"indexing the {num_files:,} record files in {layout.root} (only once)")
        scanned = _scan(layout, lambda number: file_begins(number, num_files))
        if manifest.find(data_dir) is None:
            try:
                index_dir = _save_where_allowed(layout, scanned)
            except UserError:  # A manifest that is there is never replaced.
                if manifest.find(data_dir) is None:
                    raise
            else:
                report(f"wrote the index to {index_dir}")
                return
        report("another process has indexed them meanwhile")


def _find_layout(folder: pathlib.Path) -> Layout | None:
    own = layouts.find(folder)
    if folder.name in manifest.SPLITS and (own is None or len(own.paths) == 1):
        whole = layouts.find(folder.parent)
        # A set above that has a manifest without this split is not indexed again.
        if (
            whole is not None
            and folder.name in whole.paths
            and manifest.find(str(whole.root)) is None
        ):
            return whole
    if own is not None:
        return own
    version_folder = manifest.only_version_folder(folder)
    return layouts.find(version_folder) if version_folder else None


def _scan(
    layout: Layout, file_begins: Callable[[int], None]
) -> dict[str, list[ScannedFile]]:
    numbers = itertools.count(1)
    scanned: dict[str, list[ScannedFile]] = {}
    for split, names in layout.paths.items():
        scanned[split] = []
        for name in names:
            file_begins(next(numbers))
            scanned[split].append(_scan_file(layout, name))
        _check_counts(layout, split, scanned[split])
    return scanned


def _scan_file(layout: Layout, name: str) -> ScannedFile:
    """Returns the digest of a file, and the offsets and labels of its records."""
    num_bytes = 0
    offsets: list[int] = []
    labels: list[int] = []
    image_formats: dict[str, int] = {}
    named_labels: dict[tuple[int, str], int] = {}
    is_oriented = False
    with naming_failures(f"reading {layout.root / name}"):
        digest = regular_file.sha256(layout.root / name)

    def read(features: Features) -> tuple[int, str, str]:
        nonlocal is_oriented
        is_oriented |= tf_example.IS_ORIENTED in features
        encoded = tf_example.bytes_of(features, layout.image_key)
        class_name = ""
        if layout.name_key is not None:
            class_name = tf_example.class_name_of(features, layout.name_key)
        label = tf_example.integer_of(features, layout.label_key)
        return label, tf_example.image_format_of(encoded), class_name

    records = tf_example.scan_file(layout.root / name, read)
    for offset, num_record_bytes, (label, image_format, class_name) in records:
        num_bytes += num_record_bytes
        offsets.append(offset)
        labels.append(label)
        image_formats.setdefault(image_format, offset)
        if class_name:
            named_labels.setdefault((label, class_name), offset)
    return ScannedFile(
        name=name,
        path=layout.root / name,
        num_bytes=num_bytes,
        offsets=np.array(offsets, np.int64),
        labels=np.array(labels, np.int64),
        sha256=digest,
        image_formats=image_formats,
        named_labels=named_labels,
        is_oriented=is_oriented,
    )


def _check_counts(layout: Layout, split: str, files: Sequence[ScannedFile]) -> None:
    counts = [file.num_records for file in files]
    expected = layout.num_records.get(split)
    if not any(counts):
        raise UserError(
            f"split {split} of the record set in {layout.root} has no records"
        )
    for file, stated in zip(files, expected or counts, strict=True):
        if file.num_records != stated:
            raise UserError(
                f"{file.path} must contain {stated:,} records according to"
                f" {layouts.INFO_FILE}; it contains {file.num_records:,}. Prepare the"
                " data set again."
            )
        if not file.num_records and not expected and not _are_equal_chunks(counts):
            raise UserError(
                f"{file.path} must contain records like the other files of split"
                f" {split}; it is empty. Copy the record set again."
            )


def _are_equal_chunks(counts: Sequence[int]) -> bool:
    """Returns whether all files have as many records, the last ones the rest or none.

    So the TPU scripts divide them.
    """
    rest = sum(counts)
    chunk = -(-rest // len(counts))
    for count in counts:
        if count != min(chunk, rest):
            return False
        rest -= count
    return True


def _save_where_allowed(
    layout: Layout, scanned: dict[str, list[ScannedFile]]
) -> pathlib.Path:
    for index_dir in (layout.root, manifest.cache_folder(layout.root)):
        try:
            index_dir.mkdir(parents=True, exist_ok=True)
            _save(layout, scanned, index_dir)
            break
        except OSError as error:
            if index_dir == layout.root and error.errno in _NOT_WRITABLE:
                continue
            raise UserError(
                f"the index of the records in {layout.root} can't be written to"
                f" {index_dir}: {error}. Set the environment variable RESNET_CPU_CACHE"
                " to a writable folder."
            ) from error
    return index_dir


def _save(
    layout: Layout, scanned: dict[str, list[ScannedFile]], index_dir: pathlib.Path
) -> None:
    files = [file for of_split in scanned.values() for file in of_split]
    labels, class_names = _classes(layout, files)
    source: dict[str, Any] = {"indexed": layout.description}
    if any(file.is_oriented for file in files):
        source["apply_exif_orientation"] = True
    built = manifest.Manifest(
        class_names=class_names,
        first_label=labels.start,
        splits={
            split: _save_split(split, scanned[split], labels, index_dir)
            for split in scanned
        },
        source=source,
        image_key=layout.image_key,
        label_key=layout.label_key,
        image_format=_image_format(layout, files),
        median_side=image_sizes.median_side(
            layout.root, [file.name for file in files], layout.image_key
        ),
    )
    manifest.write(built, index_dir)
    verified.write_all(manifest.RecordSet(built, layout.root, index_dir))


def _save_split(
    name: str, files: Sequence[ScannedFile], labels: range, index_dir: pathlib.Path
) -> manifest.Split:
    contents = [
        ShardContent(
            path=file.name,
            num_bytes=file.num_bytes,
            sha256=file.sha256,
            offsets=file.offsets.tolist(),
            labels=file.labels - labels.start,
        )
        for file in files
        if file.num_records  # Some are empty if a split has more files than records.
    ]
    return write_split(index_dir, name, contents, len(labels))


def _classes(
    layout: Layout, files: Sequence[ScannedFile]
) -> tuple[range, tuple[str, ...]]:
    """Returns the labels of all classes, and the class names in this order."""
    labels = np.concatenate([file.labels for file in files])
    if layout.class_names:
        allowed = range(len(layout.class_names))
    else:
        first_label = 0 if labels.min() == 0 else tf_example.FIRST_LABEL
        allowed = range(first_label, first_label + layouts.MAX_CLASSES)
    for file in files:
        wrong = np.flatnonzero(
            (file.labels < allowed.start) | (file.labels >= allowed.stop)
        )
        if len(wrong):
            raise UserError(
                f"the labels in {file.path} must be from {allowed.start} to"
                f" {allowed.stop - 1:,}; the record at byte"
                f" {file.offsets[wrong[0]]:,} has the label {file.labels[wrong[0]]:,}"
            )
    if layout.class_names:
        return allowed, layout.class_names
    present = range(allowed.start, int(labels.max()) + 1)
    if len(present) > max(_MAX_CLASSES, _MAX_CLASSES_PER_EXAMPLE * len(labels)):
        last = present[-1]
        file = next(file for file in files if last in file.labels)
        place = file.place(file.offsets[np.flatnonzero(file.labels == last)[0]])
        raise UserError(
            f"the labels in {layout.root} must be those of its classes; there are"
            f" {len(labels):,} examples, and {place} has the label {last:,}. Create the"
            " records again."
        )
    return present, _names_of(present, layout, files)


def _names_of(
    labels: range, layout: Layout, files: Sequence[ScannedFile]
) -> tuple[str, ...]:
    """Returns the class name of each label, from the records that contain names."""
    names: dict[int, str] = {}
    places: dict[int, str] = {}
    for file in files:
        for (label, name), offset in file.named_labels.items():
            if names.setdefault(label, name) != name:
                raise UserError(
                    f"label {label} must have the same class name in all records of"
                    f" {layout.root}; it is {name!r} in {file.place(offset)} and"
                    f" {names[label]!r} in {places[label]}. Create the records again."
                )
            places.setdefault(label, file.place(offset))
    labels_of = {name: label for label, name in names.items()}
    for label, name in names.items():
        if labels_of[name] != label:
            raise UserError(
                f"each class in {layout.root} must have one label; class {name!r} has"
                f" the labels {label} and {labels_of[name]}"
            )
    # A label's number can be the name of another class.
    return tuple(
        names.get(label)
        or (f"label {label}" if str(label) in labels_of else str(label))
        for label in labels
    )


def _image_format(layout: Layout, files: Sequence[ScannedFile]) -> str:
    """Returns the format of all images, by their content and not by features.json."""
    first: dict[str, str] = {}
    for file in files:
        for image_format, offset in file.image_formats.items():
            first.setdefault(image_format, file.place(offset))
    if len(first) > 1 or not first.keys() <= set(manifest.IMAGE_FORMATS):
        places = [f"the first {name.upper()} is in {first[name]}" for name in first]
        raise UserError(
            f"the images in {layout.root} must be all JPEG or all PNG;"
            f" {', '.join(places)}. Convert the images, which stores all in one format:"
            f" {layouts.conversion_command(*layout.conversion)}."
        )
    return next(iter(first))
