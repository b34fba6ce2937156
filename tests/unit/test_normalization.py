"""Batch normalization in training: the op against the formula and stock ops."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet import native
from resnet.models.layers import normalization
from tests.unit.each_instruction_set import (  # noqa: F401 - pytest finds them.
    dtypes_of,
    instruction_set,
    pytest_generate_tests,
)

# Relative to the size of the numbers that are summed for a result. float32 rounds to
# 2**-24 several times, and the stock ops, which add hundreds of numbers one by one,
# lose some bits more. bfloat16 rounds to 2**-9: the result, sometimes one of its terms,
# and in the stock ops the sum of the gradients of several copies.
TOLERANCE = {tf.float32: 2.0**-20, tf.bfloat16: 2.0**-8}
STOCK_TOLERANCE = {tf.float32: 2.0**-17, tf.bfloat16: 2.0**-7}
MANY_ROWS = (4, 32, 50, 32)  # Enough for 5 threads to share.

Normalize = Callable[..., Any]


class Inputs(NamedTuple):
    x: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor
    residual: tf.Tensor | None
    relu: bool
    dys: list[tf.Tensor]  # One for each copy.


class Results(NamedTuple):
    y: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray
    dresidual: np.ndarray | None


def op(x: tf.Tensor, *arguments: Any) -> Any:
    """The compiled op, never the stock ops."""
    assert native.fast_ops(x.dtype) is not None
    return normalization.batch_norm(x, *arguments)


def stock_ops(*arguments: Any) -> Any:
    with mock.patch.object(native, "fast_ops", return_value=None):
        return normalization.batch_norm(*arguments)


@functools.lru_cache(maxsize=200)
def make_inputs(
    shape: tuple[int, ...],
    dtype: tf.DType,
    residual: bool = False,
    relu: bool = True,
    num_copies: int = 1,
    mean: float = 0.5,
    seed: int = 0,
) -> Inputs:
    generator = np.random.default_rng(seed)

    def normal(*shape: int, mean: float = 0, dtype: tf.DType = dtype) -> tf.Tensor:
        return tf.cast(tf.constant(generator.normal(mean, 1, shape)), dtype)

    channels = shape[-1]
    return Inputs(
        normal(*shape, mean=mean),
        normal(channels, mean=1, dtype=tf.float32),
        normal(channels, dtype=tf.float32),
        normal(*shape) if residual else None,
        relu,
        [normal(*shape) for _ in range(num_copies)],
    )


@functools.cache
def traced(
    normalize: Normalize,
    rank: int,
    dtype: tf.DType,
    has_residual: bool,
    relu: bool,
    num_copies: int,
) -> Callable[..., Any]:
    """A graph that returns outputs, moments and a tape's gradients, of any shape."""
    image = tf.TensorSpec([None] * rank, dtype)
    channel = tf.TensorSpec([None])
    residuals = [image] if has_residual else []

    @tf.function(
        autograph=False,
        input_signature=[image, channel, channel, residuals, [image] * num_copies],
    )
    def in_graph(x: Any, gamma: Any, beta: Any, residuals: Any, dys: Any) -> Any:
        sources = [x, gamma, beta, *residuals]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            residual = residuals[0] if residuals else None
            ys, mean, variance = normalize(x, gamma, beta, residual, relu, num_copies)
        assert len(ys) == num_copies
        return ys, mean, variance, *tape.gradient(ys, sources, list(dys))

    return in_graph


def run(normalize: Normalize, inputs: Inputs) -> Results:
    """The results in float64."""
    x, gamma, beta, residual, relu, dys = inputs
    residuals = [] if residual is None else [residual]
    in_graph = traced(normalize, len(x.shape), x.dtype, bool(residuals), relu, len(dys))
    ys, *others = in_graph(x, gamma, beta, residuals, dys)
    for y in ys:
        np.testing.assert_array_equal(
            tf.cast(y, tf.float32), tf.cast(ys[0], tf.float32)
        )
    dtypes = [x.dtype, *[tf.float32] * 2, x.dtype, *[tf.float32] * 2, x.dtype]
    for one, dtype in zip((ys[0], *others), dtypes, strict=False):
        assert one.dtype == dtype
    found = [tf.cast(one, tf.float64).numpy() for one in (ys[0], *others)]
    return Results(*found, *([None] if residual is None else []))


def by_formula(inputs: Inputs, y: np.ndarray) -> tuple[Results, Results]:
    """The results in float64, and how large the numbers are that they are sums of.

    The rounded result y decides where the ReLU passes gradients.
    """
    shape, channels = inputs.x.shape, inputs.x.shape[-1]

    def rows(tensor: tf.Tensor) -> np.ndarray:
        return tf.cast(tensor, tf.float64).numpy().reshape(-1, channels)

    x, gamma, beta = rows(inputs.x), rows(inputs.gamma)[0], rows(inputs.beta)[0]
    residual = 0 if inputs.residual is None else rows(inputs.residual)
    dys = [rows(dy) for dy in inputs.dys]
    mean, variance = x.mean(0), x.var(0)
    scale = 1 / np.sqrt(variance + normalization.EPSILON)
    xhat = (x - mean) * scale
    expected = gamma * xhat + beta + residual
    g, g_size = np.sum(dys, axis=0), np.sum(np.abs(dys), axis=0)
    if inputs.relu:
        expected = np.maximum(expected, 0)
        g = g * (y.reshape(-1, channels) > 0)
    dbeta, dgamma = g.sum(0), (g * xhat).sum(0)
    dx = gamma * scale * (g - dbeta / len(x) - xhat * dgamma / len(x))

    unbiased = len(x) / max(len(x) - 1, 1)
    x_size = np.abs(x).max(0)
    xhat_size = np.abs(xhat) + x_size * scale  # x - mean is as exact as x.
    dgamma_size = (g_size * xhat_size).sum(0)
    g_terms = g_size + (g_size.sum(0) + xhat_size * dgamma_size) / len(x)
    sizes = Results(
        (np.abs(gamma) * xhat_size + np.abs(beta) + np.abs(residual)).reshape(shape),
        x_size,
        unbiased * (variance + x_size * np.sqrt(variance)),
        (np.abs(gamma) * scale * g_terms).reshape(shape),
        dgamma_size,
        g_size.sum(0),
        g_size.reshape(shape),
    )
    results = Results(
        expected.reshape(shape),
        mean,
        unbiased * variance,
        dx.reshape(shape),
        dgamma,
        dbeta,
        None if inputs.residual is None else g.reshape(shape),
    )
    return results, sizes


def assert_right(
    inputs: Inputs,
    found: Results,
    tolerance: dict[tf.DType, float],
    of_sums: tf.DType = tf.float32,
) -> None:
    """Compares with the formula; what is added up over rows counts as `of_sums`."""
    expected, sizes = by_formula(inputs, found.y)
    for name, one, other, size in zip(
        Results._fields, found, expected, sizes, strict=True
    ):
        if other is None:
            assert one is None
            continue
        assert one.shape == other.shape, name
        is_image = name in ("y", "dx", "dresidual")
        limit = tolerance[inputs.x.dtype if is_image else of_sums] * size
        worst = (np.abs(one - other) / (limit + 1e-30)).max()
        assert worst < 1, f"{name} is off by {worst:.2f} times as much as it may be"


@pytest.mark.parametrize(
    ("residual", "relu", "num_copies"),
    [(False, False, 1), (False, True, 2), (True, True, 1), (True, False, 3)],
)
@pytest.mark.parametrize("shape", [(2, 5, 3, 64), (1, 3, 3, 3), MANY_ROWS])
def test_the_op_and_the_stock_ops_agree_with_the_formula(
    shape, residual, relu, num_copies, dtype
):
    inputs = make_inputs(shape, dtype, residual, relu, num_copies)
    assert_right(inputs, run(op, inputs), TOLERANCE)
    assert_right(inputs, run(stock_ops, inputs), STOCK_TOLERANCE, of_sums=dtype)


def test_outputs_that_bypass_the_cache_agree_with_the_formula(dtype):
    """From 16 MiB on they do. The images are copies of a few: so are the results."""
    few, copies = make_inputs((256, 64), dtype, True), 2**10 // dtype.size
    many = [tf.tile(images, [copies, 1]) for images in (few.x, few.residual, *few.dys)]
    inputs = few._replace(x=many[0], residual=many[1], dys=many[2:])
    found = run(op, inputs)
    images = ("y", "dx", "dresidual")
    for name in images:
        rows = getattr(found, name).reshape(copies, 256, 64)
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
    sums = {name: getattr(found, name) / copies for name in ("dgamma", "dbeta")}
    parts = {name: getattr(found, name)[:256] for name in images}
    unbiased = found.variance * (1 - 1 / (256 * copies)) * 256 / 255
    assert_right(few, found._replace(**parts, **sums, variance=unbiased), TOLERANCE)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    channels=st.integers(1, 140),
    is_bf16=st.booleans(),
    residual=st.booleans(),
    relu=st.booleans(),
    num_copies=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_the_op_agrees_with_the_formula_for_any_shape(
    shape, channels, is_bf16, residual, relu, num_copies, seed
):
    shape = (*shape, channels)
    dtype = dtypes_of(native.instruction_set())[-1] if is_bf16 else tf.float32
    inputs = make_inputs(shape, dtype, residual, relu, num_copies, seed=seed)
    assert_right(inputs, run(op, inputs), TOLERANCE)


@pytest.mark.parametrize(
    ("mean", "outliers"),
    [(-1e3, slice(0, 1)), (1e4, slice(0, 0)), (1e4, slice(-1, None))],
)
def test_a_mean_much_larger_than_the_deviations_costs_no_accuracy(mean, outliers):
    inputs = make_inputs(MANY_ROWS, tf.float32, mean=mean)
    x = inputs.x.numpy()
    x.reshape(-1, x.shape[-1])[outliers] = 0  # The first rows, or the last ones.
    inputs = inputs._replace(x=tf.constant(x))
    found = run(op, inputs)
    assert_right(inputs, found, STOCK_TOLERANCE)
    expected, _ = by_formula(inputs, found.y)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=2e-5)


def test_a_channel_that_is_the_same_everywhere_is_beta_and_passes_no_gradient():
    inputs = make_inputs((4, 5, 5, 32), tf.float32, relu=False)
    found = run(op, inputs._replace(x=tf.fill([4, 5, 5, 32], 3.7)))
    np.testing.assert_array_equal(found.variance, 0)
    np.testing.assert_allclose(found.y, tf.broadcast_to(inputs.beta, found.y.shape))
    np.testing.assert_allclose(found.dgamma, 0, atol=1e-30)


@pytest.mark.parametrize("residual", [False, True])
def test_nan_stays_nan_in_its_channel(residual, dtype):
    inputs = make_inputs((2, 3, 3, 64), dtype, residual)
    x = tf.cast(inputs.x, tf.float32).numpy()
    x[1, 2, 0, 5] = np.nan
    found = run(op, inputs._replace(x=tf.cast(tf.constant(x), dtype)))
    assert np.isnan(found.y[..., 5]).all()
    assert np.isnan([found.mean[5], found.variance[5]]).all()
    assert np.isfinite(np.delete(found.y, 5, axis=-1)).all()


@pytest.mark.parametrize(("residual", "num_copies"), [(False, 1), (True, 2)])
def test_memory_of_inputs_is_used_again_only_if_nothing_else_needs_it(
    residual, num_copies, dtype
):
    inputs = make_inputs((3, 4, 4, 96), dtype, residual, num_copies=num_copies)
    expected = run(op, inputs)
    two = tf.Variable(2, dtype=dtype)  # Whose products are new memory.

    @tf.function
    def gradients(keep: bool) -> Any:
        x, gamma, beta, residual, relu, dys = inputs
        x, dys = x * two / 2, [dy * two / 2 for dy in dys]
        sources = [x, gamma, beta] + ([] if residual is None else [residual])
        with tf.GradientTape() as tape:
            tape.watch(sources)
            ys, *_ = op(x, gamma, beta, residual, relu, num_copies)
        return tape.gradient(ys, sources, dys), [x, *dys] if keep else []

    for keep in (False, True):
        found, kept = gradients(keep)
        for one, other in zip(found, expected[3:], strict=False):
            np.testing.assert_array_equal(tf.cast(one, tf.float64), other)
        for one, other in zip(kept, [inputs.x, *inputs.dys], strict=False):
            np.testing.assert_array_equal(one, other)


def test_a_copy_that_nothing_takes_adds_no_gradient_and_eager_calls_agree():
    inputs = make_inputs((2, 3, 3, 64), tf.float32, residual=True, num_copies=2)
    x, gamma, beta, residual, relu, dys = inputs
    expected = run(op, inputs._replace(dys=dys[1:]))
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, beta, residual])
        ys, *_ = op(x, gamma, beta, residual, relu, 2)
    found = tape.gradient(ys[1], [x, gamma, beta, residual], dys[1])
    for one, other in zip((ys[1], *found), (expected.y, *expected[3:]), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("shape", "relu"), [((2, 3, 3, 40), False), ((16, 56, 56, 64), True)]
)
def test_rematerialized_outputs_have_the_same_bits(shape, relu, dtype):
    inputs = make_inputs(shape, dtype, num_copies=0)

    @tf.function
    def twice() -> tuple[tf.Tensor, tf.Tensor]:
        (y,), *_ = op(inputs.x, inputs.gamma, inputs.beta, None, relu)
        again = normalization.rematerialize(y, y)
        assert again.op.type == "ResnetNormalize"
        return y, again

    once, again = twice()
    np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize(("residual", "num_copies"), [(False, 2), (True, 1), (True, 2)])
def test_outputs_that_stay_in_memory_anyway_are_not_rematerialized(
    residual, num_copies
):
    inputs = make_inputs((2, 3, 3, 64), tf.float32, residual=residual)

    @tf.function
    def check() -> None:
        (y, *_), *_ = op(*inputs[:4], True, num_copies)
        assert normalization.rematerialize(y, y) is y
        assert normalization.rematerialize(inputs.x, y) is inputs.x

    check()
    assert normalization.rematerialize(inputs.x, inputs.x) is inputs.x


def test_the_moments_pass_no_gradients():
    inputs = make_inputs((2, 3, 3, 64), tf.float32)
    x, gamma, beta, *_ = inputs
    for normalize in (op, stock_ops):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,), mean, variance = normalize(x, gamma, beta, None, True)
            loss = tf.reduce_sum(y * inputs.dys[0]) + tf.reduce_sum(mean * variance)
        expected = run(normalize, inputs)
        np.testing.assert_allclose(tape.gradient(loss, x), expected.dx, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": tf.zeros([3])}, "at least rank 2|x must be"),
        ({"x": tf.zeros([2, 3, 3, 0])}, r"x must be \[..., channels\]"),
        ({"gamma": tf.zeros([7])}, r"gamma must be \[8\]"),
        ({"beta": tf.zeros([8, 1])}, r"beta must be \[8\]"),
        ({"residual": tf.zeros([2, 3, 8])}, "residual must be shaped like x"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changed, words):
    inputs = make_inputs((2, 3, 3, 8), tf.float32)._replace(**changed)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=words):
        op(*inputs[:5])
