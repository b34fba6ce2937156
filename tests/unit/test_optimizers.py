import numpy as np
import pytest
import tensorflow as tf

from resnet.config import phases
from resnet.config.config import Config
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve

# Two roundings of a float32 a step, over a few steps.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
from tests.unit.one_optimizer import WAYS, applying, make, settings, slots


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_graph", [False, True])
def test_several_steps_are_those_of_the_formula(in_graph, way, nesterov):
    generator = np.random.default_rng(0)
    weight_decay, nesterov_momentum = 0.05, 0.9
    decays = [True, False, True]
    shapes = [(2, 3), (70_000,), ()]  # More than a task of the compiled op.
    weights = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    variables = [tf.Variable(one) for one in weights]
    weights = [one.astype(np.float64) for one in weights]
    velocities = [np.zeros(shape) for shape in shapes]
    optimizer = make("momentum", variables, decays, nesterov)
    apply = applying(optimizer, way, in_graph)
    for learning_rate, momentum in (
        *((0.1, 0.9), (0.2, 0.45), (0.05, 0.9), (0.0, 0.9), (1.0, 0.5)),
    ):
        gradients = [generator.normal(size=one).astype(np.float32) for one in shapes]
        apply(
            [tf.constant(one) for one in gradients],
            settings(learning_rate, momentum, weight_decay, nesterov_momentum),
        )
        for i, gradient in enumerate(gradients):
            total = gradient + (weight_decay * weights[i] if decays[i] else 0)
            velocities[i] = momentum * velocities[i] + total
            direction = (
                total + nesterov_momentum * velocities[i] if nesterov else velocities[i]
            )
            weights[i] = weights[i] - learning_rate * direction
        for ours, expected in zip(variables, weights, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)
        for ours, expected in zip(slots(optimizer), velocities, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)


def test_two_steps_by_hand():
    variable = tf.Variable([1.0])
    optimizer = make("momentum", [variable], [True])
    rate = settings(0.5, 0.5, 0.25)
    optimizer.apply([tf.constant([1.0])], rate)
    # Gradient 1 + 0.25 * 1 = 1.25; velocity 1.25; 1 - 0.5 * (1.25 + 0.625).
    assert variable.numpy() == [0.0625]
    optimizer.apply([tf.constant([0.0])], rate)
    # Gradient 0.25 * 0.0625 = 0.015625; velocity 0.625 + 0.015625 = 0.640625;
    # 0.0625 - 0.5 * (0.015625 + 0.3203125).
    assert variable.numpy() == [-0.10546875]
    assert slots(optimizer)[0].numpy() == [0.640625]


def test_weight_decay_acts_only_where_it_is_meant_to():
    variables = [tf.Variable([2.0]), tf.Variable([2.0])]
    optimizer = make("momentum", variables, [True, False])
    optimizer.apply([tf.zeros([1])] * 2, settings(1.0, 0.9, 0.1))
    # 2 - (0.2 + 0.9 * 0.2).
    assert variables[0].numpy() == pytest.approx(1.62, rel=1e-6)
    assert variables[1].numpy() == 2.0


def test_without_momentum_it_is_plain_gradient_descent():
    variable = tf.Variable([1.0, 2.0])
    optimizer = make("momentum", [variable], [True])
    for _ in range(3):
        optimizer.apply([tf.constant([0.5, -0.5])], settings(0.5, 0.0, 0.0))
    assert variable.numpy().tolist() == [0.25, 2.75]


def test_velocities_start_at_zero_in_the_shape_of_their_variables():
    variables = [tf.Variable(tf.ones([2, 3])), tf.Variable(1.0)]
    optimizer = make("momentum", variables, [False, False])
    assert [one.shape for one in slots(optimizer)] == [(2, 3), ()]
    assert not any(one.numpy().any() for one in slots(optimizer))


@pytest.mark.parametrize("way", WAYS)
def test_each_variable_has_its_own_factor_of_the_learning_rate(way):
    variables = [tf.Variable([1.0]) for _ in range(4)]
    optimizer = make("momentum", variables, [True, False, True, True], nesterov=False)
    apply = applying(optimizer, way, True)
    for _ in range(2):
        apply([tf.constant([2.0])] * 4, settings(0.25, 0.5, 0.5), (1.0, 4.0, 0.0, 1.0))
    # Decay: gradient 2.5, 1 - 0.625 = 0.375; then 2 + 0.1875 + 0.5 * 2.5 = 3.4375.
    # Without: gradient 2, 1 - 4 * 0.5 = -1; then 2 + 0.5 * 2 = 3.
    assert [one.numpy().item() for one in variables] == [
        *(0.375 - 0.25 * 3.4375, -1 - 3.0, 1.0, 0.375 - 0.25 * 3.4375)
    ]
    velocities = [one.numpy().item() for one in slots(optimizer)]
    assert velocities == [3.4375, 3.0, 0.0, 3.4375]


@pytest.mark.parametrize("way", WAYS)
def test_decay_can_be_the_same_for_all_factors(way):
    variables = [tf.Variable([1.0]) for _ in range(2)]
    optimizer = make("momentum", variables, [True, True], nesterov=False)
    rate = settings(0.25, 0.5, 0.5)._replace(decay_is_scaled=False)
    applying(optimizer, way, False)([tf.constant([2.0])] * 2, rate, (1.0, 4.0))
    # 1 - 0.25 * (2 + 0.5), and 1 - 4 * 0.25 * (2 + 0.5 / 4): both decay by 0.125.
    assert [one.numpy().item() for one in variables] == [0.375, -1.125]


def test_the_rates_of_cifar10_airbench94_are_those_of_its_source():
    """Compares with the source's update, for the sum of the losses of a batch.

    KellerJordan/cifar10-airbench, legacy/airbench94.py, with torch.optim.SGD: to the
    gradient it adds the weight decay, moves the buffer, and takes Nesterov's step.
    """
    batch, momentum = 1024, 0.85
    kilostep = 1024 * (1 + 1 / (1 - momentum))
    rate, decay = 11.5 / kilostep, 0.0153 * batch / kilostep
    rates = np.array([rate, 64 * rate])  # Of other weights, and of BatchNorm's biases.
    config = run_of_recipe("cifar10_airbench94")
    generator = np.random.default_rng(0)
    weights = generator.normal(size=2)
    variables = [tf.Variable([one], dtype=tf.float32) for one in weights]
    optimizer = make("momentum", variables, [True, True], config.nesterov)
    buffers = np.zeros(2)
    for step in (0, 50, 109, 300, 475):
        part = 0.2 + 0.8 * step / 109 if step < 109 else 1 - 0.93 * (step - 109) / 367
        sums = generator.normal(size=2) * batch
        gradients = sums + decay / rates * weights
        buffers = momentum * buffers + gradients
        weights = weights - part * rates * (gradients + momentum * buffers)
        ours = config.settings_at(step)
        factors = phases.factors_of(
            phases.at(config.phases, step).layer_rates,
            ("block1_conv1/kernel", "block1_conv1/beta", "whitening/bias"),
        )
        assert factors == (1, 64, step < 144)
        optimizer.apply(
            [tf.constant([one / batch], tf.float32) for one in sums],
            ours._replace(
                **{
                    name: tf.constant(getattr(ours, name), tf.float32)
                    for name in (
                        "learning_rate",
                        "velocity_factor",
                        "nesterov_momentum",
                    )
                }
            ),
            factors[:2],
        )
        found = np.array([one.numpy().item() for one in variables])
        np.testing.assert_allclose(found, weights, rtol=1e-5)


def run_of_recipe(name: str) -> Config:
    recipe = RECIPES[name]
    return resolve(recipe, {}, recipe.num_train_examples, tuple("abcdefghij"))


def test_lars_has_the_factors_too():
    variables = [tf.Variable([3.0, 4.0]) for _ in range(3)]
    optimizer = make("lars", variables, [True, True, False], trust_coefficient=0.5)
    gradients = [tf.constant([0.0, 5.0])] * 3
    optimizer.apply(gradients, settings(0.5, 0.0, 0.0), (1.0, 0.0, 2.0))
    # Trust 0.5 * 5 / 5 = 0.5, and 1 without.
    found = [one.numpy().tolist() for one in variables]
    assert found == [[3.0, 4 - 0.5 * 2.5], [3.0, 4.0], [3.0, 4 - 0.5 * 2 * 5.0]]


@pytest.mark.parametrize("factors", [(), (1.0, 2.0)])
def test_a_gradient_too_few_is_refused(factors):
    optimizer = make("momentum", [tf.Variable(1.0), tf.Variable(1.0)], [True, True])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        optimizer.apply([tf.constant(1.0)], settings(0.1, 0.9, 0.0), factors)


def test_a_value_read_before_the_step_stays_as_it_was():
    variable = tf.Variable(tf.ones([3]))
    optimizer = make("momentum", [variable], [True])

    @tf.function
    def step() -> tf.Tensor:
        before = variable.read_value()
        optimizer.apply([tf.ones([3])], settings(1.0, 0.9, 0.0))
        return before

    np.testing.assert_array_equal(step(), np.ones(3))
    # 1 - (1 + 0.9 * 1).
    np.testing.assert_allclose(variable.numpy(), np.full(3, -0.9), rtol=1e-6)


def test_a_gradient_of_another_shape_is_refused():
    variable = tf.Variable(tf.ones([3]))
    optimizer = make("momentum", [variable], [True])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        optimizer.apply([tf.ones([4])], settings(1.0, 0.9, 0.0))


def test_a_step_has_the_same_bits_on_any_processor():
    # Each operation rounded by itself, as NumPy does; a joined multiplication and
    # addition, which not all processors have, would round once less.
    generator = np.random.default_rng(0)
    value, velocity, gradient = generator.normal(size=(3, 5001)).astype(np.float32)
    variable = tf.Variable(value)
    optimizer = make("momentum", [variable], [True])
    slots(optimizer)[0].assign(velocity)
    tf.function(optimizer.apply)([tf.constant(gradient)], settings(0.1, 0.9, 0.01))
    momentum, decay, rate = np.float32(0.9), np.float32(0.01), np.float32(0.1)
    step = gradient + decay * value
    velocity = momentum * velocity + step
    expected = value - rate * (step + momentum * velocity)
    np.testing.assert_array_equal(slots(optimizer)[0].numpy(), velocity)
    np.testing.assert_array_equal(variable.numpy(), expected)


def slow_lars(weights, velocity, gradient, rates, momentum, weight_decay, eta):
    """The paper's algorithm 1, whose velocity has the learning rate in it."""
    weights, velocity = weights.astype(np.float64), velocity.astype(np.float64)
    for rate in rates:
        norm, of_gradient = np.linalg.norm(weights), np.linalg.norm(gradient)
        trust = eta * norm / (of_gradient + weight_decay * norm)
        step = trust * rate * (gradient + weight_decay * weights)
        velocity = momentum * velocity + step
        weights = weights - velocity
    return weights


def test_lars_is_that_of_the_paper():
    generator = np.random.default_rng(1)
    value, gradient = generator.normal(size=(2, 5, 7)).astype(np.float32)
    variable = tf.Variable(value)
    optimizer = make("lars", [variable], [True], trust_coefficient=0.02)
    rates = (0.0, 2.0, 4.0, 1.0)
    before = None
    for rate in rates:
        momentum = 0.9 * before / rate if rate and before is not None else 0.9
        tf.function(optimizer.apply)(
            [tf.constant(gradient)], settings(rate, momentum, 0.01)
        )
        before = rate
    expected = slow_lars(value, np.zeros((5, 7)), gradient, rates, 0.9, 0.01, 0.02)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


def test_lars_moves_what_does_not_decay_as_momentum_does():
    values = [tf.Variable([3.0, 4.0]) for _ in range(2)]
    for variable, kind in zip(values, ("lars", "momentum"), strict=True):
        make(kind, [variable], [False], False).apply(
            [tf.constant([0.5, 0.25])], settings(0.5, 0.9, 0.1)
        )
    # 3 - 0.5 * 0.5, 4 - 0.5 * 0.25: neither scaled nor decayed.
    assert [one.numpy().tolist() for one in values] == [[2.75, 3.875]] * 2


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_lars_does_not_scale_where_a_norm_is_zero(weight, gradient):
    variable = tf.Variable([weight])
    make("lars", [variable], [True]).apply(
        [tf.constant([gradient])], settings(0.5, 0.9, 0.5)
    )
    # Trust 1: the gradient and half of the weight, times a rate of a half.
    assert variable.numpy() == [weight - 0.5 * (gradient + 0.5 * weight)]


def test_reset_sets_the_velocities_to_zero():
    variable = tf.Variable([1.0])
    optimizer = make("momentum", [variable], [True])
    optimizer.apply([tf.constant([1.0])], settings(0.5, 0.9, 0.0))
    assert slots(optimizer)[0].numpy() == [1.0]
    optimizer.reset()
    assert slots(optimizer)[0].numpy() == [0.0]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_sgdw_is_that_of_composer(in_graph, nesterov):
    """Its factor is for the highest rate, and follows the schedule of the rate."""
    generator = np.random.default_rng(0)
    highest, factor, momentum = 0.5, 0.02, 0.8
    decays = [True, False]
    starts = generator.normal(size=(2, 5)).astype(np.float32)
    variables = [tf.Variable(one) for one in starts]
    optimizer = make("sgdw", variables, decays, nesterov)
    apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
    weights, velocities = starts.astype(np.float64), np.zeros((2, 5))
    for rate in (0.1, highest, 0.3, 0.0):
        gradients = generator.normal(size=(2, 5)).astype(np.float32)
        apply(list(gradients), settings(rate, momentum, factor / highest))
        for i, gradient in enumerate(gradients):
            velocities[i] = momentum * velocities[i] + gradient
            step = gradient + momentum * velocities[i] if nesterov else velocities[i]
            if decays[i]:
                weights[i] *= 1 - factor * rate / highest
            weights[i] -= rate * step
    for ours, expected in zip(variables, weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)
    for ours, expected in zip(slots(optimizer), velocities, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, **CLOSE)


def test_the_decay_of_sgdw_has_the_factors_of_the_rates():
    variables = [tf.Variable([1.0]) for _ in range(3)]
    optimizer = make("sgdw", variables, [True] * 3)
    optimizer.apply([tf.zeros([1])] * 3, settings(0.5, 0.9, 0.25), (1.0, 2.0, 0.0))
    assert [one.numpy().item() for one in variables] == [0.875, 0.75, 1.0]
