"""Small copies of the images whose predictions are wrong, for the report of a run."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from data_prep.records import tf_example, tfrecord
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation.prediction_file import WrongImage
from resnet.evaluation.top_classes import Block

NUM_IMAGES = 48
_SIDE = 128  # Pixels of the longer side, at most.
# Pillow raises SyntaxError for some corrupt PNGs.
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
_QUALITY = 80  # JPEG quality; an image has about 4 KB.


def of_all(
    own: Block | None, whole: Block, records: RecordFiles, communicator: Communicator
) -> list[WrongImage]:
    """Returns the wrong predictions of which the network is most certain.

    Each rank reads those images of its own examples, whose records it has. Images that
    can't be read are left out.

    Args:
        own: The predictions of this rank; None for none.
        whole: The predictions of all ranks, sorted by example.
        records: The examples that this rank reads.
        communicator: The ranks; each must call this.

    Returns:
        The images of all ranks on rank 0, the most certain one first; none on others.
    """
    chosen = _most_certain(whole)
    found = {} if own is None else _images(chosen, own, records)
    images: dict[int, WrongImage] = {}
    for of_rank in communicator.gather_objects(found) or []:
        images.update(of_rank)
    return [images[example] for example in chosen if example in images]


def _most_certain(whole: Block) -> list[int]:
    """Returns the examples of wrong predictions, the most certain one first."""
    certainty = whole.probabilities[:, 0]
    is_wrong = np.isfinite(certainty) & (whole.classes[:, 0] != whole.labels)
    rows = np.flatnonzero(is_wrong)
    rows = rows[np.argsort(-certainty[rows], kind="stable")][:NUM_IMAGES]
    return whole.examples[rows].tolist()


def _images(
    examples: Sequence[int], own: Block, records: RecordFiles
) -> dict[int, WrongImage]:
    """Returns the images of those examples that this rank has evaluated."""
    mine = set(own.examples.tolist()).intersection(examples)
    place = {
        int(number): index
        for index, number in enumerate(records.number_of_example)
        if int(number) in mine
    }
    found = {example: _image(records, place[example], example) for example in mine}
    return {example: image for example, image in found.items() if image is not None}


def _image(records: RecordFiles, index: int, example: int) -> WrongImage | None:
    """Returns the image of an example; None if it can't be read."""
    path = records.paths[records.file_of_example[index]]
    offset = int(records.offset_of_example[index])
    try:
        features = tf_example.parse_example(tfrecord.read_at(path, offset))
        jpeg = small_jpeg(tf_example.bytes_of(features, records.image_key))
    except _UNREADABLE:
        return None  # The evaluation has read it, and named it if it is corrupt.
    try:
        name = tf_example.text_of(features, tf_example.FILENAME)
    except ValueError:  # Sets of others needn't have the feature.
        name = ""
    return WrongImage(example, name, jpeg)


def small_jpeg(encoded: bytes) -> bytes:
    """Returns an image as a JPEG of at most 128 pixels on the longer side.

    Raises:
        OSError: If the image can't be decoded; corrupt ones raise others of
            `_UNREADABLE` too.
    """
    with Image.open(io.BytesIO(encoded)) as image:
        small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
