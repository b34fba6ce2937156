"""Random access into the TFRecord files of a converted data set, inside the graph."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from data_prep import manifest, tfrecord_format


@dataclass(frozen=True)
class RecordFiles:
    """Where each example of one split lies.

    Attributes:
        paths: The files.
        file_of_example: int32 `[num_examples]`, index into `paths`.
        offset_of_example: int64 `[num_examples]`, first byte of the record in its file.
        first_label: What the records call class 0.
        class_names: In the order of the labels.
    """

    paths: tuple[str, ...]
    file_of_example: np.ndarray
    offset_of_example: np.ndarray
    first_label: int
    class_names: tuple[str, ...]

    @property
    def num_examples(self) -> int:
        """Examples of the split."""
        return len(self.offset_of_example)


def open_split(data_dir: str, split_name: str) -> RecordFiles:
    """Returns one split of a converted data set.

    The shards themselves are not looked at: `manifest.check_files` does that.

    Raises:
        UserError: If there is no such set or split, or its offsets are damaged.
    """
    contents, root = manifest.load(data_dir, split_name)
    split = contents.splits[split_name]
    return RecordFiles(
        paths=tuple(str(root / shard.path) for shard in split.shards),
        file_of_example=manifest.shard_of_example(split),
        offset_of_example=manifest.read_offsets(root, split),
        first_label=contents.first_label,
        class_names=contents.class_names,
    )


class _RecordsFrom(tf.data.Dataset):
    """The records of a file from a byte offset on; for use inside a dataset's function.

    `tf.data.TFRecordDataset` has no argument for the op's offsets. Without a buffer one
    record is read in one go. The checksums are verified by the op.
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


def read_example(path: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the encoded picture (string) and its label as stored (int64).

    To be called in a function of a dataset. A damaged record, or no record at this
    offset, raises an error: nothing else is ever returned in its place.

    Args:
        path: string scalar.
        offset: int64 scalar.
    """
    record = _RecordsFrom(path, offset).take(1).get_single_element()
    features = tf.io.parse_single_example(
        record,
        {
            tfrecord_format.ENCODED: tf.io.FixedLenFeature([], tf.string),
            tfrecord_format.LABEL: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return features[tfrecord_format.ENCODED], features[tfrecord_format.LABEL]
