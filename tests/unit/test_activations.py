"""ReLU, SiLU and Mish, with and without a gate, and GELU, against NumPy."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from resnet import native
from resnet.config import networks
from resnet.models.layers import activations
from resnet.models.layers.activations import gelu
from tests.unit.each_instruction_set import (
    kernels,  # noqa: F401 - pytest finds it.
    only_compiled,
)

DTYPES = ("float32", "bfloat16")
# Relative to the largest value: TensorFlow's tanh has five digits in float32; bfloat16
# rounds to 2**-9, with stock ops after each of them.
TOLERANCE = {"float32": 5e-6, "bfloat16": 2e-2}
# Of sums over positions, in which values near ReLU's kink may be rounded to its other
# side.
TOLERANCE_OF_SUMS = {"float32": 1e-5, "bfloat16": 0.1}
SHAPE = (3, 5, 7, 130)  # No multiple of a strip of the compiled op.


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def slow(x: np.ndarray, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the activations and their derivatives, float64."""
    if activation == "relu":
        return np.maximum(x, 0), (x > 0).astype(np.float64)
    if activation == "silu":
        s = sigmoid(x)
        return x * s, s * (1 + x * (1 - s))
    t = np.tanh(np.logaddexp(0, x))
    return x * t, t + x * (1 - t**2) * sigmoid(x)


def normal(*shape: int, seed: int, dtype: str) -> tf.Tensor:
    values = np.random.default_rng(seed).normal(0, 3, shape)
    return tf.cast(values, dtype)


def exact(tensor: tf.Tensor) -> np.ndarray:
    return tf.cast(tensor, tf.float64).numpy()


def assert_near(
    ours: tf.Tensor, expected: np.ndarray, dtype: str, tolerances=TOLERANCE
) -> None:
    assert ours.shape == expected.shape
    limit = tolerances[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(exact(ours), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_activations_and_their_gradients_are_those_of_the_formulas(activation, dtype):
    x = normal(*SHAPE, seed=0, dtype=dtype)
    dy = normal(*SHAPE, seed=1, dtype=dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = activations.activate(x, activation)
    expected, derivative = slow(exact(x), activation)
    assert y.dtype == x.dtype
    assert_near(y, expected, dtype)
    assert_near(tape.gradient(y, x, dy), exact(dy) * derivative, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_a_gate_and_a_residual_come_before_the_activation(activation, dtype):
    x = normal(*SHAPE, seed=0, dtype=dtype)
    residual = normal(*SHAPE, seed=1, dtype=dtype)
    gate = tf.sigmoid(normal(SHAPE[0], SHAPE[-1], seed=2, dtype="float32"))
    gate = tf.cast(tf.cast(gate, dtype), tf.float32)  # Of no more digits than x.
    dys = [normal(*SHAPE, seed=seed, dtype=dtype) for seed in (3, 4)]
    inputs = {"x": x, "gate": gate, "residual": residual}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        ys = activations.activate(x, activation, gate, residual, num_copies=2)
    gradients = tape.gradient(list(ys), inputs, dys)
    factors = exact(gate)[:, np.newaxis, np.newaxis]
    expected, derivative = slow(factors * exact(x) + exact(residual), activation)
    g = (exact(dys[0]) + exact(dys[1])) * derivative
    # Values of bfloat16 that are rounded to the other side of ReLU's kink are near 0,
    # where the derivative is not near.
    far = np.abs(factors * exact(x) + exact(residual)) > (dtype == "bfloat16") * 0.1
    assert len(ys) == 2
    assert_near(ys[1], expected, dtype)
    for name, ours in (("x", g * factors), ("residual", g)):
        masked = tf.cast(gradients[name], tf.float64) * far
        assert_near(masked, ours * far, dtype)
    assert gradients["gate"].dtype == tf.float32
    sums = (g * exact(x)).sum((1, 2))
    assert_near(gradients["gate"], sums, dtype, TOLERANCE_OF_SUMS)


@pytest.mark.parametrize("activation", [*networks.ACTIVATIONS, "gelu"])
def test_far_from_zero_they_are_zero_or_the_identity(activation):
    x = tf.reshape(tf.constant([-1e4, -100.0, -88.0, 20.5, 90.0, 1e4]), [1, 1, 1, 6])
    with tf.GradientTape() as tape:
        tape.watch(x)
        is_gelu = activation == "gelu"
        y = gelu(x, "float32") if is_gelu else activations.activate(x, activation)[0]
    found, gradient = np.ravel(y), np.ravel(tape.gradient(y, x))
    np.testing.assert_allclose(found, [0, 0, 0, 20.5, 90, 1e4], rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(gradient, [0, 0, 0, 1, 1, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_nan_stays_nan(activation, dtype):
    x = tf.cast(tf.fill([1, 1, 1, 40], np.nan), dtype)
    assert np.isnan(exact(activations.activate(x, activation)[0])).all()
    assert np.isnan([exact(gelu(x, to)) for to in DTYPES]).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gate": [tf.zeros([1, 3])]}, "one gate and one residual|num_gates"),
        (
            {"gate": [tf.zeros([1, 2])], "residual": [tf.zeros([1, 2, 2, 3])]},
            r"gate and residual must be \[1,3\]",
        ),
        (
            {"gate": [tf.zeros([1, 3])], "residual": [tf.zeros([1, 2, 1, 3])]},
            r"got \[1,3\] and \[1,2,1,3\]",
        ),
        ({"x": tf.zeros([2, 3])}, r"x must be \[batch, height, width, channels\]"),
    ],
)
@only_compiled
def test_the_op_refuses_what_it_cannot_use(changed, words):
    given = {"x": tf.zeros([1, 2, 2, 3]), "gate": [], "residual": []}
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=words):
        native.ops().resnet_activate(**{**given, **changed}, activation="relu")
    dy = [tf.zeros_like(changed.get("x", given["x"]))]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=words):
        native.ops().resnet_activate_grad(
            dy=dy, **{**given, **changed}, activation="relu"
        )


@only_compiled
def test_the_gradient_refuses_gradients_of_another_shape():
    x = tf.zeros([1, 2, 2, 3])
    for dy in ([tf.zeros([1, 2, 2, 2])], [x, tf.zeros([2, 2, 2, 3])], [x, x, x]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="dy"):
            native.ops().resnet_activate_grad(
                dy=dy, x=x, gate=[], residual=[], activation="silu"
            )
    with pytest.raises(tf.errors.InvalidArgumentError, match="dy must be shaped like"):
        native.ops().resnet_gelu_grad(dy=tf.zeros([3]), x=tf.zeros([4]))


@pytest.mark.parametrize("count", [0, 513, 9_000])  # Several strips of the op.
def test_gelu_and_its_slope_are_those_of_the_formula_in_any_pair_of_dtypes(count):
    for dtype, to in itertools.product(DTYPES, DTYPES):
        x = tf.cast(np.linspace(-6, 6, count), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x, to)
        numbers = exact(x)
        dy = tf.cast(np.cos(numbers), to)
        slope = tape.gradient(y, x, dy)
        phi = np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in numbers])
        density = np.exp(-numbers * numbers / 2) / math.sqrt(2 * math.pi)
        is_exact = dtype == to == "float32"
        limits = {"rtol": 1e-5 if is_exact else 2**-7, "atol": 2e-6}
        assert (y.dtype, slope.dtype) == (to, dtype)
        np.testing.assert_allclose(exact(y), numbers * phi, **limits)
        expected = exact(dy) * (phi + numbers * density)
        np.testing.assert_allclose(exact(slope), expected, **limits)
