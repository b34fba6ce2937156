"""Reads converted records with TensorFlow."""

import pathlib

import tensorflow as tf

from data_prep.records import manifest, record_index, tfrecord


def read_examples(records: pathlib.Path, name: str) -> list[dict]:
    """Reads a split with TensorFlow and checks that the offsets lead to the records."""
    record_set = manifest.load(str(records), name)
    manifest.check_files(record_set, name)
    split = record_set.manifest.splits[name]
    paths = [str(record_set.records_dir / shard.path) for shard in split.shards]
    records_data = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    offsets = record_index.read_index(record_set, split)["offset"]
    assert len(records_data) == len(offsets) == split.num_examples
    examples = []
    for record, offset, shard in zip(
        records_data, offsets, record_index.shard_of_example(split), strict=True
    ):
        framed = tfrecord.frame_record(record)
        assert contents[shard][offset : offset + len(framed)] == framed
        feature = tf.train.Example.FromString(record).features.feature
        examples.append(
            {
                "file": feature["image/filename"].bytes_list.value[0].decode(),
                "class": feature["image/class/synset"].bytes_list.value[0].decode(),
                "label": feature["image/class/label"].int64_list.value[0],
                "encoded": feature["image/encoded"].bytes_list.value[0],
                "size": (
                    feature["image/width"].int64_list.value[0],
                    feature["image/height"].int64_list.value[0],
                ),
            }
        )
    return examples
