"""What the tests that compare a network with a reference in float64 share."""

from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

Values = Mapping[str, tf.Tensor]  # The variables of a network by their paths, float64.


def random_images(count: int = 4, side: int = 32) -> tf.Tensor:
    """Returns the same normally distributed images at each call, float32."""
    generator = np.random.default_rng(1)
    return tf.constant(generator.normal(size=(count, side, side, 3)), tf.float32)


def change_start_values(model: keras.Model) -> keras.Model:
    """Gives biases and normalizations values that no wrong wiring survives."""
    generator = np.random.default_rng(5)
    for one in model.variables:
        name = one.path.rpartition("/")[2]
        if name in ("gamma", "moving_variance"):
            one.assign(generator.uniform(0.5, 1.0, one.shape))
        elif name in ("beta", "bias", "moving_mean"):
            one.assign(generator.normal(0, 0.1, one.shape))
    return model


def values_of(model: keras.Model) -> dict[str, tf.Tensor]:
    return {one.path: tf.cast(one.value, tf.float64) for one in model.variables}


def normalize(
    x: tf.Tensor, values: Values, name: str, training: bool, epsilon: float = 1e-5
) -> tf.Tensor:
    """Returns batch normalization in float64; without a gamma it is 1."""
    mean, variance = (
        tf.nn.moments(x, [0, 1, 2])
        if training
        else (values[f"{name}/moving_mean"], values[f"{name}/moving_variance"])
    )
    scale = values.get(f"{name}/gamma", 1.0) / tf.sqrt(variance + epsilon)
    return (x - mean) * scale + values[f"{name}/beta"]


def relative_difference(ours, expected) -> float:
    """Returns the norm of the difference, relative to that of the expected values."""
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


def gradients_of_both(
    model: keras.Model,
    reference: Callable[[Values], tf.Tensor],
    images: tf.Tensor,
    training: bool = True,
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the gradients of the summed cross-entropy by both, by variables' paths.

    In float32 another of two almost equal values may be the maximum of a pool's window,
    or a value may be on the other side of ReLU's kink: a comparison must allow for it.

    Args:
        model: The network.
        reference: Returns the logits for the same images from the values of variables.
        images: Four images.
        training: Whether the network normalizes by the statistics of the batch.
    """
    labels = tf.constant([3, 1, 6, 0])
    values = values_of(model)
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits = reference(values)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    expected = tape.gradient(loss, values)
    variables = {one.path: one.value for one in model.trainable_variables}
    with tf.GradientTape() as tape:
        ours = model(images, training=training)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, ours)
    assert relative_difference(ours, logits) < 1e-3
    return tape.gradient(loss, variables), expected
