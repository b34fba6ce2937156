"""The index of a record set: where each example is, and its labels.

The index file of a split is an array of NumPy's format beside the manifest.
"""

import hashlib
import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.records import labels, manifest
from data_prep.records.labels import Labels
from data_prep.records.manifest import RecordSet, Split
from resnet.base import atomic_files, regular_file
from resnet.base.errors import UserError

# The entries of an index of images in place: where the bytes of each are, and their
# checksum.
_IMAGE_INDEX = (
    ("offset", "<i8"),
    ("num_bytes", "<i8"),
    ("crc32c", "<u4"),
    ("shard", "<i4"),
)
_MAX_PATH_BYTES = 4096  # Linux's PATH_MAX.
_MAX_NUMPY_HEADER = 4096  # Bytes before the values of an index file.


def write_index(
    index_dir: str | os.PathLike[str], split_name: str, index: npt.NDArray[Any]
) -> tuple[str, str]:
    """Writes a split's index file; returns its relative path and SHA-256.

    `index` is `[num_examples]` of `record_index_type` or `image_index_type`. Raises
    UserError if there is a file of this name that contains something else.
    """
    file = io.BytesIO()
    np.save(file, index, allow_pickle=False)
    path = pathlib.Path(index_dir, manifest.index_path(split_name))
    if os.path.lexists(path) and not _contains_index(path):
        raise UserError(
            f"{path} must be written, but that file contains something else than an"
            " index of examples; move it away and rerun the command"
        )
    atomic_files.atomic_write_bytes(path, file.getvalue())
    return path.name, hashlib.sha256(file.getvalue()).hexdigest()


def record_index_type(num_labels: int = 0) -> np.dtype[Any]:
    """Returns the type of an index of records, which are numbered by shard.

    `num_labels` is the number of all labels where an image may have several, else 0.
    """
    return np.dtype([("offset", "<i8"), _labels_field(num_labels)])


def image_index_type(max_name_bytes: int, num_labels: int = 0) -> np.dtype[Any]:
    """Returns the type of an index of images in place, with names of so many bytes.

    `name` is that of an image file in the folder that is its shard; empty for a span of
    a file. `num_labels` is that of `record_index_type`.
    """
    name = ("name", f"S{max(1, max_name_bytes)}")
    return np.dtype([*_IMAGE_INDEX, _labels_field(num_labels), name])


def _labels_field(num_labels: int) -> tuple[Any, ...]:
    return ("labels", "u1", (num_labels,)) if num_labels else ("class_index", "<i4")


def labels_of(index: npt.NDArray[Any]) -> Labels:
    """Returns the labels of the examples of an index."""
    of_examples: Labels = index[
        "labels" if "labels" in (index.dtype.names or ()) else "class_index"
    ]
    return of_examples


def set_labels(index: npt.NDArray[Any], of_examples: Labels) -> None:
    """Sets the labels of the examples of an index."""
    index["class_index" if of_examples.ndim == 1 else "labels"] = of_examples


def _contains_index(path: pathlib.Path) -> bool:
    """Returns whether a file contains an index, as that of an earlier conversion."""
    try:
        array = manifest.map_array(path)
        return bool(array.ndim == 1 and "offset" in (array.dtype.names or ()))
    except (OSError, ValueError, EOFError, AttributeError):  # An .npz has no ndim.
        return False


def read_index(record_set: RecordSet, split: Split) -> npt.NDArray[Any]:
    """Returns the place and the class of each example, as `write_index` took them.

    Raises UserError if the index file can't be read or isn't that of the manifest, or
    no examples can be at these places.
    """
    path = record_set.index_dir / split.index_path
    contents = record_set.manifest

    def refused(problem: str) -> UserError:
        return UserError(
            f"the index file {path} {problem}. {manifest.remedy(record_set)}"
        )

    num_labels = len(contents.class_names) if contents.multi_label else 0
    expected = record_index_type(num_labels)
    if contents.images_dir:
        expected = image_index_type(1, num_labels)
    most = expected.itemsize + (_MAX_PATH_BYTES if contents.images_dir else 0)
    try:
        data = regular_file.read_bytes(
            path, most * split.num_examples + _MAX_NUMPY_HEADER
        )
    except OSError as error:
        raise refused(f"can't be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != split.index_sha256:
        raise refused(f"has another SHA-256 than in {manifest.FILE_NAME}")
    index: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    if (index.shape, index.dtype.names) != ((split.num_examples,), expected.names):
        raise refused(
            f"must contain {split.num_examples} entries of {expected.names}; it"
            f" contains {index.dtype} of shape {index.shape}"
        )
    wrong = (_wrong_spans if contents.images_dir else _wrong_offsets)(index, split)
    if len(wrong):
        raise refused(
            f"contradicts {manifest.FILE_NAME}: the offsets of"
            f" {split.shards[wrong[0]].path} must rise from 0 and be less than its size"
        )
    if not _has_labels(labels_of(index), split.label_counts):
        raise refused(f"contradicts {manifest.FILE_NAME}: it has other label_counts")
    return index


def _has_labels(of_examples: Labels, label_counts: Sequence[int]) -> bool:
    """Returns whether so many examples have each label, and no one has others."""
    if of_examples.ndim == 1:
        of_examples = np.maximum(of_examples, -1) + 1  # A negative one becomes 0.
        label_counts = (0, *label_counts)
    elif of_examples.max(initial=0) > 1:
        return False
    counted = labels.counts(of_examples, len(label_counts))
    return bool(np.array_equal(counted, label_counts))


def _wrong_offsets(index: npt.NDArray[Any], split: Split) -> npt.NDArray[np.int64]:
    """Returns the shards that can't have records at the offsets of the index."""
    offsets = index["offset"]
    ends = np.cumsum([shard.num_records for shard in split.shards])
    begins = np.concatenate([[0], ends[:-1]])
    rises = np.ones(len(offsets), bool)
    rises[1:] = offsets[1:] > offsets[:-1]
    rises[begins] = offsets[begins] == 0
    sizes = np.array([shard.num_bytes for shard in split.shards], np.int64)
    is_good = np.logical_and.reduceat(rises, begins) & (offsets[ends - 1] < sizes)
    return np.flatnonzero(~is_good)


def _wrong_spans(index: npt.NDArray[Any], split: Split) -> npt.NDArray[np.int64]:
    """Returns the shards in which images can't be where the index has them."""
    shards = np.clip(index["shard"], 0, len(split.shards) - 1)
    sizes = np.array([shard.num_bytes for shard in split.shards], np.int64)[shards]
    is_good = (shards == index["shard"]) & (index["offset"] >= 0)
    is_good &= (index["num_bytes"] > 0) & (
        index["num_bytes"] <= sizes - index["offset"]
    )
    return np.unique(shards[~is_good])


def shard_of_example(
    split: Split, index: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.int32]:
    """Returns the index of each example's shard, `[num_examples]`, int32.

    Without the index, they are those of records.
    """
    if index is not None and "shard" in (index.dtype.names or ()):
        shards: npt.NDArray[np.int32] = index["shard"]
        return shards
    indices = np.arange(len(split.shards), dtype=np.int32)
    return np.repeat(indices, [shard.num_records for shard in split.shards])
