"""`model_dir/predictions/*.npz`: what a network predicts for each validation image.

A file has the most probable classes of each image and their probabilities, and small
JPEGs of those wrong predictions of which the network is most certain. Needs no
TensorFlow.
"""

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from resnet.base import atomic_files, json_file
from resnet.base.errors import UserError

FOLDER = "predictions"
TOP_K = 5  # Classes of each image; of several labels an image, all are stored.
THRESHOLD = 0.5  # The probability above which an image is taken to have a label.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)
_ARRAYS = ("examples", "labels", "top_classes", "top_probabilities")


@dataclass(frozen=True)
class WrongImage:
    """An image (a small JPEG) whose most probable class is wrong.

    Its name is that of the file in the record, and may be empty.
    """

    example: int
    name: str
    jpeg: bytes


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of an evaluation, sorted by `examples`."""

    evaluated: str  # Such as "step 2344, EMA weights".
    step: int  # That of the newest checkpoint evaluated.
    views: str  # The test-time augmentation.
    records_sha256: str  # The digest of the split (`manifest.Split.records_sha256`).
    class_names: tuple[str, ...]
    class_descriptions: tuple[str, ...]  # Empty if there are none.
    examples: npt.NDArray[np.int32]  # Their indices in the whole split, `[n]`.
    labels: npt.NDArray[np.integer]  # `[n]`; several an image: `[n, classes]` uint8.
    top_classes: npt.NDArray[np.int32]  # Best first, `[n, k]`; k is at most `TOP_K`.
    top_probabilities: npt.NDArray[np.float32]  # `[n, k]`.
    wrong_images: tuple[WrongImage, ...] = ()  # The most certain one first.

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """The probabilities in the order of the classes, where all are stored."""
        return in_order(self.top_classes, self.top_probabilities)

    @property
    def is_right(self) -> npt.NDArray[np.bool_]:
        """Whether the most probable class of each image is its label, bool `[n]`.

        A class whose probability isn't finite is never right, as in the evaluation. Of
        several labels, all have to be on their side of `THRESHOLD`.
        """
        if self.labels.ndim > 1:
            is_taken = self.scores > THRESHOLD
            return np.asarray((is_taken == self.labels).all(axis=1))
        is_finite = np.isfinite(self.top_probabilities[:, 0])
        return np.asarray((self.top_classes[:, 0] == self.labels) & is_finite)


def in_order(
    top_classes: npt.NDArray[np.int32], top_probabilities: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns the probabilities of all classes in their order, `[n, classes]`."""
    ordered = np.zeros_like(top_probabilities)
    np.put_along_axis(ordered, top_classes, top_probabilities, axis=1)
    return ordered


def write(model_dir: Path, name: str, predictions: Predictions) -> Path:
    """Writes `NAME.npz` atomically, or raises UserError; returns its path."""
    path = model_dir / FOLDER / f"{name}.npz"
    about = {
        field.name: getattr(predictions, field.name)
        for field in dataclasses.fields(Predictions)
        if field.name not in (*_ARRAYS, "wrong_images")
    }
    images = predictions.wrong_images
    about["wrong_images"] = [
        [image.example, image.name, len(image.jpeg)] for image in images
    ]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        about=_bytes(json.dumps(about).encode()),
        images=_bytes(b"".join(image.jpeg for image in images)),
        **{key: getattr(predictions, key) for key in _ARRAYS},
    )
    try:
        path.parent.mkdir(exist_ok=True)
        atomic_files.atomic_write_bytes(path, buffer.getvalue())
    except OSError as error:
        raise UserError(
            f"the predictions can't be written to {path}: {error.strerror}. Free disk"
            " space, check permissions, or leave out --store_predictions."
        ) from error
    return path


def read(path: Path) -> Predictions:
    """Returns what a file holds. Raises UserError if it isn't such a file, or whole."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            text, what = stored["about"].tobytes(), "the description of predictions"
            about = json_file.parse(text, dict, "about", what)
            images = stored["images"].tobytes()
            predictions = Predictions(
                evaluated=str(about["evaluated"]),
                step=int(about["step"]),
                views=str(about["views"]),
                records_sha256=str(about["records_sha256"]),
                class_names=tuple(map(str, about["class_names"])),
                class_descriptions=tuple(map(str, about["class_descriptions"])),
                wrong_images=_images(about["wrong_images"], images),
                **{key: stored[key] for key in _ARRAYS},
            )
        _check(predictions)
    except _UNREADABLE as error:
        raise UserError(
            f"{path} must hold predictions as --store_predictions writes them; it"
            f" doesn't: {error}. Remove it, and evaluate again."
        ) from error
    return predictions


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _images(
    listed: Sequence[tuple[int, str, int]], images: bytes
) -> tuple[WrongImage, ...]:
    wrong_images, first = [], 0
    for example, name, length in listed:
        jpeg = images[first : first + length]
        wrong_images.append(WrongImage(int(example), str(name), jpeg))
        first += length
    return tuple(wrong_images)


def _check(predictions: Predictions) -> None:
    """Raises ValueError if the parts of a file don't fit to each other."""
    count, num_classes = len(predictions.examples), len(predictions.class_names)
    shape = predictions.top_classes.shape
    k = shape[-1] if shape else 0
    if not (
        predictions.labels.shape in ((count,), (count, num_classes))
        and shape == predictions.top_probabilities.shape == (count, k)
        and k > 0
        and len(predictions.class_descriptions) in (0, num_classes)
    ):
        raise ValueError("its arrays have other shapes")
    if predictions.labels.ndim > 1 and k != num_classes:
        raise ValueError("it lacks labels")
    for classes in (predictions.labels, predictions.top_classes):
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
            raise ValueError("it has classes without a name")
