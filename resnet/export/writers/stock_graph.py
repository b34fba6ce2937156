"""An exported network as a function of TensorFlow, which formats are made of."""

from typing import Any

import keras
import tensorflow as tf


def images_of(network: keras.Model) -> tf.TensorSpec:
    """Returns the description of the images that an exported network takes."""
    return tf.TensorSpec(network.inputs[0].shape, name="images")


def outputs_of(network: keras.Model, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the outputs of an exported network; to be called inside a graph.

    They are "classes", `[batch]` int32, the most probable class of each image; and
    "probabilities", `[batch, num_classes]` float32.

    Args:
        network: The network, as `stock_network.build` returns it.
        images: The images as it takes them.
    """
    probabilities = network(images, training=False)
    classes = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    return {"classes": classes, "probabilities": probabilities}


def frozen(network: keras.Model) -> Any:
    """Returns an exported network as a `tf.function` whose weights are constants.

    Its argument is named "images", its outputs as `outputs_of` names them.

    Args:
        network: The network, as `stock_network.build` returns it.
    """
    weights = [(variable, variable.numpy()) for variable in network.variables]

    def images_to_outputs(images: tf.Tensor) -> dict[str, tf.Tensor]:
        constants = [(variable, tf.constant(value)) for variable, value in weights]
        with keras.StatelessScope(constants):
            return outputs_of(network, images)

    return tf.function(
        images_to_outputs, input_signature=[images_of(network)], autograph=False
    )
