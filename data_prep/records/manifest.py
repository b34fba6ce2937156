"""The manifest of a record set on disk: finding, checking and writing it.

`manifest.json` is in the root of the set, beside the folders `train/` and
`validation/`. It is written last, so a set with a manifest is complete. For sets
written by other programs, `indexing` creates the manifest, possibly in a cache folder.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from data_prep.records import class_mixing, index_location, schema
from data_prep.records.manifest_json import FORMAT_VERSION as FORMAT_VERSION
from data_prep.records.manifest_json import Manifest as Manifest
from data_prep.records.manifest_json import Shard as Shard
from data_prep.records.manifest_json import SkippedImage as SkippedImage
from data_prep.records.manifest_json import Split as Split
from resnet.base import atomic_files, regular_file
from resnet.base.errors import UserError, naming_failures

FILE_NAME = "manifest.json"

_MAX_MANIFEST_BYTES = 2**31  # ImageNet's manifest has less than a million.
_MAX_NUMPY_HEADER = 4096  # Bytes before the values of an offsets file.

_VERSION_FOLDER = re.compile(r"\d+\.\d+\.\d+")  # Version folder of tensorflow_datasets.


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """A record set on disk.

    Attributes:
        manifest: Content of the set.
        records_dir: Absolute path of the folder that the shards' paths are relative to.
        index_dir: Absolute path of the folder with `manifest.json` and the offsets
            files. It is `records_dir` unless that folder isn't writable.
    """

    manifest: Manifest
    records_dir: pathlib.Path
    index_dir: pathlib.Path


def write(manifest: Manifest, index_dir: str | os.PathLike[str]) -> None:
    """Writes the manifest file to the index folder of a set; must be called last.

    Raises:
        UserError: If the folder contains a manifest, which is never replaced.
    """
    path = pathlib.Path(index_dir, FILE_NAME)
    if os.path.lexists(path):
        raise UserError(
            f"a manifest must be written to {path}, but another one is there and isn't"
            " replaced. If it isn't needed, move it away and rerun the command."
        )
    atomic_files.atomic_write_bytes(path, manifest.to_json().encode("utf-8"))


def load(data_dir: str, split: str) -> RecordSet:
    """Returns the record set in `data_dir`.

    Args:
        data_dir: Root folder of the set or one of its split folders (`RECORDS/train`).
            For a set prepared by tensorflow_datasets, the version folder or the folder
            above it.
        split: Name of a split that the set must contain.

    Raises:
        UserError: If the folder, the manifest or the split doesn't exist.
    """
    record_set = find(data_dir)
    if record_set is None:
        folder = pathlib.Path(os.path.abspath(data_dir))
        raise UserError(
            f"{folder} is not a record set: it has no {FILE_NAME}, nor has"
            f" {folder.parent}. data_prep/imagenet_to_tfrecords.py writes that file at"
            " the end of a conversion: convert the images first."
        )
    if split not in record_set.manifest.splits:
        raise UserError(
            f"the record set in {record_set.records_dir} has no split {split!r};"
            f" it has {', '.join(sorted(record_set.manifest.splits))}"
        )
    return record_set


def find(data_dir: str) -> RecordSet | None:
    """Returns the record set in `data_dir` (see `load`), or None without a manifest.

    Raises:
        UserError: If the folder doesn't exist, or it or its manifest can't be read.
    """
    with naming_failures(f"reading the record set in {data_dir}"):
        return _find(pathlib.Path(os.path.abspath(data_dir)))


def _find(folder: pathlib.Path) -> RecordSet | None:
    if not folder.is_dir():
        raise UserError(
            f"data_dir must be a folder of record files; {folder} is not a folder"
        )
    if (own := _set_at(folder)) is not None:
        return own
    if folder.name in (schema.TRAIN, schema.VALIDATION):
        above = _set_at(folder.parent)
        # A folder in the root of a set need not belong to it, whatever its name.
        if above is not None and folder.name in above.manifest.splits:
            return above
    version_folder = only_version_folder(folder)
    return _set_at(version_folder) if version_folder else None


def only_version_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the version folder (such as 5.1.0) in `folder`, or None without one.

    Raises:
        UserError: If there are several version folders.
    """
    versions = sorted(
        path
        for path in folder.iterdir()
        if _VERSION_FOLDER.fullmatch(path.name) and path.is_dir()
    )
    if len(versions) > 1:
        raise UserError(
            f"{folder} contains several versions of a data set; choose one of them, for"
            f" example {versions[-1]}"
        )
    return versions[0] if versions else None


def check_files(
    record_set: RecordSet, split_name: str, shard_indices: Sequence[int] | None = None
) -> None:
    """Checks that a split's files exist and have the right sizes; reads no records.

    Args:
        record_set: The record set.
        split_name: Name of one of its splits.
        shard_indices: Indices of the shards to check; None checks all.

    Raises:
        UserError: If a shard is missing, its size differs from the manifest, or the
            offsets file doesn't contain one offset per example.
    """
    split = record_set.manifest.splits[split_name]
    indices = range(len(split.shards)) if shard_indices is None else shard_indices
    problems = [
        problem
        for index in indices
        if (problem := _problem_of_shard(record_set.records_dir, split.shards[index]))
    ]
    if problem := _problem_of_offsets(record_set.index_dir, split):
        problems.append(problem)
    if problems:
        raise UserError(
            f"{len(problems)} of the {len(indices) + 1} files of split {split_name}"
            f" (shards and offsets) in {record_set.records_dir} don't match"
            f" {record_set.index_dir / FILE_NAME}; the first one: {problems[0]}."
            f" {_remedy(record_set, split)} If each node has only some of the shards,"
            " train with --shard_by=file."
        )


def check_mixing(split: Split) -> None:
    """Checks that the examples of each class are spread randomly over the shards.

    Raises:
        UserError: If they clearly are not, for example with a few classes per shard.
    """
    measures = [shard.class_mixing for shard in split.shards]
    num_present = sum(count > 0 for count in split.label_counts)
    num_records = [shard.num_records for shard in split.shards]
    if class_mixing.is_mixed(measures, num_records, num_present):
        return
    worst = max(split.shards, key=lambda shard: shard.class_mixing)
    raise UserError(
        f"the classes of split {split.name} are not shuffled across its"
        f" {len(split.shards):,} shards: chi-square per degree of freedom, about 1"
        f" after a random shuffle, is {sum(measures) / len(measures):,.1f} on average"
        f" and {worst.class_mixing:,.1f} in {worst.path}. Programs that read shard by"
        " shard lose accuracy on such a set: convert the images again with"
        " data_prep/imagenet_to_tfrecords.py, which shuffles them. With"
        " --shard_by=example, which shuffles single records, --require_mixed=False"
        " accepts the set."
    )


def offsets_path(split_name: str) -> str:
    """Returns the name of a split's offsets file in the index folder."""
    return f"{split_name}-offsets.npy"


def write_offsets(
    index_dir: str | os.PathLike[str],
    split_name: str,
    offsets: npt.NDArray[np.int64],
) -> tuple[str, str]:
    """Writes a split's offsets file.

    Args:
        index_dir: Index folder of the set.
        split_name: `train` or `validation`.
        offsets: Byte offset of each record in its shard, `[num_examples]`, int64.

    Returns:
        Path of the file relative to `index_dir`, and its SHA-256 in hexadecimal.

    Raises:
        UserError: If there is a file of this name that doesn't contain offsets.
    """
    file = io.BytesIO()
    np.save(file, np.asarray(offsets, np.int64), allow_pickle=False)
    path = offsets_path(split_name)
    _check_replaceable(pathlib.Path(index_dir, path))
    atomic_files.atomic_write_bytes(pathlib.Path(index_dir, path), file.getvalue())
    return path, hashlib.sha256(file.getvalue()).hexdigest()


def read_offsets(record_set: RecordSet, split: Split) -> npt.NDArray[np.int64]:
    """Returns the byte offset of each record in its shard, `[num_examples]`, int64.

    The records are in the order of the shards and, within a shard, in file order.

    Raises:
        UserError: If the offsets file can't be read, its SHA-256 differs from the
            manifest's, or a shard can't have records at these offsets.
    """
    path = record_set.index_dir / split.offsets_path
    remedy = _remedy(record_set, split)
    try:
        data = regular_file.read_bytes(path, 8 * split.num_examples + _MAX_NUMPY_HEADER)
    except OSError as error:
        raise UserError(
            f"the offsets file {path} can't be read ({error.strerror}). {remedy}"
        ) from error
    if hashlib.sha256(data).hexdigest() != split.offsets_sha256:
        raise UserError(
            f"the SHA-256 of the offsets file {path} differs from {FILE_NAME}. {remedy}"
        )
    offsets: npt.NDArray[np.int64] = np.load(io.BytesIO(data), allow_pickle=False)
    if offsets.shape != (split.num_examples,) or offsets.dtype != np.int64:
        raise UserError(
            f"the offsets file {path} must contain {split.num_examples} values of type"
            f" int64; it contains {offsets.dtype} of shape {offsets.shape}. {remedy}"
        )
    if path_of_wrong := _shard_with_other_offsets(split, offsets):
        raise UserError(
            f"the offsets file {path} contradicts {FILE_NAME}: the offsets of"
            f" {path_of_wrong} must rise from 0 and be less than its size. {remedy}"
        )
    return offsets


def shard_of_example(split: Split) -> npt.NDArray[np.int32]:
    """Returns the index of each example's shard, `[num_examples]`, int32."""
    indices = np.arange(len(split.shards), dtype=np.int32)
    return np.repeat(indices, [shard.num_records for shard in split.shards])


def _shard_with_other_offsets(
    split: Split, offsets: npt.NDArray[np.int64]
) -> str | None:
    """Returns the path of the first shard whose offsets are impossible, or None."""
    ends = np.cumsum([shard.num_records for shard in split.shards])
    begins = np.concatenate([[0], ends[:-1]])
    rises = np.ones(len(offsets), bool)
    rises[1:] = offsets[1:] > offsets[:-1]
    rises[begins] = offsets[begins] == 0
    sizes = np.array([shard.num_bytes for shard in split.shards], np.int64)
    is_good = np.logical_and.reduceat(rises, begins) & (offsets[ends - 1] < sizes)
    wrong = np.flatnonzero(~is_good)
    return split.shards[wrong[0]].path if len(wrong) else None


def _set_at(records_dir: pathlib.Path) -> RecordSet | None:
    for index_dir in (records_dir, index_location.cache_folder(records_dir)):
        manifest = _load_from(index_dir)
        if manifest is not None:
            return RecordSet(manifest, records_dir, index_dir)
    return None


def _load_from(folder: pathlib.Path) -> Manifest | None:
    path = folder / FILE_NAME
    try:
        text = regular_file.read_bytes(path, _MAX_MANIFEST_BYTES).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the manifest {path} can't be read: {error}") from error
    return Manifest.from_json(text, path)


def _problem_of_shard(records_dir: pathlib.Path, shard: Shard) -> str | None:
    path = records_dir / shard.path
    try:
        num_bytes = os.stat(path).st_size
    except OSError as error:
        return f"{shard.path} can't be read ({error.strerror})"
    if not os.access(path, os.R_OK):
        return f"{shard.path} can't be read ({os.strerror(errno.EACCES)})"
    if num_bytes != shard.num_bytes:
        return f"{shard.path} has {num_bytes:,} bytes; expected {shard.num_bytes:,}"
    return None


def _check_replaceable(path: pathlib.Path) -> None:
    """Checks that a file is missing or contains offsets, as an earlier index does."""
    if not os.path.lexists(path):
        return
    try:
        regular_file.open_regular(path).close()
        found = np.load(path, mmap_mode="r")
        is_replaceable = found.ndim == 1 and found.dtype == np.int64
    except (OSError, ValueError, EOFError, AttributeError):  # An .npz has no ndim.
        is_replaceable = False
    if not is_replaceable:
        raise UserError(
            f"the offsets of the records must be written to {path}, but that file"
            " contains something else. Move it away and rerun the command."
        )


def _problem_of_offsets(index_dir: pathlib.Path, split: Split) -> str | None:
    path = index_dir / split.offsets_path
    try:
        regular_file.open_regular(path).close()
        offsets = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        return f"{split.offsets_path} can't be read ({error})"
    if offsets.shape != (split.num_examples,):
        return (
            f"{split.offsets_path} has shape {offsets.shape}; expected"
            f" ({split.num_examples},)"
        )
    return None


def _remedy(record_set: RecordSet, split: Split) -> str:
    """Returns the advice for files that don't match the manifest."""
    if all(shard.sha256 is not None for shard in split.shards):
        return "Copy the record set again or convert it again."
    index = record_set.index_dir
    if index == record_set.records_dir:
        index = index / FILE_NAME
    return (
        f"If the records were changed on purpose, delete their old index, {index}, and"
        " rerun the command: it builds a new index."
    )
