import numpy as np
import pytest
import tensorflow as tf

from resnet.optim.optimizers import Momentum

# Two roundings of a float32 a step, over a few steps.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("way", ["apply", "apply_with_stock_ops"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_several_steps_are_those_of_the_formula(in_graph, way):
    generator = np.random.default_rng(0)
    momentum, weight_decay = 0.9, 0.05
    decays = [True, False, True]
    shapes = [(2, 3), (70_000,), ()]  # More than a task of the compiled op.
    weights = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    variables = [tf.Variable(one) for one in weights]
    weights = [one.astype(np.float64) for one in weights]
    velocities = [np.zeros(shape) for shape in shapes]
    optimizer = Momentum(variables, momentum, weight_decay, decays)
    apply = getattr(optimizer, way)
    apply = tf.function(apply) if in_graph else apply
    for learning_rate in (0.1, 0.2, 0.05, 0.0, 1.0):
        gradients = [generator.normal(size=one).astype(np.float32) for one in shapes]
        apply(
            [tf.constant(one) for one in gradients],
            tf.constant(learning_rate, tf.float32),
        )
        for i, gradient in enumerate(gradients):
            total = gradient + (weight_decay * weights[i] if decays[i] else 0)
            velocities[i] = momentum * velocities[i] + total
            weights[i] = weights[i] - learning_rate * (total + momentum * velocities[i])
        for ours, expected in zip(variables, weights, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)
        for ours, expected in zip(optimizer.velocities, velocities, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)


def test_two_steps_by_hand():
    variable = tf.Variable([1.0])
    optimizer = Momentum([variable], 0.5, 0.25, [True])
    rate = tf.constant(0.5)
    optimizer.apply([tf.constant([1.0])], rate)
    # Gradient 1 + 0.25 * 1 = 1.25; velocity 1.25; 1 - 0.5 * (1.25 + 0.625).
    assert variable.numpy() == [0.0625]
    optimizer.apply([tf.constant([0.0])], rate)
    # Gradient 0.25 * 0.0625 = 0.015625; velocity 0.625 + 0.015625 = 0.640625;
    # 0.0625 - 0.5 * (0.015625 + 0.3203125).
    assert variable.numpy() == [-0.10546875]
    assert optimizer.velocities[0].numpy() == [0.640625]


def test_weight_decay_acts_only_where_it_is_meant_to():
    variables = [tf.Variable([2.0]), tf.Variable([2.0])]
    optimizer = Momentum(variables, 0.9, 0.1, [True, False])
    optimizer.apply([tf.zeros([1])] * 2, tf.constant(1.0))
    # 2 - (0.2 + 0.9 * 0.2).
    assert variables[0].numpy() == pytest.approx(1.62, rel=1e-6)
    assert variables[1].numpy() == 2.0


def test_without_momentum_it_is_plain_gradient_descent():
    variable = tf.Variable([1.0, 2.0])
    optimizer = Momentum([variable], 0.0, 0.0, [True])
    for _ in range(3):
        optimizer.apply([tf.constant([0.5, -0.5])], tf.constant(0.5))
    assert variable.numpy().tolist() == [0.25, 2.75]


def test_velocities_start_at_zero_in_the_shape_of_their_variables():
    variables = [tf.Variable(tf.ones([2, 3])), tf.Variable(1.0)]
    optimizer = Momentum(variables, 0.9, 0.0, [False, False])
    assert [one.shape for one in optimizer.velocities] == [(2, 3), ()]
    assert not any(one.numpy().any() for one in optimizer.velocities)


def test_a_gradient_too_few_is_refused():
    optimizer = Momentum([tf.Variable(1.0), tf.Variable(1.0)], 0.9, 0.0, [True, True])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        optimizer.apply([tf.constant(1.0)], tf.constant(0.1))


def test_a_value_read_before_the_step_stays_as_it_was():
    variable = tf.Variable(tf.ones([3]))
    optimizer = Momentum([variable], 0.9, 0.0, [True])

    @tf.function
    def step() -> tf.Tensor:
        before = variable.read_value()
        optimizer.apply([tf.ones([3])], tf.constant(1.0))
        return before

    np.testing.assert_array_equal(step(), np.ones(3))
    # 1 - (1 + 0.9 * 1).
    np.testing.assert_allclose(variable.numpy(), np.full(3, -0.9), rtol=1e-6)


def test_a_gradient_of_another_shape_is_refused():
    variable = tf.Variable(tf.ones([3]))
    optimizer = Momentum([variable], 0.9, 0.0, [True])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        optimizer.apply([tf.ones([4])], tf.constant(1.0))


def test_a_step_has_the_same_bits_on_any_processor():
    # Each operation rounded by itself, as NumPy does; a joined multiplication and
    # addition, which not all processors have, would round once less.
    generator = np.random.default_rng(0)
    value, velocity, gradient = generator.normal(size=(3, 5001)).astype(np.float32)
    variable = tf.Variable(value)
    optimizer = Momentum([variable], 0.9, 0.01, [True])
    optimizer.velocities[0].assign(velocity)
    tf.function(optimizer.apply)([tf.constant(gradient)], tf.constant(0.1))
    momentum, decay, rate = np.float32(0.9), np.float32(0.01), np.float32(0.1)
    step = gradient + decay * value
    velocity = momentum * velocity + step
    expected = value - rate * (step + momentum * velocity)
    np.testing.assert_array_equal(optimizer.velocities[0].numpy(), velocity)
    np.testing.assert_array_equal(variable.numpy(), expected)
