"""The schema of record sets: file names, features of an example, labels.

They are those of the TPU ResNet scripts (tensorflow/tpu,
`tools/datasets/imagenet_to_gcs.py`), so either side reads the other's record sets.
"""

from data_prep.records.tf_example import encode_example

TRAIN = "train"
VALIDATION = "validation"

ENCODED = "image/encoded"  # Content of the JPEG or PNG file, bytes.
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
COLORSPACE = "image/colorspace"
FORMAT = "image/format"
FILENAME = "image/filename"  # Without the folder.
LABEL = "image/class/label"  # FIRST_LABEL + class index.
SYNSET = "image/class/synset"  # Class name.
# 1 in the records of --apply_exif_orientation; others lack it, as in the TPU scripts.
IS_ORIENTED = "image/exif_orientation_applied"

# State of an unfinished conversion, in the root of the set; removed at the end.
CONVERSION_FOLDER = ".conversion"

FIRST_LABEL = 1  # As in the TPU scripts, where 0 is kept for "background".


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns the name of a record file, such as `train-00000-of-01024`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}"


def image_example(
    encoded: bytes,
    *,
    height: int,
    width: int,
    label: int,
    class_name: str,
    filename: str,
    image_format: str = "jpeg",
    is_oriented: bool = False,
) -> bytes:
    """Returns one labelled image as a serialized `tf.train.Example`.

    As in the TPU scripts, channels and color space are 3 and RGB for gray images too,
    because they describe the decoded image.

    Args:
        encoded: Content of a JPEG or PNG file.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        label: `FIRST_LABEL` + class index.
        class_name: Synset or name of the class folder.
        filename: Name of the image's file without the folder.
        image_format: Format of `encoded`, "jpeg" or "png".
        is_oriented: Whether the set's images were rotated and flipped by their EXIF
            orientation.
    """
    return encode_example(
        {
            ENCODED: encoded,
            HEIGHT: height,
            WIDTH: width,
            CHANNELS: 3,
            COLORSPACE: b"RGB",
            FORMAT: image_format.upper().encode(),
            FILENAME: _file_system_bytes(filename),
            LABEL: label,
            SYNSET: _file_system_bytes(class_name),
            **({IS_ORIENTED: 1} if is_oriented else {}),
        }
    )


def _file_system_bytes(name: str) -> bytes:
    """Returns a file name's bytes as on disk, also if they aren't valid UTF-8."""
    return name.encode("utf-8", "surrogateescape")
