"""The rules of the optimizers, and the norms that they use."""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from resnet.config import phases
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.optim import norms
from resnet.optim.train_state import TrainState
from tests.drawn import normal
from tests.unit.one_optimizer import WAYS, Twin, applying, config_of, make, settings

KINDS = ("momentum", "sgdw", "lars", "adamw", "muon")
CONSTANTS = {
    "trust_coefficient": 0.02,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-3,
    "muon_momentum": 0.6,
}
# jobs/test_fresh_process.py has other numbers of threads.
SHAPES = [(), (0,), (1,), (64,), (1024,), (1025,), (3, 3, 128, 130), (2049, 1024)]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("kind", "way", "in_graph"),
    [
        *((kind, "compiled", True) for kind in KINDS),
        *(("momentum", "stock", True), ("momentum", "stock", False)),
        *((kind, "compiled", False) for kind in KINDS),
    ],
)
def test_several_steps_are_those_of_the_formula(kind, way, in_graph, nesterov):
    generator = np.random.default_rng(0)
    decay = 0.05
    decays, factors = [True, False, True, True], (1.0, 3.0, 0.5, 0.0)
    # More than a task of the compiled op; a convolution for Muon.
    shapes = [(3, 3, 8, 12), (70_000,), (2, 3), (5,)]
    starts = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    variables = [tf.Variable(one) for one in starts]
    optimizer = make(kind, variables, decays, nesterov, **CONSTANTS)
    config = config_of(kind, nesterov, **CONSTANTS)
    twins = [Twin(*pair, config) for pair in zip(starts, decays, strict=True)]
    apply = applying(optimizer, way, in_graph)
    for rate, *momenta in ((0.1, 0.9, 0.9), (0.2, 0.45, 0.8), (0.0, 0.9, 0.9)):
        gradients = [generator.normal(size=one).astype(np.float32) for one in shapes]
        apply(
            [tf.constant(one) for one in gradients],
            settings(rate, momenta[0], decay, momenta[1]),
            factors,
        )
        for twin, gradient, factor in zip(twins, gradients, factors, strict=True):
            if factor:
                twin.step(gradient, rate * factor, momenta[0], decay, momenta[1])
    # Some roundings of a float32 a step; Muon's matrices are products of products.
    close = {"rtol": 1e-5, "atol": 2e-5 if kind == "muon" else 2e-6}
    for ours, twin in zip(variables, twins, strict=True):
        np.testing.assert_allclose(ours.numpy(), twin.weights, **close)
    for ours, twin in zip(optimizer.velocities.values(), twins, strict=True):
        np.testing.assert_allclose(ours.numpy(), twin.velocity, **close)


@pytest.mark.parametrize("way", WAYS)
def test_decay_can_be_the_same_for_all_factors(way):
    variables = [tf.Variable([1.0]) for _ in range(2)]
    optimizer = make("momentum", variables, [True, True], nesterov=False)
    rate = settings(0.25, 0.5, 0.5)._replace(decay_is_scaled=False)
    applying(optimizer, way, False)([tf.constant([2.0])] * 2, rate, (1.0, 4.0))
    # 1 - 0.25 * (2 + 0.5), and 1 - 4 * 0.25 * (2 + 0.5 / 4): both decay by 0.125.
    assert [one.numpy().item() for one in variables] == [0.375, -1.125]


AIRBENCH = 1024 * (1 + 1 / 0.15)  # A kilostep of its source.
SOURCES = {
    # BatchNorm's biases have 64 times the rate of other weights.
    "cifar10_airbench94": {
        "names": ("block1_conv1/kernel", "block1_conv1/beta", "whitening/bias"),
        "batch": 1024,
        "momentum": 0.85,
        "bias_steps": 144,
        "rates": np.array([1, 64]) * 11.5 / AIRBENCH,
        "decay": 0.0153 * 1024 / AIRBENCH,
        "scale": np.ones(2),
        "parts": {
            **{step: 0.2 + 0.8 * step / 109 for step in (0, 50)},
            **{step: 1 - 0.93 * (step - 109) / 367 for step in (109, 300, 475)},
        },
    },
    # The logits are 1/256 of the products with the last layer, here 1/9.
    "cifar10_94": {
        "names": ("block1_conv1/beta", "classifier/kernel", "whitening/bias"),
        "batch": 1536,
        "momentum": 0.825,
        "bias_steps": 7,
        "rates": np.array([0.0573, 0.5415]),
        "decay": 1.0418e-6 * 1536,
        "scale": np.array([1, 9 / 256]),
        "parts": {step: 1 - step / 267 for step in (0, 6, 7, 266)},
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_rates_of_a_recipe_are_those_of_its_source(name):
    """Compares with torch.optim.SGD for the sum of the losses of a batch.

    KellerJordan/cifar10-airbench, legacy/airbench94.py, and hiverge/cifar10-speedrun,
    cifar10_speedrun.py: to the gradient it adds the weight decay, moves the buffer, and
    takes Nesterov's step.
    """
    source, recipe = SOURCES[name], RECIPES[name]
    momentum = source["momentum"]
    config = resolve(recipe, {}, recipe.num_train_examples, tuple("abcdefghij"))
    rates, decay, scale = source["rates"], source["decay"], source["scale"]
    generator = np.random.default_rng(0)
    weights, buffers = generator.normal(size=2), np.zeros(2)
    variables = [tf.Variable([one], dtype=tf.float32) for one in weights * scale]
    kind = config.optimizer
    optimizer = make(kind, variables, [True, True], config.nesterov)
    for step, part in source["parts"].items():
        sums = generator.normal(size=2) * source["batch"]
        gradients = sums + decay / rates * weights
        buffers = momentum * buffers + gradients
        weights = weights - part * rates * (gradients + momentum * buffers)
        ours = config.settings_at(step)
        layer_rates = phases.at(config.phases, step).layer_rates
        *factors, of_whitening = phases.factors_of(
            layer_rates, (*source["names"], "block1_conv1/kernel")
        )[:3]
        assert (of_whitening != 0) == (step < source["bias_steps"])
        optimizer.apply(
            # d loss / d ours = d loss / d theirs * d theirs / d ours.
            [tf.constant([one], tf.float32) for one in sums / source["batch"] / scale],
            settings(*ours[:2], ours.decay, ours.nesterov_momentum)._replace(
                decay_is_scaled=ours.decay_is_scaled
            ),
            factors,
        )
        found = np.array([one.numpy().item() for one in variables])
        np.testing.assert_allclose(found, weights * scale, rtol=1e-4)


@pytest.mark.parametrize("factors", [(), (1.0, 2.0)])
def test_a_gradient_too_few_or_of_another_shape_is_refused(factors):
    variables = [tf.Variable(tf.ones([3])) for _ in range(2)]
    optimizer = make("momentum", variables, [True, True])
    with pytest.raises(ValueError, match="shorter"):
        optimizer.apply([tf.ones([3])], settings(0.1, 0.9, 0.0), factors)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        optimizer.apply([tf.ones([4])] * 2, settings(0.1, 0.9, 0.0), factors)


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


def test_a_step_has_the_same_bits_on_any_processor():
    # Each operation rounded by itself, as NumPy does; a joined multiplication and
    # addition, which not all processors have, would round once less.
    generator = np.random.default_rng(0)
    value, velocity, gradient = generator.normal(size=(3, 5001)).astype(np.float32)
    variable = tf.Variable(value)
    optimizer = make("momentum", [variable], [True])
    (ours,) = optimizer.velocities.values()
    ours.assign(velocity)
    tf.function(optimizer.apply)([tf.constant(gradient)], settings(0.1, 0.9, 0.01))
    momentum, decay, rate = np.float32(0.9), np.float32(0.01), np.float32(0.1)
    step = gradient + decay * value
    velocity = momentum * velocity + step
    expected = value - rate * (step + momentum * velocity)
    np.testing.assert_array_equal(ours.numpy(), velocity)
    np.testing.assert_array_equal(variable.numpy(), expected)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_lars_does_not_scale_where_a_norm_is_zero(weight, gradient):
    variable = tf.Variable([weight])
    make("lars", [variable], [True]).apply(
        [tf.constant([gradient])], settings(0.5, 0.9, 0.5)
    )
    # Trust 1: the gradient and half of the weight, times a rate of a half.
    assert variable.numpy() == [weight - 0.5 * (gradient + 0.5 * weight)]


def test_adamw_is_that_of_keras():
    """With epsilon near 0, since Keras adds it before the correction of the bias."""
    generator = np.random.default_rng(0)
    start = generator.normal(size=7).astype(np.float32)
    ours, theirs = tf.Variable(start), keras.Variable(start)
    optimizer = make("adamw", [ours], [True], False, adam_epsilon=1e-20)
    of_keras = keras.optimizers.AdamW(0.01, weight_decay=0.5, epsilon=1e-20)
    for _ in range(20):
        gradient = tf.constant(generator.normal(size=7), tf.float32)
        optimizer.apply([gradient], settings(0.01, 0.9, 0.5))
        of_keras.apply([gradient], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4)


def test_what_was_frozen_or_reset_begins_with_a_step_of_full_length():
    frozen, other = tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = make("adamw", [frozen, other], [True, True])
    for _ in range(3):
        optimizer.apply([tf.ones([1])] * 2, settings(0.5, 0.9, 0.1), (0.0, 1.0))
    assert frozen.numpy() == [1.0]
    optimizer.apply([tf.ones([1])] * 2, settings(0.5, 0.9, 0.0), (1.0, 1.0))
    np.testing.assert_allclose(frozen.numpy(), [0.5], rtol=1e-5)
    optimizer.reset()
    before = other.numpy()
    optimizer.apply([tf.constant([-7.0])] * 2, settings(0.5, 0.9, 0.0))
    np.testing.assert_allclose(other.numpy(), before + 0.5, rtol=1e-5)


def test_the_weight_decay_of_adamw_is_no_part_of_the_loss(make_config):
    config = make_config(model="resnet8", optimizer="adamw", weight_decay=0.1)
    assert TrainState(config).weight_penalty() == 0.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_norm_is_that_of_numpy(shape):
    values = normal(*shape, seed=len(shape))
    expected = np.linalg.norm(values.astype(np.float64).ravel())
    assert norms.norm(tf.constant(values)).numpy() == pytest.approx(expected, rel=3e-7)


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0, np.inf])
def test_tensors_are_scaled_to_the_largest_norm_together(share):
    values = [normal(*shape, seed=len(shape)).copy() for shape in SHAPES]
    whole = np.sqrt(sum(np.sum(one.astype(np.float64) ** 2) for one in values))
    if share == np.inf:
        values[-1][0, 0] = share
    found = norms.clip_by_global_norm(list(map(tf.constant, values)), share * whole)
    if share == np.inf:
        assert all(np.isnan(one).any() for one in found[:1] + found[-1:])
        return
    for one, before in zip(found, values, strict=True):
        np.testing.assert_allclose(one, before * min(share, 1.0), rtol=1e-6)


def digests_of_updates() -> list[str]:
    """Returns a digest of the weights after updates with sums over large tensors."""
    found = []
    for kind, clip_norm in (("momentum", 1.0), ("lars", 0.0), ("muon", 0.0)):
        variables = [
            tf.Variable(normal(*shape, seed=len(shape))) for shape in SHAPES[-2:]
        ]
        gradients = [
            tf.constant(1e-3 * normal(*shape, seed=len(shape)) ** 3)
            for shape in SHAPES[-2:]
        ]
        optimizer = make(kind, variables, [True, True])

        def update(optimizer=optimizer, gradients=gradients, clip_norm=clip_norm):
            if clip_norm:
                gradients = norms.clip_by_global_norm(gradients, clip_norm)
            optimizer.apply(gradients, settings(0.1, 0.9, 5e-5))

        tf.function(update, autograph=False)()
        data = b"".join(variable.numpy().tobytes() for variable in variables)
        found.append(hashlib.sha256(data).hexdigest()[:16])
    return found
