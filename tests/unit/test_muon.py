import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from resnet import native
from resnet.distributed.collectives import Collectives
from resnet.optim import muon
from resnet.optim.groups import balanced
from resnet.optim.train_state import TrainState
from tests.unit import each_instruction_set, one_optimizer
from tests.unit.one_optimizer import slow_orthogonalized


@pytest.mark.parametrize("shape", [(27, 64), (216, 64), (64, 64), (1, 3), (5, 1)])
def test_the_iteration_acts_on_the_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = tf.function(muon.orthogonalized)(tf.constant(matrix)).numpy()
    np.testing.assert_allclose(found, slow_orthogonalized(matrix), atol=2e-5)
    # The largest of 64 values is far below 1 at first.
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.5 < values.max() < 1.3


@pytest.mark.parametrize("shape", [(27, 64), (216, 64), (64, 64), (1_152, 128)])
def test_in_bfloat16_it_is_that_of_float32_up_to_rounding(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = tf.function(muon.orthogonalized)(tf.constant(matrix), tf.bfloat16)
    expected = slow_orthogonalized(matrix)
    assert found.dtype == tf.bfloat16
    error = np.linalg.norm(tf.cast(found, tf.float32) - expected)
    error /= np.linalg.norm(expected)
    assert 1e-4 < error < 0.05  # Each of the products rounds to 8 bits.


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_updates_are_computed_in_the_precision_of_the_network(
    precision, make_config, monkeypatch
):
    seen = []

    def by_ranks(matrices, dtype, collectives, name):
        seen.append(dtype.name)
        return list(matrices), 0

    monkeypatch.setattr(muon, "orthogonalized_by_ranks", by_ranks)
    config = make_config(model="airbench94", optimizer="muon", precision=precision)
    state = TrainState(config)
    gradients = [tf.ones_like(one) for one in state.trainable_variables]
    state.optimizer.apply(gradients, one_optimizer.settings(0.1, 0.9, 0.0))
    assert seen == [{"float32": "float32", "bf16": "bfloat16"}[precision]]


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


def test_a_gradient_of_zeros_and_a_kernel_of_zeros_stay_finite():
    assert not muon.orthogonalized(tf.zeros([4, 3])).numpy().any()
    assert muon.normalization_factor(tf.Variable(tf.zeros([1, 1, 2, 3]))) == 0


@pytest.mark.parametrize("model", ["airbench94", "inception_bn_28"])
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
    for name in each_instruction_set.usable_instruction_sets():
        each_instruction_set.limit_instruction_set(name)
        found.add(muon.orthogonalized(matrix).numpy().tobytes())
    each_instruction_set.limit_instruction_set(before)
    assert len(found) == 1


def test_only_what_is_no_convolution_decays(make_config):
    config = make_config(model="airbench94", optimizer="muon", decay_batch_norm=True)
    state = TrainState(config)
    each = zip(state.names, state.optimizer.decays, strict=True)
    fixed = [name for name, decays in each if not decays]
    assert fixed == [
        f"block{block}_conv{part}/kernel" for block in (1, 2, 3) for part in (1, 2)
    ]


SHAPES = [(2, 3), (4, 1), (1, 1), (1, 5), (2, 2)]


class Rank(Collectives):
    """One of several ranks, which sees the messages that others have sent before."""

    rank = num_ranks = 0

    def __init__(self, rank: int, ranks: list["Rank"], num_ranks: int) -> None:
        super().__init__()
        self.rank, self.num_ranks, self._ranks = rank, num_ranks, ranks
        self.sent: list[tf.Tensor] = []
        ranks.append(self)

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        assert name == "a name"
        self.sent.append(tensor)
        known = [other.sent[0] for other in self._ranks if other.sent]
        num_values = sum(rows * columns for rows, columns in SHAPES)
        padding = tf.cast(tf.fill([num_values], np.nan), tensor.dtype)
        return tf.concat([*known, padding], 0)[:num_values]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_each_matrix_is_computed_on_one_rank_and_known_to_all(num_ranks, monkeypatch):
    ranks: list[Rank] = []
    for rank in range(num_ranks):
        Rank(rank, ranks, num_ranks)
    matrices = [tf.fill(shape, float(i)) for i, shape in enumerate(SHAPES)]
    computed = []

    def orthogonalized(matrix: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        assert dtype == tf.bfloat16
        computed.append(int(matrix[0, 0]))
        return tf.cast(2 * matrix, dtype)

    monkeypatch.setattr(muon, "orthogonalized", orthogonalized)
    for repetition in range(2):  # In the second, all messages are known.
        for rank in ranks:
            results, bytes_sent = muon.orthogonalized_by_ranks(
                matrices, tf.bfloat16, rank, "a name"
            )
            own = rank.sent[0].shape[0] if rank.sent else 0
            assert bytes_sent == 2 * own * (num_ranks - 1)
            for result, matrix in zip(results, matrices, strict=True):
                assert not repetition or np.array_equal(result, 2 * matrix)
    assert sorted(computed) == sorted(2 * list(range(len(SHAPES))))


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
