"""The most probable classes of each example, and small copies of the wrong images.

They are collected over the ranks, for the report of a run.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from data_prep.images.image_encoding import Encoding
from resnet.base.errors import UserError
from resnet.data.record_files import RecordFiles
from resnet.distributed.communicator import Communicator
from resnet.evaluation import predictor
from resnet.evaluation.prediction_file import THRESHOLD, TOP_K, WrongImage, in_order

NUM_IMAGES = 48
_SIDE = 128  # Pixels of the longer side, at most.
_QUALITY = 80  # JPEG quality; an image has about 4 KB.
# Pillow raises SyntaxError for some corrupt PNGs.
_UNREADABLE = (UserError, OSError, ValueError, SyntaxError)


class Block(NamedTuple):
    """The predictions for some examples; its attributes are those of `Predictions`."""

    examples: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    classes: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float32]

    def rows(self, chosen: np.ndarray) -> "Block":
        """Returns the predictions in these rows, by their numbers or a mask."""
        return Block._make(column[chosen] for column in self)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """The probabilities of all labels in their order, `[n, num_labels]`."""
        return in_order(self.classes, self.probabilities)


def of_logits(
    logits: tf.Tensor, multi_label: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each example's most probable classes, `[batch, k]`, and probabilities.

    Of classes with equal logits the earlier is first, as `evaluator.in_top` counts
    them; k is at most `TOP_K`, but the number of all where examples have several.
    """
    k = logits.shape[-1]
    k = k if multi_label else min(TOP_K, k)
    _, classes = tf.math.top_k(logits, k)
    probabilities = predictor.probabilities_of(logits, multi_label)
    return classes, tf.gather(probabilities, classes, batch_dims=1)


class TopClasses:
    """The predictions of one evaluation for the examples of this rank."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def add(
        self,
        examples: npt.NDArray[np.integer],
        labels: npt.NDArray[np.integer],
        mask: npt.NDArray[np.bool_],
        classes: npt.NDArray[np.int32],
        probabilities: npt.NDArray[np.float32],
    ) -> None:
        """Adds the predictions of `of_logits` for the examples of a padded batch.

        The mask is False for those that don't count.
        """
        count = len(examples)
        block = Block(
            examples.astype(np.int32),
            labels[:count].astype(np.int32 if labels.ndim == 1 else np.uint8),
            classes[:count],
            probabilities[:count],
        )
        self._blocks.append(block.rows(mask[:count]))

    def of_rank(self) -> Block | None:
        """Returns the predictions of this rank; None if it evaluated nothing."""
        return _joined(self._blocks) if self._blocks else None

    def of_all(self, communicator: Communicator) -> Block:
        """Returns the predictions of all ranks, sorted by example, on each of them.

        Raises ValueError if no rank evaluated anything.
        """
        blocks = communicator.allgather(self.of_rank())
        whole = _joined([block for block in blocks if block is not None])
        return whole.rows(np.argsort(whole.examples, kind="stable"))


def _joined(blocks: Sequence[Block]) -> Block:
    return Block(*map(np.concatenate, zip(*blocks, strict=True)))


def wrong_images(
    own: Block | None, whole: Block, records: RecordFiles, communicator: Communicator
) -> list[WrongImage]:
    """Returns the wrong predictions of which the network is most certain, on rank 0.

    Each rank reads those images of its own examples, whose records it has; other ranks
    get none. Images that can't be read are left out. The most certain one is first.
    """
    chosen = _most_certain(whole)
    of_rank = {} if own is None else _images(chosen, own, records)
    images: dict[int, WrongImage] = {}
    for part in communicator.gather_objects(of_rank) or []:
        images.update(part)
    return [images[example] for example in chosen if example in images]


def _most_certain(whole: Block) -> list[int]:
    if whole.labels.ndim > 1:
        certainty = np.abs(whole.scores - whole.labels).max(axis=1)
        is_wrong = certainty > THRESHOLD
    else:
        certainty = whole.probabilities[:, 0]
        is_wrong = np.isfinite(certainty) & (whole.classes[:, 0] != whole.labels)
    rows = np.flatnonzero(is_wrong)
    rows = rows[np.argsort(-certainty[rows], kind="stable")][:NUM_IMAGES]
    return whole.examples[rows].tolist()


def _images(
    examples: Sequence[int], own: Block, records: RecordFiles
) -> dict[int, WrongImage]:
    wanted = set(own.examples.tolist()).intersection(examples)
    images = {}
    for index, number in enumerate(records.number_of_example.tolist()):
        if number in wanted:
            # The evaluation has read it, and named it if it is corrupt.
            with contextlib.suppress(*_UNREADABLE):
                encoded, name = records.read(index)
                images[number] = WrongImage(number, name, _small_jpeg(encoded))
    return images


def _small_jpeg(encoded: bytes) -> bytes:
    stored = Encoding("jpeg").store(encoded, "the image of the record").data
    with Image.open(io.BytesIO(stored)) as image:
        small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
