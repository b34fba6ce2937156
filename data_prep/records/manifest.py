"""The manifest of a record set: which shards there are and what is in them.

`manifest.json` lies in the root of the set, beside the folders `train/` and
`validation/`. It is written last: a set that has one is whole. That of a set which
another program wrote is made by `indexing` and can lie in a cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from data_prep import atomic_files
from data_prep.errors import UserError
from data_prep.records import class_mixing, index_location, tfrecord_format
from data_prep.records.manifest_json import FORMAT_VERSION as FORMAT_VERSION
from data_prep.records.manifest_json import Manifest as Manifest
from data_prep.records.manifest_json import Shard as Shard
from data_prep.records.manifest_json import SkippedImage as SkippedImage
from data_prep.records.manifest_json import Split as Split

FILE_NAME = "manifest.json"

_VERSION_FOLDER = re.compile(r"\d+\.\d+\.\d+")  # As tensorflow_datasets calls it.


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """A record set on disk.

    Attributes:
        manifest: What is in it.
        records_dir: Absolute; the shards' paths are relative to it.
        index_dir: Absolute; holds `manifest.json` and the offsets files. The same
            folder, unless that of the records can't be written to.
    """

    manifest: Manifest
    records_dir: pathlib.Path
    index_dir: pathlib.Path


def write(manifest: Manifest, index_dir: str | os.PathLike[str]) -> None:
    """Writes the manifest file into the index folder of a set; to be called last."""
    data = manifest.to_json().encode("utf-8")
    atomic_files.atomic_write_bytes(pathlib.Path(index_dir, FILE_NAME), data)


def load(data_dir: str, split: str) -> RecordSet:
    """Returns the record set in `data_dir`.

    Args:
        data_dir: The set's root folder or one of its split folders (`RECORDS/train`);
            of a set that tensorflow_datasets prepared, the folder of its version or
            the one above it.
        split: Name of a split that the set must have.

    Raises:
        UserError: If there is no such folder, no manifest or no such split.
    """
    record_set = find(data_dir)
    if record_set is None:
        folder = pathlib.Path(os.path.abspath(data_dir))
        raise UserError(
            f"expected a record set in {folder}, with a {FILE_NAME} there or, if it is"
            f" a split's folder, in {folder.parent}; there is none."
            " imagenet-to-tfrecords writes it at its end: convert the images with"
            " data_prep/imagenet_to_tfrecords.py"
        )
    if split not in record_set.manifest.splits:
        raise UserError(
            f"the set in {record_set.records_dir} has no split {split!r};"
            f" it has {', '.join(sorted(record_set.manifest.splits))}"
        )
    return record_set


def find(data_dir: str) -> RecordSet | None:
    """Returns the record set in `data_dir`, see `load`, or None if there is none.

    Raises:
        UserError: If there is no such folder, or its manifest can't be read.
    """
    folder = pathlib.Path(os.path.abspath(data_dir))
    if not folder.is_dir():
        raise UserError(f"data_dir must be a folder of records, and {folder} is none")
    if (own := _set_at(folder)) is not None:
        return own
    if folder.name in (tfrecord_format.TRAIN, tfrecord_format.VALIDATION):
        above = _set_at(folder.parent)
        # A folder beside the splits of a set is not a part of it.
        if above is not None and folder.name in above.manifest.splits:
            return above
    version_folder = only_version_folder(folder)
    return _set_at(version_folder) if version_folder else None


def only_version_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder named like a version (5.1.0) in `folder`, if there is one.

    Raises:
        UserError: If there are several.
    """
    versions = sorted(
        path
        for path in folder.iterdir()
        if _VERSION_FOLDER.fullmatch(path.name) and path.is_dir()
    )
    if len(versions) > 1:
        raise UserError(
            f"{folder} holds several versions of a data set; name one of them, such as"
            f" {versions[-1]}"
        )
    return versions[0] if versions else None


def check_files(
    record_set: RecordSet, split_name: str, shard_indices: Sequence[int] | None = None
) -> None:
    """Checks that a split's files are there, by their sizes and not their content.

    Args:
        record_set: The set.
        split_name: Of a split that it has.
        shard_indices: Those of the shards that must be there; None: all.

    Raises:
        UserError: If a shard is missing or has another size than in the manifest, or
            the offsets file doesn't have one offset for each example.
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
            f"the set in {record_set.records_dir} is not what its"
            f" {record_set.index_dir / FILE_NAME} says: {problems[0]}; in all"
            f" {len(problems)} of the {len(indices) + 1} files of split {split_name},"
            f" the offsets among them, are bad. {_remedy(record_set, split)} If"
            " each node has a part of them, train with --shard_by=file."
        )


def check_mixing(split: Split) -> None:
    """Checks that the classes of a split are mixed over its shards.

    Raises:
        UserError: If they are far from it, as where each shard holds a few classes.
    """
    measures = [shard.class_mixing for shard in split.shards]
    num_present = sum(count > 0 for count in split.label_counts)
    num_records = [shard.num_records for shard in split.shards]
    if class_mixing.is_mixed(measures, num_records, num_present):
        return
    worst = max(split.shards, key=lambda shard: shard.class_mixing)
    raise UserError(
        f"the classes of split {split.name} must be mixed over its"
        f" {len(split.shards):,} record files; the difference from even shares,"
        f" about 1 where they are, is {sum(measures) / len(measures):,.1f} on average"
        f" and {worst.class_mixing:,.1f} in {worst.path}. Programs that read file by"
        " file lose accuracy by that: convert the images again with"
        " data_prep/imagenet_to_tfrecords.py, which mixes them. --shard_by=example"
        " draws each record from all files, so there --require_mixed=False takes the"
        " set as it is."
    )


def write_offsets(
    index_dir: str | os.PathLike[str],
    split_name: str,
    offsets: npt.NDArray[np.int64],
) -> tuple[str, str]:
    """Writes a split's offsets file.

    Args:
        index_dir: The set's index folder.
        split_name: `train` or `validation`.
        offsets: `[num_examples]`, int64; see `read_offsets`.

    Returns:
        The file's path relative to `index_dir`, and its SHA-256.
    """
    file = io.BytesIO()
    np.save(file, np.asarray(offsets, np.int64), allow_pickle=False)
    path = f"{split_name}-offsets.npy"
    atomic_files.atomic_write_bytes(pathlib.Path(index_dir, path), file.getvalue())
    return path, hashlib.sha256(file.getvalue()).hexdigest()


def read_offsets(record_set: RecordSet, split: Split) -> npt.NDArray[np.int64]:
    """Returns the byte offset of each record in its shard, `[num_examples]`, int64.

    The records are in the order of the shards and, within a shard, in that of the file.

    Raises:
        UserError: If the file can't be read or is not the one that the manifest means.
    """
    path = record_set.index_dir / split.offsets_path
    remedy = _remedy(record_set, split)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"the offsets file {path} can't be read ({error.strerror}). {remedy}"
        ) from error
    if hashlib.sha256(data).hexdigest() != split.offsets_sha256:
        raise UserError(
            f"the offsets file {path} has another SHA-256 than in {FILE_NAME}. {remedy}"
        )
    offsets: npt.NDArray[np.int64] = np.load(io.BytesIO(data), allow_pickle=False)
    if offsets.shape != (split.num_examples,) or offsets.dtype != np.int64:
        raise UserError(
            f"the offsets file {path} must hold {split.num_examples} numbers of type"
            f" int64, and holds {offsets.dtype} in the shape {offsets.shape}. {remedy}"
        )
    return offsets


def shard_of_example(split: Split) -> npt.NDArray[np.int32]:
    """Returns the index of each example's shard, `[num_examples]`, int32."""
    indices = np.arange(len(split.shards), dtype=np.int32)
    return np.repeat(indices, [shard.num_records for shard in split.shards])


def _set_at(records_dir: pathlib.Path) -> RecordSet | None:
    for index_dir in (records_dir, index_location.cache_folder(records_dir)):
        manifest = _load_from(index_dir)
        if manifest is not None:
            return RecordSet(manifest, records_dir, index_dir)
    return None


def _load_from(folder: pathlib.Path) -> Manifest | None:
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the manifest {path} can't be read: {error}") from error
    return Manifest.from_json(text, path)


def _problem_of_shard(records_dir: pathlib.Path, shard: Shard) -> str | None:
    try:
        num_bytes = os.stat(records_dir / shard.path).st_size
    except OSError as error:
        return f"{shard.path} can't be read ({error.strerror})"
    if num_bytes != shard.num_bytes:
        return f"{shard.path} has {num_bytes:,} bytes instead of {shard.num_bytes:,}"
    return None


def _problem_of_offsets(index_dir: pathlib.Path, split: Split) -> str | None:
    try:
        offsets = np.load(index_dir / split.offsets_path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        return f"{split.offsets_path} can't be read ({error})"
    if offsets.shape != (split.num_examples,):
        return (
            f"{split.offsets_path} has the shape {offsets.shape} instead of"
            f" ({split.num_examples},)"
        )
    return None


def _remedy(record_set: RecordSet, split: Split) -> str:
    """Returns what to do where the files are not what the manifest says."""
    if all(shard.sha256 is not None for shard in split.shards):
        return "Copy or convert the set again."
    index = record_set.index_dir
    if index == record_set.records_dir:
        index = index / FILE_NAME
    return (
        "If the records were changed on purpose, remove their old index,"
        f" {index}, and start again: it is made anew."
    )
