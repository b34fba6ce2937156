"""Examples: labelled images as serialized `tf.train.Example`s, without TensorFlow.

The features are those of the TPU ResNet scripts (tensorflow/tpu,
`tools/datasets/imagenet_to_gcs.py`), so either side reads the other's record sets.
"""

import dataclasses
import functools
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf import message

from data_prep.records import tfrecord
from data_prep.records.tfrecord import FOOTER_BYTES, HEADER_BYTES
from resnet.base import regular_file
from resnet.base.errors import UserError
from resnet.base.names import normalized

ENCODED = "image/encoded"  # Content of the JPEG or PNG file, bytes.
FILENAME = "image/filename"  # Without the folder.
LABEL = "image/class/label"  # FIRST_LABEL + class index, of each label of the image.
SYNSET = "image/class/synset"  # Class name of each.
WIDTH = "image/width"  # In pixels.
# 1 in the records of --apply_exif_orientation; others lack it, as in the TPU scripts.
IS_ORIENTED = "image/exif_orientation_applied"

FIRST_LABEL = 1  # As in the TPU scripts, where 0 is kept for "background".

_COMPRESSED_STARTS = (b"\x1f\x8b\x08", b"x\x01", b"x^", b"x\x9c", b"x\xda")
_IMAGE_STARTS = {
    **{"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"},
    **{"gif": b"GIF8", "bmp": b"BM", "webp": b"RIFF"},  # Of no set that is read.
}
# The kinds of features, and what errors call their values.
_INTEGER, _BYTES = ("int64_list", "an integer"), ("bytes_list", "a string of bytes")

# Source: tensorflow/core/example/example.proto and feature.proto.
_PROTO = """
name: "example.proto" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 type_name: "FeatureEntry" label: LABEL_REPEATED }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: "Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: "Features" } }
"""

_Value = TypeVar("_Value")
Value = bytes | int | Sequence[bytes] | Sequence[int]
Features = Mapping[str, Any]  # The protobuf message of each feature, by its name.


def image_example(
    encoded: bytes,
    *,
    height: int,
    width: int,
    labels: Sequence[int],
    class_names: Sequence[str],
    filename: str,
    image_format: str = "jpeg",
    is_oriented: bool = False,
) -> bytes:
    """Returns an image with its labels as a serialized `tf.train.Example`.

    As in the TPU scripts, channels and color space are 3 and RGB for gray images too.
    `is_oriented` says whether --apply_exif_orientation is on.
    """
    features: dict[str, Value] = {
        ENCODED: encoded,
        "image/height": height,
        WIDTH: width,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/format": image_format.upper().encode(),
        # The bytes as on disk, also if they aren't valid UTF-8.
        FILENAME: filename.encode("utf-8", "surrogateescape"),
        LABEL: labels,
        SYNSET: [name.encode("utf-8", "surrogateescape") for name in class_names],
    }
    if is_oriented:
        features[IS_ORIENTED] = 1
    return encode_example(features)


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Returns a serialized `tf.train.Example` with features of one value or several.

    Bytes become a `bytes_list`, signed 64-bit integers an `int64_list`. The features
    are sorted by name, so equal features give equal bytes.
    """
    example = _example_class()()
    for name, value in features.items():
        feature = example.features.feature[name]
        for item in [value] if isinstance(value, bytes | int) else value:
            kind = "bytes_list" if isinstance(item, bytes) else "int64_list"
            getattr(feature, kind).value.append(item)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def parse_example(data: bytes | memoryview) -> Features:
    """Returns the features of a serialized example; raises ValueError otherwise."""
    try:
        features: Features = _example_class().FromString(bytes(data)).features.feature
    except message.DecodeError as error:
        raise ValueError("it is not a serialized tf.train.Example") from error
    return features


def scan_file(
    path: str | os.PathLike[str], read: Callable[[Features], _Value]
) -> Iterator[tuple[int, int, _Value]]:
    """Yields byte offset, number of bytes and a value of each record of a file.

    `read` returns the value of a record's features, or raises a ValueError about them.
    The checksum of the data isn't verified. Raises UserError if a record or the file
    can't be used.
    """
    content = memoryview(b"")
    try:
        with regular_file.open_regular(path) as file:
            if os.fstat(file.fileno()).st_size:  # The kernel reads a map ahead.
                content = memoryview(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror})") from error
    offset = 0
    while offset < len(content):
        try:
            data = tfrecord.read_record(content, offset, check_data=False)
            value = read(parse_example(data))
        except ValueError as error:
            problem = (
                f"the record at byte {offset:,} of {path} can't be used: {error}. Copy"
                " or create the record set again."
            )
            if not offset and bytes(content[:3]).startswith(_COMPRESSED_STARTS):
                problem = (
                    f"{path} must contain plain records; it is compressed with gzip or"
                    " ZLIB. Decompress all record files of the set under their names"
                    " (gunzip, or Python's zlib.decompress)."
                )
            raise UserError(problem) from error
        num_bytes = HEADER_BYTES + len(data) + FOOTER_BYTES
        yield offset, num_bytes, value
        offset += num_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordForm:
    """What the records of a set have in common."""

    class_names: tuple[str, ...]  # Synsets or folder names, in label order.
    first_label: int  # Label of the first class in the records.
    image_key: str = ENCODED  # The feature with the encoded image.
    label_key: str = LABEL
    image_format: str = "jpeg"  # Of all images; or "png".
    # Whether each image has any number of labels, rather than one class.
    multi_label: bool = False

    def labels_and_image(self, features: Features) -> tuple[list[int], bytes]:
        """Returns the class indices, mostly one, and the encoded image of a record.

        Raises ValueError if one of them is missing, no class has the label, or the
        first bytes of the image are not those of its format.
        """
        if self.multi_label:
            labels = list(map(int, _values(features, self.label_key, *_INTEGER)))
        else:
            labels = [integer_of(features, self.label_key)]
        last_label = self.first_label + len(self.class_names) - 1
        for label in labels:
            if not self.first_label <= label <= last_label:
                raise ValueError(
                    f"its label is {label:,}; expected {self.first_label} to"
                    f" {last_label:,}"
                )
        encoded = bytes_of(features, self.image_key)
        image_format = image_format_of(encoded).upper()
        if image_format != (expected := self.image_format.upper()):
            raise ValueError(f"its image is a {image_format} file; expected {expected}")
        return [label - self.first_label for label in labels], encoded


def integer_of(features: Features, name: str) -> int:
    """Returns the value of a feature; raises ValueError if it isn't one integer."""
    return int(_only_value(features, name, *_INTEGER))


def bytes_of(features: Features, name: str) -> bytes:
    """Returns the value of a feature; raises ValueError if it isn't one bytes value."""
    return bytes(_only_value(features, name, *_BYTES))


def text_of(features: Features, name: str) -> str:
    """Returns the value of a feature as the name of a class or file, as `bytes_of`."""
    return bytes_of(features, name).decode("utf-8", "surrogateescape")


def class_names_of(features: Features) -> list[str]:
    """Returns the class names in the records of the converter; none if they lack them.

    An empty name is none.
    """
    if SYNSET not in features:
        return []
    names = (bytes(value) for value in _values(features, SYNSET, *_BYTES))
    return [normalized(n.decode("utf-8", "surrogateescape")) for n in names if n]


def class_name_of(features: Features, name: str) -> str:
    """Returns the class name in a feature, or an empty one if there is none."""
    return normalized(text_of(features, name)) if name in features else ""


def image_format_of(encoded: bytes) -> str:
    """Returns the format of an image, such as "jpeg"; raises ValueError for others."""
    for image_format, start in _IMAGE_STARTS.items():
        if encoded.startswith(start):
            return image_format
    raise ValueError(
        f"its image is neither JPEG nor PNG; it starts with {encoded[:8]!r}"
    )


def _only_value(features: Features, name: str, kind: str, description: str) -> Any:
    values = _values(features, name, kind, description)
    if len(values) != 1:
        raise ValueError(f"its feature {name} has {len(values)} values; expected one")
    return values[0]


def _values(features: Features, name: str, kind: str, description: str) -> Any:
    feature = features.get(name)
    if feature is None:
        raise ValueError(f"it has no feature {name}")
    if feature.WhichOneof("kind") not in (kind, None):
        raise ValueError(f"its feature {name} is not {description}")
    return getattr(feature, kind).value


@functools.cache
def _example_class() -> Any:
    """Returns the class of `tf.train.Example`, in a pool apart from TensorFlow's."""
    from google.protobuf import (  # Slow imports, which --help doesn't need.
        descriptor_pb2,
        descriptor_pool,
        message_factory,
        text_format,
    )

    file = text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))
