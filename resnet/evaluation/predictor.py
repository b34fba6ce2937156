"""The predictions of a trained network for single images, as evaluation makes them."""

import functools
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from data_prep.images.image_encoding import Encoding
from resnet.base.errors import UserError
from resnet.config.config import Config
from resnet.data import decoding
from resnet.data.augmentation import preprocessing
from resnet.data.augmentation.preprocessing import Normalization
from resnet.evaluation import test_time_augmentation
from resnet.evaluation.prediction_file import THRESHOLD, TOP_K


class Preprocessor:
    """Decodes, crops and resizes images as evaluation does."""

    def __init__(
        self,
        image_size: int,
        crop_fraction: float,
        crop: str,
        normalization: Normalization,
    ) -> None:
        self._eval_image = functools.partial(
            preprocessing.eval_image,
            image_size=image_size,
            crop_fraction=crop_fraction,
            crop=crop,
            normalization=normalization,
        )
        encoded = tf.TensorSpec([], tf.string)
        self.of_format = {
            name: _graph(functools.partial(self._of_record, image_format=name), encoded)
            for name in ("jpeg", "png")
        }

    def __call__(self, encoded: bytes, image_format: str) -> tf.Tensor:
        """Returns an image as the network takes it, `[size, size, 3]` float32.

        The file is one that a record can hold: a JPEG or a PNG.
        Raises tf.errors.OpError if it can't be decoded.
        """
        return self.of_format[image_format](tf.constant(encoded))

    def of_file(self, path: str | os.PathLike[str], encoding: Encoding) -> tf.Tensor:
        """Returns an image that the converter reads, as in a set of this encoding.

        Raises UserError if it can't be read.
        """
        file = encoding.read(path)
        try:
            return self(*file)
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].rstrip(".")
            raise UserError(
                f"{path} can't be decoded as an image: {reason}."
            ) from error

    @functools.cached_property
    def of_pixels(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """The graph for decoded images, `[height, width, 3]` uint8."""
        return _graph(self._eval_image, tf.TensorSpec([None, None, 3], tf.uint8))

    def _of_record(self, encoded: tf.Tensor, image_format: str) -> tf.Tensor:
        return self._eval_image(decoding.original_of(encoded, image_format))


class Predictor:
    """Computes the class probabilities of encoded images.

    They are those that `evaluator.Evaluator` computes for records of these images with
    one view, the center crop. Where images have several labels, each label has a
    probability of its own.
    """

    def __init__(self, model: keras.Model, config: Config) -> None:
        self._model = model
        self._multi_label = config.multi_label
        size = config.image_size
        self.preprocess = Preprocessor(
            size,
            config.eval_crop_fraction,
            config.eval_crop,
            Normalization.of_run(config),
        )
        images = tf.TensorSpec([None, size, size, 3], tf.float32)
        self._predict = _graph(self._probabilities, images)

    def probabilities(self, images: tf.Tensor) -> np.ndarray:
        """Returns the probabilities of the classes of preprocessed images, float32."""
        return self._predict(images).numpy()

    def _probabilities(self, images: tf.Tensor) -> tf.Tensor:
        logits = test_time_augmentation.predict(self._model, images, "center")
        return probabilities_of(logits, self._multi_label)


def probabilities_of(logits: tf.Tensor, multi_label: bool) -> tf.Tensor:
    """Returns the softmax or, of several labels, the sigmoid of each logit."""
    return tf.sigmoid(logits) if multi_label else tf.nn.softmax(logits)


def _graph(
    function: Callable[[tf.Tensor], tf.Tensor], argument: tf.TensorSpec
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of one tensor as a graph, which is traced only here."""
    return tf.function(function, autograph=False).get_concrete_function(argument)


def top_classes(
    probabilities: np.ndarray, k: int | None, multi_label: bool
) -> list[np.ndarray]:
    """Returns the indices of the k most probable classes of each image.

    The most probable class is first. Of equally probable classes the earlier is first,
    as `evaluator.in_top` counts them. Without k they are `TOP_K` or, of several labels
    an image, those above `THRESHOLD`, maybe none.
    """
    best = np.argsort(-probabilities, axis=1, kind="stable")
    if k is not None or not multi_label:
        return list(best[:, : k or TOP_K])
    counts = (probabilities > THRESHOLD).sum(axis=1)
    return [indices[:count] for indices, count in zip(best, counts, strict=True)]
