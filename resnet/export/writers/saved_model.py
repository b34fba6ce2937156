"""Writes a network as TensorFlow's SavedModel, preprocessing included.

Its signatures have the names and the outputs of the TPU recipe's exports.
Source: tensorflow/tpu, models/official/resnet/imagenet_input.py,
image_serving_input_fn, and resnet_main.py, resnet_model_fn.
"""

from pathlib import Path

import tensorflow as tf

from resnet import native
from resnet.checkpoint.restore import TrainedNetwork
from resnet.data.augmentation import preprocessing
from resnet.export import stock_network
from resnet.export.contents import Contents
from resnet.export.names import (
    CONTENTS_OF_SAVED_MODEL,
    OF_DECODED_IMAGES,
    OF_ENCODED_IMAGES,
)
from resnet.export.writers import stock_graph

_PARALLEL_IMAGES = 32  # Images decoded at the same time.


def write(trained: TrainedNetwork, contents: Contents, path: Path) -> None:
    """Writes the folder of a SavedModel with two signatures.

    "serving_default" takes "image_bytes", `[batch]` strings: the files of JPEGs in RGB
    or gray, PNGs, BMPs or GIFs of any size. "decoded_images" takes "images", `[batch,
    image_size, image_size, 3]` float32 as `stock_network.build` takes them. Both return
    the outputs of `stock_graph.outputs_of`.

    Args:
        trained: The network.
        contents: The description of the export.
        path: The folder to write.
    """
    module = tf.Module()
    module.network = stock_network.build(trained.model, contents)
    size = contents.image_size

    def classify_decoded(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return stock_graph.outputs_of(module.network, images)

    def classify_encoded(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        images = tf.map_fn(
            lambda encoded: _preprocessed(encoded, contents),
            image_bytes,
            parallel_iterations=_PARALLEL_IMAGES,
            fn_output_signature=tf.TensorSpec([size, size, 3]),
        )
        return classify_decoded(images)

    encoded = tf.TensorSpec([None], tf.string, "image_bytes")
    decoded = stock_graph.images_of(module.network)
    with native.disabled():
        signatures = {
            name: tf.function(function, autograph=False).get_concrete_function(argument)
            for name, function, argument in (
                (OF_ENCODED_IMAGES, classify_encoded, encoded),
                (OF_DECODED_IMAGES, classify_decoded, decoded),
            )
        }
    tf.saved_model.save(module, str(path), signatures=signatures)
    file = path / CONTENTS_OF_SAVED_MODEL
    file.parent.mkdir()
    file.write_text(contents.as_json(), encoding="utf-8")


def _preprocessed(encoded: tf.Tensor, contents: Contents) -> tf.Tensor:
    """Returns an image, cropped and resized as in evaluation, with values up to 255."""

    def cropped(original: tf.Tensor) -> tf.Tensor:
        return preprocessing.eval_image(
            original,
            contents.image_size,
            contents.crop_fraction,
            contents.crop,
            preprocessing.NOT_NORMALIZED,
        )

    def decoded() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return tf.ensure_shape(image, [None, None, 3])

    # Of a JPEG only the crop is decoded.
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: cropped(encoded), lambda: cropped(decoded())
    )
