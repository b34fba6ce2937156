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

    "serving_default" takes "image_bytes", `[batch]` strings: files that
    `decoding.read_file` reads; others fail the batch, named by their index.
    "decoded_images" takes "images", `[batch, image_size, image_size, 3]` float32 as
    `stock_network.build` takes them. Both return what `stock_network.outputs_of` does.
    """
    import tensorflow as tf

    from resnet import native
    from resnet.export import stock_network

    module = tf.Module()
    module.network = stock_network.build(trained.model, contents)

    def classify_decoded(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return stock_network.outputs_of(module.network, images)

    def classify_encoded(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return classify_decoded(_preprocessed(image_bytes, contents))

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


def _preprocessed(image_bytes: "tf.Tensor", contents: Contents) -> "tf.Tensor":
    """Returns the images in files, or fails and names those that aren't served."""
    import tensorflow as tf

    from resnet.data import decoding
    from resnet.data.augmentation import preprocessing

    none = tf.zeros([contents.image_size, contents.image_size, 3])

    def cropped(original: tf.Tensor) -> tf.Tensor:
        return preprocessing.eval_image(
            original,
            contents.image_size,
            contents.crop_fraction,
            contents.crop,
            preprocessing.NOT_NORMALIZED,
        )

    def read(index: tf.Tensor, encoded: tf.Tensor) -> tuple[tf.Tensor, ...]:
        problem = decoding.problem_of_file(encoded, contents.apply_exif_orientation)
        image = tf.cond(
            problem == "",
            lambda: decoding.read_file(encoded, contents.encoding, cropped),
            lambda: none,
        )
        return index, tf.ensure_shape(image, none.shape), problem

    count = tf.size(image_bytes, tf.int64)
    files = tf.data.Dataset.from_tensor_slices(image_bytes).enumerate()
    # An op that fails can't say on which image: those that are missing are damaged.
    images = files.map(read, _PARALLEL_IMAGES, deterministic=True).ignore_errors()
    end = tf.data.Dataset.from_tensors((count, none, ""))
    batch = images.concatenate(end).batch(count + 1).get_single_element()
    problems = tf.fill([count + 1], decoding.DAMAGED)
    problems = tf.tensor_scatter_nd_update(problems, batch[0][:, tf.newaxis], batch[2])
    bad = tf.where(problems != "")[:, 0]
    numbers, reasons = tf.strings.as_string(bad), tf.gather(problems, bad)
    sentences = tf.strings.join(["image ", numbers, " of the batch, from 0, ", reasons])
    message = tf.strings.reduce_join(sentences, separator=". ")
    with tf.control_dependencies([tf.debugging.Assert(tf.size(bad) == 0, [message])]):
        return batch[1][:-1]


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
    outputs = {"probabilities": network.output}
    if not contents.multi_label:
        outputs["classes"] = keras.ops.argmax(network.output, axis=-1)
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
