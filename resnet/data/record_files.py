"""Random access into the files of a data set, inside the graph."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from data_prep.records import in_place, record_index, tf_example, tfrecord
from data_prep.records.labels import Labels
from data_prep.records.manifest import RecordSet
from data_prep.records.tf_example import RecordForm
from resnet import native


@dataclass(frozen=True, kw_only=True)
class RecordFiles(RecordForm):
    """The examples of one split, or of a part of it: their places and their form.

    The arrays are `[num_examples]`.
    """

    paths: tuple[str, ...]  # Of the record files or, in place, as `manifest.Shard`.
    file_of_example: np.ndarray  # The index of the file in `paths`, int32.
    index: np.ndarray  # Of the type of the set's index (`record_index.read_index`).
    number_of_example: np.ndarray  # In the whole split, int64.
    labels: Labels  # The classes are those of the run.

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return len(self.index)

    @property
    def is_in_place(self) -> bool:
        """Whether the files are those of the images, rather than records."""
        return "crc32c" in (self.index.dtype.names or ())

    def place_of(self, example: int) -> str:
        """Returns the place of an example for messages."""
        entry, path = self.index[example], self.paths[self.file_of_example[example]]
        if not self.is_in_place:
            return f"the record at byte {entry['offset']} of {path}"
        where = f"at byte {entry['offset']} of " * (not entry["name"])
        return f"the image {where}{in_place.path_of(path, entry)}"

    def read(self, example: int) -> tuple[bytes, str]:
        """Returns the encoded image of an example, and its file name if it is stored.

        Raises OSError as files do, ValueError if the example is corrupt.
        """
        entry, path = self.index[example], self.paths[self.file_of_example[example]]
        if self.is_in_place:
            return in_place.read(path, entry), in_place.name_of(entry)
        record = tfrecord.read_at(path, int(entry["offset"]))
        features = tf_example.parse_example(record)
        _, encoded = self.labels_and_image(features)
        try:
            return encoded, tf_example.text_of(features, tf_example.FILENAME)
        except ValueError:  # Sets of others needn't have the feature.
            return encoded, ""

    def only_files(self, indices: Sequence[int]) -> "RecordFiles":
        """Returns the examples whose records are in the files `paths[indices]`."""
        return self.only(np.isin(self.file_of_example, indices))

    def only(self, chosen: np.ndarray) -> "RecordFiles":
        """Returns the examples that are chosen, bool `[num_examples]`."""
        return dataclasses.replace(
            self,
            file_of_example=self.file_of_example[chosen],
            index=self.index[chosen],
            labels=self.labels[chosen],
            number_of_example=self.number_of_example[chosen],
        )


def open_split(
    record_set: RecordSet, split_name: str, class_names: tuple[str, ...] = ()
) -> RecordFiles:
    """Returns one split of a data set, whose record files are not opened.

    Its labels become those of a run that has these classes, all of its own among them.
    """
    contents = record_set.manifest
    split = contents.splits[split_name]
    index = record_index.read_index(record_set, split)
    of_set = record_index.labels_of(index)
    indices = {name: index for index, name in enumerate(class_names)}
    places = [indices.get(name, -1) for name in contents.class_names]
    if not class_names:
        labels = of_set
    elif contents.multi_label:
        labels = np.zeros((len(index), len(class_names)), np.uint8)
        labels[:, places] = of_set
    else:
        labels = np.array(places, np.int32)[of_set]
    return RecordFiles(
        paths=tuple(str(record_set.records_dir / shard.path) for shard in split.shards),
        file_of_example=record_index.shard_of_example(split, index),
        index=index,
        number_of_example=np.arange(split.num_examples, dtype=np.int64),
        first_label=contents.first_label,
        class_names=contents.class_names,
        image_key=contents.image_key,
        label_key=contents.label_key,
        image_format=contents.image_format,
        multi_label=contents.multi_label,
        labels=labels,
    )


def read_example(
    path: tf.Tensor, offset: tf.Tensor, image_key: str, integer_key: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the encoded image (string) and the integer of a feature (int64).

    `path` is a string scalar and `offset` an int64 scalar. A corrupt record, or an
    offset at which no record begins, raises an error.
    """
    ops = native.ops()
    if ops is None:
        return read_with_stock_ops(path, offset, image_key, integer_key)
    return ops.resnet_read_example(
        path, offset, image_key=image_key, label_key=integer_key
    )


def read_with_stock_ops(
    path: tf.Tensor, offset: tf.Tensor, image_key: str, integer_key: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what `read_example` returns, without the compiled op."""
    record = _RecordsFrom(path, offset).take(1).get_single_element()
    features = tf.io.parse_single_example(
        record,
        {
            image_key: tf.io.FixedLenFeature([], tf.string),
            integer_key: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return features[image_key], features[integer_key]


def read_image(path: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """Returns an encoded image in place, a string scalar.

    `place` has the offset, the number of bytes and the CRC32C, int64 `[3]`. Other bytes
    than those of the index raise an error.
    """
    offset, num_bytes, checksum = tf.unstack(place, num=3)
    if ops := native.ops():
        return ops.resnet_read_image(path, offset, num_bytes, checksum)

    def read(path: bytes, offset: int, num_bytes: int, checksum: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            encoded = os.pread(file.fileno(), num_bytes, offset)
        in_place.check(encoded, num_bytes, checksum)
        return encoded

    inputs = [path, offset, num_bytes, checksum]
    return tf.ensure_shape(tf.numpy_function(read, inputs, tf.string), [])


class _RecordsFrom(tf.data.Dataset):
    """The records of a file from a byte offset on, read one at a time.

    `tf.data.TFRecordDataset` has no argument for the op's offsets.
    """

    def __init__(self, path: tf.Tensor, offset: tf.Tensor) -> None:
        super().__init__(
            tf.raw_ops.TFRecordDatasetV2(
                filenames=[path],
                compression_type="",
                buffer_size=0,
                byte_offsets=[offset],
            )
        )

    @property
    def element_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([], tf.string)

    def _inputs(self) -> list[tf.data.Dataset]:
        return []


@dataclass(frozen=True)
class ExampleShard:
    """A part of a split and the ranks that read it."""

    records: RecordFiles  # The examples of the part.
    rank: int  # Of this process among the ranks that read the part, from 0.
    num_ranks: int  # That read the part.
    num_examples_of_all: int  # Of the whole split, over all parts.

    @property
    def first_example(self) -> int:
        """The first example of `records` that this rank evaluates."""
        return self.rank * self.records.num_examples // self.num_ranks

    @property
    def end_example(self) -> int:
        """The example after the last one that this rank evaluates."""
        return (self.rank + 1) * self.records.num_examples // self.num_ranks

    def sample(self, most: int) -> "ExampleShard":
        """Returns the part of at most so many examples, evenly spaced in the split."""
        stride = -(-self.num_examples_of_all // most)
        records = self.records.only(self.records.number_of_example % stride == 0)
        num_of_all = -(-self.num_examples_of_all // stride)
        return ExampleShard(records, self.rank, self.num_ranks, num_of_all)


def shard_of_rank(
    records: RecordFiles, shards_of_ranks: Sequence[tuple[int, ...]], rank: int
) -> ExampleShard:
    """Returns the shard of a rank; ranks that read the same files divide these."""
    files = shards_of_ranks[rank]
    ranks = [other for other, indices in enumerate(shards_of_ranks) if indices == files]
    part = records
    if len(files) < len(records.paths):
        part = records.only_files(files)
    return ExampleShard(part, ranks.index(rank), len(ranks), records.num_examples)
