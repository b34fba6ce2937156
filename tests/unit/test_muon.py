import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from resnet import native
from resnet.config import phases
from resnet.config.recipes import RECIPES
from resnet.config.resolve import resolve
from resnet.distributed.collectives import Collectives
from resnet.optim import muon
from resnet.optim.groups import balanced
from resnet.optim.train_state import TrainState
from tests.unit.one_optimizer import make, settings, slots

A, B, C = 3.4445, -4.7750, 2.0315


def slow_orthogonalized(matrix: np.ndarray, iterations: int = 3) -> np.ndarray:
    """Applies the polynomial to the singular values themselves."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / (np.sqrt(np.sum(values**2)) + 1e-7)
    for _ in range(iterations):
        values = A * values + B * values**3 + C * values**5
    return left * values @ right


@pytest.mark.parametrize("shape", [(27, 64), (216, 64), (64, 64), (1, 3), (5, 1)])
def test_the_iteration_acts_on_the_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = tf.function(muon.orthogonalized)(tf.constant(matrix)).numpy()
    np.testing.assert_allclose(found, slow_orthogonalized(matrix), atol=2e-5)
    # The largest of 64 values is far below 1 at first.
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.5 < values.max() < 1.3


@pytest.mark.parametrize("shape", [(16, 24), (48, 16)])
def test_small_singular_values_are_raised_like_the_others(shape):
    """Their squares, of which the product with itself consists, are below float32's."""
    generator = np.random.default_rng(0)
    left, _, right = np.linalg.svd(generator.normal(size=shape), full_matrices=False)
    matrix = left * np.logspace(0, -6, 16) @ right
    found = muon.orthogonalized(tf.constant(matrix, tf.float32)).numpy()
    expected = slow_orthogonalized(matrix)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for index in (0, 6, 9, 12):  # The last is 1.6e-5 at first, then 41 times as much.
        vectors = left[:, index], right[index]
        assert vectors[0] @ found @ vectors[1] == pytest.approx(
            vectors[0] @ expected @ vectors[1], rel=0.01
        )


def test_the_result_does_not_depend_on_the_scale():
    matrix = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)
    one, other = (
        muon.orthogonalized(tf.constant(matrix * scale)).numpy() for scale in (1, 64)
    )
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_gradient_of_zeros_has_an_update_of_zeros():
    assert not muon.orthogonalized(tf.zeros([4, 3])).numpy().any()


def test_a_product_is_that_of_numpy():
    generator = np.random.default_rng(0)
    left = generator.normal(size=(33, 70)).astype(np.float32)
    right = generator.normal(size=(70, 17)).astype(np.float32)
    np.testing.assert_allclose(muon.product(left, right), left @ right, atol=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_several_steps_are_those_of_the_formula(in_graph, nesterov):
    generator = np.random.default_rng(0)
    of_muon, of_others, decay = 0.6, 0.85, 0.1
    shapes, factors = [(3, 3, 8, 12), (12, 10), (12,)], (0.5, 2.0, 3.0)
    starts = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    variables = [tf.Variable(one) for one in starts]
    weights = [one.astype(np.float64) for one in starts]
    velocities = [np.zeros(shape) for shape in shapes]
    optimizer = make(
        "muon", variables, [False, True, False], nesterov, muon_momentum=of_muon
    )
    apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
    for rate in (0.1, 0.4, 0.0):
        gradients = [generator.normal(size=one).astype(np.float32) for one in shapes]
        apply(
            [tf.constant(one) for one in gradients],
            settings(rate, of_others, decay),
            factors,
        )
        for i, gradient in enumerate(gradients):
            momentum = of_muon if i == 0 else of_others
            total = gradient + (decay * weights[i] if i == 1 else 0)
            velocities[i] = momentum * velocities[i] + total
            step = total + momentum * velocities[i] if nesterov else velocities[i]
            if i == 0:
                weights[i] *= np.sqrt(12) / np.linalg.norm(weights[i])
                step = slow_orthogonalized(step.reshape(-1, 12)).reshape(shapes[i])
            weights[i] = weights[i] - rate * factors[i] * step
        for ours, expected in zip(variables, weights, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, atol=2e-5)
        for ours, expected in zip(slots(optimizer), velocities, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("model", ["resnet8", "airbench94", "inception_bn_28"])
def test_normalized_kernels_leave_what_the_network_computes(make_config, model):
    state = TrainState(make_config(model=model, optimizer="muon"))
    network = state.model
    generator = np.random.default_rng(0)
    for one in network.variables:
        if one.path.endswith(("moving_mean", "moving_variance", "bias")) or (
            one.path == "whitening/kernel"
        ):
            one.assign(generator.uniform(0.5, 1.5, one.shape))
    images = generator.normal(size=(2, 32, 32, 3)).astype(np.float32)
    before = network(images).numpy()
    muon.normalize_kernels(network)
    for one in network.trainable_variables:
        if len(one.shape) == 4:
            norm = np.linalg.norm(one.numpy())
            assert norm == pytest.approx(np.sqrt(one.shape[-1]), rel=1e-5)
    after = network(images).numpy()
    np.testing.assert_allclose(after, before, atol=1e-4 * np.abs(before).max())


def test_a_kernel_of_zeros_has_a_factor_of_zero():
    assert muon.normalization_factor(tf.Variable(tf.zeros([1, 1, 2, 3]))) == 0


def test_the_cost_is_that_of_all_products(monkeypatch):
    counted = []

    def product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        counted.append(2 * left.shape[0] * left.shape[1] * right.shape[1])
        return left @ right

    monkeypatch.setattr(muon, "product", product)
    for shape in ((27, 64), (64, 24), (5, 5)):
        counted.clear()
        muon.orthogonalized(tf.ones(shape))
        assert muon.cost(shape) == sum(counted)


@pytest.mark.parametrize("shape", [(3, 3, 24, 64), (3, 3, 64, 64), (1, 1, 64, 24)])
def test_an_update_is_the_same_with_all_instruction_sets(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    matrix = tf.constant(matrix.reshape(-1, shape[-1]))
    found = set()
    before = native.instruction_set()
    for name in native.usable_instruction_sets():
        native.limit_instruction_set(name)
        found.add(muon.orthogonalized(matrix).numpy().tobytes())
    native.limit_instruction_set(before)
    assert len(found) == 1


def test_a_frozen_convolution_stays_as_it_is():
    variable = tf.Variable(tf.ones([1, 1, 2, 2]))
    optimizer = make("muon", [variable], [False])
    optimizer.apply([tf.ones([1, 1, 2, 2])], settings(0.5, 0.9, 0.1), (0.0,))
    assert variable.numpy().tolist() == np.ones([1, 1, 2, 2]).tolist()
    assert not slots(optimizer)[0].numpy().any()


def test_the_rates_of_cifar10_94_are_those_of_its_source():
    """Compares with torch.optim.SGD for the sum of the losses of a batch.

    KellerJordan/cifar10-airbench, airbench94_muon.py: BatchNorm's biases have a rate of
    0.053 and a decay of 0.004 / 0.053, the last layer 0.67 and 0.004 / 0.67. Its logits
    are 1/256 of the products with the last layer, here 1/9.
    """
    batch, momentum, decay = 2000, 0.85, 2e-6 * 2000
    recipe = RECIPES["cifar10_94"]
    config = resolve(recipe, {}, recipe.num_train_examples, ("a", "b"))
    rates, scale = np.array([0.053, 0.67]), np.array([1, 9 / 256])
    generator = np.random.default_rng(0)
    weights, buffers = generator.normal(size=2), np.zeros(2)
    variables = [tf.Variable([one], dtype=tf.float32) for one in weights * scale]
    optimizer = make("muon", variables, [True, True], config.nesterov)
    for step in (0, 74, 75, 199):
        sums = generator.normal(size=2) * batch
        gradients = sums + decay / rates * weights
        buffers = momentum * buffers + gradients
        part = 1 - step / 200
        weights = weights - part * rates * (gradients + momentum * buffers)
        ours = config.settings_at(step)
        assert ours.learning_rate == pytest.approx(0.24 * part)
        names = ("block1_conv1/beta", "classifier/kernel", "block1_conv1/kernel")
        *factors, of_convolutions, of_whitening = phases.factors_of(
            phases.at(config.phases, step).layer_rates, (*names, "whitening/bias")
        )
        assert of_convolutions == 1
        assert of_whitening == (factors[0] if step < 75 else 0)
        optimizer.apply(
            # d loss / d ours = d loss / d theirs * d theirs / d ours.
            [tf.constant([one], tf.float32) for one in sums / batch / scale],
            ours._replace(
                learning_rate=tf.constant(ours.learning_rate, tf.float32),
                velocity_factor=tf.constant(ours.velocity_factor, tf.float32),
                nesterov_momentum=tf.constant(ours.nesterov_momentum, tf.float32),
            ),
            factors,
        )
        found = np.array([one.numpy().item() for one in variables])
        np.testing.assert_allclose(found, weights * scale, rtol=1e-4)


def test_only_what_is_no_convolution_decays(make_config):
    config = make_config(model="airbench94", optimizer="muon", decay_batch_norm=True)
    state = TrainState(config)
    each = zip(state.names, state.optimizer.decays, strict=True)
    fixed = [name for name, decays in each if not decays]
    assert fixed == [
        f"block{block}_conv{part}/kernel" for block in (1, 2, 3) for part in (1, 2)
    ]
    others = [
        one.numpy()
        for one, decays in zip(
            state.trainable_variables, state.optimizer.decays, strict=True
        )
        if decays
    ]
    decay = config.phases[0].weight_decay
    penalty = decay / 2 * sum(np.sum(one.astype(np.float64) ** 2) for one in others)
    assert state.weight_penalty() == pytest.approx(penalty)


SHAPES = [(2, 3), (4, 1), (1, 1), (1, 5), (2, 2)]


class Rank(Collectives):
    """One of several ranks, which sees the messages that the others have sent before.

    Attributes:
        sent: This rank's messages.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__()
        self.sent: list[tf.Tensor] = []
        self.others: list[Rank] = []
        self._place = rank, num_ranks

    @property
    def rank(self) -> int:
        return self._place[0]

    @property
    def num_ranks(self) -> int:
        return self._place[1]

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        assert name == "a name"
        self.sent.append(tensor)
        seen = [other.sent[0] for other in self.others if other.sent]
        padding = tf.fill([sum(rows * columns for rows, columns in SHAPES)], np.nan)
        gathered = tf.concat([*seen, padding], 0)
        return gathered[: padding.shape[0]]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_each_matrix_is_computed_on_one_rank_and_known_to_all(num_ranks, monkeypatch):
    ranks = [Rank(rank, num_ranks) for rank in range(num_ranks)]
    matrices = [tf.fill(shape, float(i)) for i, shape in enumerate(SHAPES)]
    computed = []

    def orthogonalized(matrix: tf.Tensor) -> tf.Tensor:
        computed.append(int(matrix[0, 0]))
        return 2 * matrix

    monkeypatch.setattr(muon, "orthogonalized", orthogonalized)
    for rank in ranks:
        rank.others = ranks
    for repetition in range(2):  # In the second, all messages are known.
        for rank in ranks:
            results, bytes_sent = muon.orthogonalized_by_ranks(matrices, rank, "a name")
            own = rank.sent[0].shape[0] if rank.sent else 0
            assert bytes_sent == 4 * own * (num_ranks - 1)
            if repetition:
                for result, matrix in zip(results, matrices, strict=True):
                    np.testing.assert_array_equal(result, 2 * matrix)
    assert sorted(computed) == sorted(2 * list(range(len(SHAPES))))


def test_the_largest_costs_are_distributed_first():
    # 8 + 2, and 5 + 4 + 1.
    assert balanced([1.0, 8.0, 2.0, 5.0, 4.0], 2) == [[1, 2], [0, 3, 4]]
    assert balanced([1.0, 1.0, 1.0], 2) == [[0, 2], [1]]
    assert balanced([3.0], 3) == [[0], [], []]


@given(st.lists(st.floats(0.0, 100.0), max_size=6), st.integers(1, 3))
def test_no_part_is_much_larger_than_necessary(costs, num_parts):
    def most(owners: Sequence[int]) -> float:
        sums = [0.0] * num_parts
        for part, cost in zip(owners, costs, strict=True):
            sums[part] += cost
        return max(sums)

    parts = balanced(costs, num_parts)
    assert sorted(itertools.chain(*parts)) == list(range(len(costs)))
    largest = max(sum(costs[index] for index in part) for part in parts)
    best = min(map(most, itertools.product(range(num_parts), repeat=len(costs))))
    assert largest <= (4 / 3 - 1 / (3 * num_parts)) * best * (1 + 1e-9)
