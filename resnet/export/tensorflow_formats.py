"""The formats that TensorFlow and Keras write: SavedModel, .keras and TensorFlow Lite.

The description is in the folder that TensorFlow leaves to the makers of a SavedModel,
or in the zip archive that a .keras file is, or that follows a network of TensorFlow
Lite. Importing this imports no TensorFlow.

Source of the signatures' names and outputs: tensorflow/tpu, models/official/resnet/
imagenet_input.py, image_serving_input_fn, and resnet_main.py, resnet_model_fn.
"""

import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resnet.export import contents as description
from resnet.export.contents import Contents, Probabilities

if TYPE_CHECKING:  # They import TensorFlow.
    import tensorflow as tf

    from resnet.checkpoint.restore import TrainedNetwork

# The signatures of a SavedModel; the first is the one that servers take by default.
OF_ENCODED_IMAGES = "serving_default"
OF_DECODED_IMAGES = "decoded_images"
_IN_SAVED_MODEL = Path("assets.extra", description.FILE)
_LABELS_FILE = "labels.txt"  # Where the tools of Android look for them.
_PARALLEL_IMAGES = 32  # Images decoded at the same time.


def write_saved_model(
    trained: "TrainedNetwork", contents: Contents, path: Path
) -> None:
    """Writes the folder of a SavedModel with two signatures, preprocessing included.

    "serving_default" takes "image_bytes", `[batch]` strings: the files of JPEGs in RGB
    or gray, PNGs, BMPs or GIFs of any size. "decoded_images" takes "images", `[batch,
    image_size, image_size, 3]` float32 as `stock_network.build` takes them. Both return
    what `stock_network.outputs_of` returns.
    """
    import tensorflow as tf

    from resnet import native
    from resnet.export import stock_network

    module = tf.Module()
    module.network = stock_network.build(trained.model, contents)
    size = contents.image_size

    def classify_decoded(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return stock_network.outputs_of(module.network, images)

    def classify_encoded(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        images = tf.map_fn(
            lambda encoded: _preprocessed(encoded, contents),
            image_bytes,
            parallel_iterations=_PARALLEL_IMAGES,
            fn_output_signature=tf.TensorSpec([size, size, 3]),
        )
        return classify_decoded(images)

    encoded = tf.TensorSpec([None], tf.string, "image_bytes")
    decoded = stock_network.images_of(module.network)
    with native.disabled():
        signatures = {
            name: tf.function(function, autograph=False).get_concrete_function(argument)
            for name, function, argument in (
                (OF_ENCODED_IMAGES, classify_encoded, encoded),
                (OF_DECODED_IMAGES, classify_decoded, decoded),
            )
        }
    tf.saved_model.save(module, str(path), signatures=signatures)
    file = path / _IN_SAVED_MODEL
    file.parent.mkdir()
    file.write_text(contents.as_json(), encoding="utf-8")


def _preprocessed(encoded: "tf.Tensor", contents: Contents) -> "tf.Tensor":
    import tensorflow as tf

    from resnet.data.augmentation import preprocessing

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


def description_of_saved_model(path: Path) -> str | None:
    """Returns the text of the description, if there is one."""
    file = path / _IN_SAVED_MODEL
    return file.read_text(encoding="utf-8") if file.exists() else None


def load_saved_model(path: Path) -> Probabilities:
    """Returns the function of the network in a folder."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures[OF_DECODED_IMAGES]

    def probabilities(images: Any) -> np.ndarray:
        # The signature lives as long as what was loaded.
        return loaded and signature(images=tf.constant(images))["probabilities"].numpy()

    return probabilities


def write_keras(trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes a `.keras` file, which needs stock Keras only to be loaded."""
    import keras

    from resnet.export import stock_network

    network = stock_network.build(trained.model, contents)
    probabilities = network.output
    classes = keras.ops.argmax(probabilities, axis=-1)
    outputs = {"classes": classes, "probabilities": probabilities}
    keras.Model(network.input, outputs, name=network.name).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(description.FILE, contents.as_json())


def load_keras(path: Path) -> Probabilities:
    """Returns the function of the network in a file."""
    import keras
    import tensorflow as tf

    network = keras.models.load_model(path, compile=False)

    @tf.function(autograph=False, reduce_retracing=True)
    def compute(images: tf.Tensor) -> tf.Tensor:
        return network(images, training=False)["probabilities"]

    return lambda images: compute(tf.constant(images)).numpy()


def write_tflite(trained: "TrainedNetwork", contents: Contents, path: Path) -> None:
    """Writes a `.tflite` file (LiteRT) with the outputs of `stock_network.frozen`.

    With the precision "int8" the weights have 8 bits, and values are quantized while
    the network is computed ("dynamic range quantization").
    """
    import tensorflow as tf

    from resnet.export import stock_network

    network = stock_network.build(trained.model, contents)
    graph = stock_network.frozen(network).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([graph], tf.Module())
    if contents.precision == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    path.write_bytes(converter.convert())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(description.FILE, contents.as_json())
        archive.writestr(_LABELS_FILE, "\n".join(contents.class_names) + "\n")


def load_tflite(path: Path) -> Probabilities:
    """Returns the function of the network in a file."""
    import tensorflow as tf

    with warnings.catch_warnings():  # Hides the notice of deprecation.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(path))
    run = interpreter.get_signature_runner()
    return lambda images: run(images=np.asarray(images))["probabilities"]


def description_in_archive(path: Path) -> str | None:
    """Returns the text of the description, if there is one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(description.FILE).decode()
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError):
        return None
